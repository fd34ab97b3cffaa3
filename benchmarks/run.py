"""`make bench`: every performance claim as a ratio measured now, and the tables of
benchmarks/README.md.

python -m benchmarks.run [--quick] [--json] [--only core,subsets,...] [--keep-readme]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import Row
from rlploss.training.tiles import BITS

SUITES = ("core", "subsets", "training", "engines", "estimators", "compare", "elapsed", "reading")
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- begin: {} -->", "<!-- end: {} -->"


def load(name: str) -> Any:
    """The module of one suite."""
    return importlib.import_module(f"benchmarks.bench_{name}")


def table(rows: list[Row]) -> str:
    """Rows as a Markdown table."""
    if not rows:
        return ""
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = (
            f"{v:.3g}"
            if isinstance(v, float)
            else "yes"
            if v is True
            else "NO"
            if v is False
            else str(v)
            for v in row.values()
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def put(text: str, name: str, body: str) -> str:
    """Replace what stands between the two marks of `name`."""
    begin, end = BEGIN.format(name), END.format(name)
    if begin not in text:
        return text.rstrip() + f"\n\n## {name}\n\n{begin}\n{body}\n{end}\n"
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{body}\n{end}{rest.split(end, 1)[1]}"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; exit code 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and smaller sizes; writes nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--only", default=",".join(SUITES), help="suites, comma-separated: " + ", ".join(SUITES)
    )
    parser.add_argument(
        "--keep-readme", action="store_true", help="do not write benchmarks/README.md"
    )
    options = parser.parse_args(arguments)
    machine = (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, Python"
        f" {platform.python_version()}, {platform.machine()}, vectors of {BITS} bits"
    )
    results: dict[str, list[Row]] = {}
    text = README.read_text() if README.exists() else "# Benchmarks\n"
    for name in options.only.split(","):
        if name not in SUITES:
            parser.error(f"--only takes {', '.join(SUITES)}, got {name!r}")
        suite = load(name)
        print(f"{name} ...", file=sys.stderr, flush=True)
        results[name] = suite.measure(quick=options.quick)
        body = table(results[name])
        if hasattr(suite, "costs"):
            body += "\n\n" + table(suite.costs(quick=options.quick))
        if not options.json:
            print(body, end="\n\n", flush=True)
        place = f"{name}, vectors of {BITS} bits" if "NUMBA_CPU_FEATURES" in os.environ else name
        text = put(text, place, f"Measured with {machine}.\n\n{body}")
    if options.json:
        print(json.dumps({"machine": machine, "results": results}, indent=2, ensure_ascii=False))
    if not options.quick and not options.keep_readme:
        README.write_text(text)
    failed = [row["name"] for rows in results.values() for row in rows if not row["ok"]]
    for name in failed:
        print(f"not met: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
