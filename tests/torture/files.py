"""Stored models, checkpoints, tables and studies with changes of every kind: each is read by a child
of its own with 20 s and 2 GB, and refused in one sentence, or read."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.torture import stores
from tests.torture.guard import LONGEST
from tests.torture.summary import Line, Progress

SECONDS, BYTES = 20, 2 * 2**30
STRANGE = (None, True, -1, 10**9, 1e308, "", "x" * 5000, [], [[[]]], {}, {"a": 1}, "\x1b[2J")


def bytes_changed(path: Path, lottery: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(lottery.choice((1, 1, 3, 30))):
        data[lottery.randrange(len(data))] = lottery.randrange(256)
    if lottery.random() < 0.2:
        del data[lottery.randrange(len(data)) :]
    path.write_bytes(data)


def values_changed(path: Path, lottery: random.Random) -> None:
    """One value of the JSON, or of the JSON or an array in a zip, whose sums are right again."""
    if path.suffix == ".json":
        path.write_text(other(path.read_text(), lottery))
    elif zipfile.is_zipfile(path):
        buffer = io.BytesIO()
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
            chosen = lottery.choice([*old.namelist(), *["schema.json"] * 9])
            for name in old.namelist():
                content = old.read(name)
                if name == chosen == "schema.json":
                    content = other(content.decode(), lottery).encode()
                elif name == chosen and content:
                    content = bytearray(content)
                    content[lottery.randrange(len(content))] ^= 1 << lottery.randrange(8)
                new.writestr(name, bytes(content))
        path.write_bytes(buffer.getvalue())
    else:
        bytes_changed(path, lottery)


def other(text: str, lottery: random.Random) -> str:
    """JSON of which one value is missing or another one."""
    tree = json.loads(text)
    places: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        keys = part if isinstance(part, dict) else range(len(part))
        for key in keys:
            places.append((part, key))
            if isinstance(part[key], dict | list):
                walk(part[key])

    walk(tree)
    part, key = lottery.choice(places)
    if lottery.random() < 0.2:
        del part[key]
    else:
        part[key] = lottery.choice([*STRANGE, lottery.choice(places)[0]])
    try:
        return json.dumps(tree)
    except (ValueError, RecursionError):  # a part within itself
        return text


def size_changed(path: Path, lottery: random.Random) -> None:
    if lottery.random() < 0.5:
        with path.open("r+b") as file:
            file.truncate(lottery.choice((0, 1, 100, 6 * 10**9)))
    else:
        path.write_bytes(path.read_bytes() * lottery.choice((2, 50)))


def link(path: Path, lottery: random.Random) -> None:
    copy = path.with_name("copy")
    path.rename(copy)
    kind = lottery.choice(("link", "nowhere", "zero", "pipe", "directory"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to({"link": copy, "nowhere": "nowhere", "zero": "/dev/zero"}[kind])


Change = Callable[[Path, random.Random], None]
CHANGES: tuple[Change, ...] = (bytes_changed, values_changed, values_changed, size_changed, link)


def of_a_file(change: Change) -> Change:
    """Change one file of a directory, or a store's."""

    @functools.wraps(change)
    def changed(folder: Path, lottery: random.Random) -> None:
        store = folder / stores.NAME
        change(store if store.exists() else lottery.choice(sorted(folder.iterdir())), lottery)

    return changed


def predict(folder: Path) -> str:
    from rlploss.compare import load
    from rlploss.compare.read import read_table

    frame = read_table(folder.parent / "new.csv")
    return repr(load(folder).predict(frame).tolist())


def resume(folder: Path) -> str:
    from tests.torture.work import train_with_checkpoints

    path = folder / "run.pt"
    train_with_checkpoints(str(path), str(folder / "bits"), every=50, steps=100)
    return (folder / "bits").read_text()


def read(folder: Path) -> str:
    from rlploss.compare.read import read_table

    return read_table(folder / "t.csv").to_csv()


def outcome(work: Callable[[Path], str], folder: Path) -> str:
    """What a child says: `answer …`, `refused …`, or how it broke."""
    reader, writer = os.pipe()
    sys.stdout.flush()  # or the child may write it again
    child = os.fork()
    if not child:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            text = "answer " + work(folder)
        except ValueError as error:
            said = str(error)
            good = 0 < len(said) <= LONGEST and len(said.splitlines()) == 1 and "\x1b" not in said
            text = f"refused {said}" if good else f"no sentence: {said!r:.300}"
        except MemoryError:  # the command has one sentence for it
            text = "refused for want of memory"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        with os.fdopen(writer, "w", errors="replace") as file:
            file.write(text)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return text if os.WIFEXITED(status) else f"ended by signal {os.WTERMSIG(status)}"


def _make(place: Path) -> list[tuple[str, Callable[[Path], str], Sequence[Change]]]:
    """Honest files to change, what reads them, and how they are changed."""
    import numpy as np
    import pandas as pd

    from rlploss.compare import compare
    from rlploss.compare.model import save

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)).round(3), columns=["a", "b", "c"])
    frame.assign(day="2020-01-05").to_csv(place / "new.csv", index=False)
    changes = [*map(of_a_file, CHANGES)]
    targets = []
    for arm in ("ridge", "trees", "boosting", "gp"):
        found = compare(frame, frame["a"] + frame["b"] ** 2, arms=["mean", arm], n_splits=2)
        save(found.best_model(), place / arm, {})
        targets.append((arm, predict, changes))
    for name, work in (("checkpoint", resume), ("table", read)):
        (place / name).mkdir()
        targets.append((name, work, changes))
    resume(place / "checkpoint")
    (place / "checkpoint" / "bits").unlink()
    frame.to_csv(place / "table" / "t.csv", index=False)
    stores.make(place / "store")
    some = [of_a_file(change) for change in (bytes_changed, bytes_changed, size_changed)]
    return [*targets, ("store", stores.report, [*some, *stores.CHANGES])]


def run(n_cases: int, seed: int) -> list[Line]:
    """So many changes of each kind of file."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for target, work, changes in _make(place):
            lottery, seen = random.Random(f"{seed} {target}"), Counter[str]()
            each = max(1, n_cases // 7)
            progress, broken = Progress(f"files, {target}", each), []
            honest = outcome(work, _copy(place / target))
            if not honest.startswith("answer"):
                broken.append(f"the honest file: {honest[:300]}")
            for case in range(each):
                folder = _copy(place / target)
                change = lottery.choice(changes)
                change(folder, lottery)
                text = outcome(work, folder)
                word = "the same" if text == honest else text.split(" ")[0]
                if word not in ("the same", "answer", "refused"):
                    broken.append(f"case {case}, {change.__name__}: {text[:300]}")
                seen[word] += 1
                progress.tell(case + 1)
            told = ", ".join(f"{n:,} {word}" for word, n in sorted(seen.items()))
            lines.append(Line("files", target, each, told, progress.seconds, broken))
    return lines


def _copy(folder: Path) -> Path:
    copy = folder.with_name("changed")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(folder, copy))
