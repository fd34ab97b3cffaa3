"""Fuzzing guided by coverage, with atheris where it is installed (`pip install atheris`); skipped
and said otherwise.

Each target runs in a process of its own, because libFuzzer ends the process that it runs in.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.torture.forks import ROOT
from tests.torture.summary import Line, Progress

TARGETS = ("table", "parquet", "checkpoint")
SLOW = {"checkpoint": 0.1, "parquet": 0.5, "table": 0.5}  # of the cases that others get


def run(n_cases: int, seed: int) -> list[Line]:
    """Every target with its share of the cases, as whole files of bytes."""
    if importlib.util.find_spec("atheris") is None:
        print("guided: atheris is not installed; `pip install atheris` adds this part", flush=True)
        return [Line("guided", "coverage-guided fuzzing", 0, "atheris is not installed", 0.0)]
    lines = []
    for target in TARGETS:
        share = max(1, round(n_cases / len(TARGETS) * SLOW.get(target, 1.0)))
        progress = Progress(f"guided, {target}", share)
        with tempfile.TemporaryDirectory() as corpus:
            _seed_corpus(target, Path(corpus))
            command = [
                sys.executable,
                "-m",
                "tests.torture.guided",
                target,
                f"-runs={share}",
                f"-seed={seed + 1}",
            ]
            command += ["-timeout=30", "-max_len=4096", f"-artifact_prefix={corpus}/", corpus]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        found = re.findall(r"cov: (\d+)", done.stderr)
        broken = [done.stderr[-3000:]] if done.returncode else []
        progress.tell(share)
        words = f"{found[-1]} branches seen" if found else ""
        lines.append(Line("guided", target, share, words, progress.seconds, broken))
    return lines


def _seed_corpus(target: str, folder: Path) -> None:
    """A good file to begin with, where bytes alone would hardly make one."""
    from tests.torture import targets

    seeds = {"table": b"a,b,y\n1,x,2.5\n2,y,3.5\n"}
    if target == "checkpoint":
        seeds["checkpoint"] = targets._checkpoint("kernel")[0]
    if target in seeds:
        (folder / "seed").write_bytes(seeds[target])


def _child() -> None:
    import atheris

    target = sys.argv.pop(1)
    with atheris.instrument_imports(include=["rlploss"]):
        from rlploss.training import checkpoint as checkpoints  # noqa: F401 - instrumented
    from tests.torture import targets

    def one(data: bytes) -> None:
        if target == "table":
            targets.check_table(("t.csv", "utf-8", data))
        elif target == "parquet":
            targets.check_parquet(data)
        else:
            targets.check_checkpoint(data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    _child()
