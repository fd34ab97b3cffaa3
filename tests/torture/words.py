"""Command lines to fuzz: the real options with wrong and hostile values, and words that are no
options at all."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from tests.torture.guard import one_sentence
from tests.torture.summary import demand
from tests.torture.targets import SCRATCH, check_csv

Draw = Callable[[st.SearchStrategy[Any]], Any]
VALUES = (
    "", " ", "0", "1", "-1", "2", "3", "10", "0.5", "1e999", "nan", "inf", "-0", "99999999999", "1" * 30,
    "9" * 5000, "²", "٣", "a", "y", "A", "all", "auto", "smoke", "both", "epochs", "mse", "mse,rlp", ",",
    ",,", "mse,,rlp", "linear", "local:1", "local:0", "local:-1", "local:x", "local:²", "inline", "dask:",
    "dask:tcp://127.0.0.1:1", "cloud", "utf-8", "latin-1", "utf-16", "hex", "base64", "idna", "undefined",
    "\0", "\udcff", "\x1b[2J", "=1+1", "<b>", "'", '"', "$(touch x)", "; touch x", "--", "-", "--out", "-h",
    "table.csv", "broken.csv", "no.csv", "dir", "file", "theirs", "new/out", "/proc/nothing", "/dev/null",
    "/dev/null/x", "x" * 300, "y/" * 3000, "../../x", ".", "..", "classification", "regression", "table1",
    "fig-planes", "propositions", "tables-hyperparameters", "wine ", "nothing", "40", "1000000000", "0.9",
    "0,1", "15",
)  # fmt: skip
OPTIONS = {
    "compare": ("--target", "--out", "--task", "--arms", "--drop", "--splits", "--steps", "--max-rows", "--seed",
                "--workers", "--encoding", "--time", "--group", "--decimal", "--thousands", "--loss",
                "--time-limit", "--quick", "--json", "--quiet"),
    "inspect": ("--target", "--task", "--drop", "--encoding", "--time", "--group", "--decimal", "--thousands"),
    "reproduce": ("--scale", "--budget", "--out", "--seeds", "--datasets", "--arms", "--workers", "--list"),
    "report": (),
    "data": (),
}  # fmt: skip


@st.composite
def command_lines(draw: Draw) -> list[str]:
    """A command with options; more often than not one that would go far."""
    word = st.one_of(st.sampled_from(VALUES), st.text(max_size=6))
    name = draw(
        st.sampled_from(
            [
                *OPTIONS,
                "compare",
                "compare",
                "inspect",
                "reproduce",
                "nonsense",
                "--version",
                "--help",
            ]
        )
    )
    words = [name]
    if name in ("compare", "inspect"):
        words += [
            draw(
                st.sampled_from(
                    ["table.csv"] * 6
                    + ["broken.csv", "no.csv", "dir", "", "\0", "x" * 300 + ".csv"]
                )
            )
        ]
        words += [
            "--target",
            draw(st.sampled_from(["y"] * 6 + ["a", "A", "name", "nothing", "\udcff"])),
        ]
    elif name == "reproduce":
        words += draw(
            st.lists(
                st.sampled_from(["table1", "fig-planes", "fig-networks", "all", "table9", ""]),
                max_size=2,
            )
        )
    elif name == "data":  # `get` of a real name would ask the network
        words += [
            draw(st.sampled_from(["list", "verify", "get", ""])),
            draw(st.sampled_from(["no-such", "", "\0", "--all", "../x"])),
        ]
    elif name == "report":
        words += [
            draw(
                st.sampled_from(
                    ["dir", "theirs", "store", "no", "table.csv", "\0", "/dev/null", "x" * 300]
                )
            )
        ]
    for _ in range(draw(st.integers(0, 3))):
        known = OPTIONS.get(name, ())
        words.append(
            draw(st.sampled_from(known)) if known and draw(st.integers(0, 5)) else draw(word)
        )
        if words[-1] != "--list":
            words.append(draw(word))
    return words


class Far(Exception):
    """The command has come as far as training, which is not what is fuzzed here."""


@contextlib.contextmanager
def playground() -> Iterator[Path]:
    """A directory with good and bad files; training is replaced by an exception, the cache is
    empty."""
    folder = SCRATCH / "words"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "dir").mkdir(parents=True)
    (folder / "theirs").mkdir()
    (folder / "theirs" / "thesis.txt").write_text("precious")
    (folder / "file").write_text("x")
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{'uv'[k % 2]},{y:.3f}" for k, (a, y) in enumerate(rng.normal(size=(40, 2)))]
    (folder / "table.csv").write_text("\n".join(["a,name,y", *rows]))
    (folder / "broken.csv").write_text('a,y\n1,"2\n')

    def stop(*_: object, **__: object) -> None:
        raise Far

    here = os.getcwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.dict(os.environ, {"RLPLOSS_DATA": str(folder / "cache"), "COLUMNS": "100"}),
            mock.patch("rlploss.compare.comparison.execute", stop),
            mock.patch("rlploss.lab.run.execute", stop),
            mock.patch("rlploss.paper.reproduce.missing_data", return_value={}),
        ):
            yield folder
    finally:
        os.chdir(here)


def check_words(words: list[str]) -> bool:
    """Exit code 0, 1 or 2; one sentence on stderr if it is not 0; nothing half-written, nothing of
    others touched."""
    from rlploss.cli import run

    out, err = io.StringIO(), io.StringIO()
    with playground() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        try:
            code = run(words)
        except Far:
            code = 0
        for path, data in before.items():
            demand(path.read_bytes() == data, f"{path.name} was changed")
        demand(not (folder / "x").exists(), "a shell was involved")
        for path in folder.rglob("*"):
            demand(not path.name.endswith(".part"), f"{path.name} is left")
            if path.suffix == ".csv" and path not in before:
                check_csv(path.read_text())
    demand(code in (0, 1, 2), f"exit code {code}")
    text = err.getvalue()
    if code == 2 and text:
        demand(text.startswith("rlploss: "), f"stderr is {text[:200]!r}")
        one_sentence(text.rstrip("\n"))
    demand("Traceback" not in text + out.getvalue(), text)
    return code == 0
