"""`python -m tests.torture [PART ...]`: every part with its size as an option; see
docs/reliability.md."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable

from tests.torture.summary import Broken, Line, table

PARTS = ("store", "checkpoints", "files", "fuzz", "guided", "long")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if none is given"
    )
    parser.add_argument("--kills", type=int, default=200, help="of studies, and as many of fit")
    parser.add_argument(
        "--kills-local", type=int, default=10, help="of studies with worker processes"
    )
    parser.add_argument("--cases", type=int, default=12_000, help="of fuzzing, over all targets")
    parser.add_argument("--only", default="", help="of fuzzing: targets whose name contains this")
    parser.add_argument("--files", type=int, default=600, help="of files that are changed")
    parser.add_argument("--runs", type=int, default=2000, help="of the long study")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {sorted(unknown)[0]!r}; the parts are {', '.join(PARTS)}")
    lines: list[Line] = []
    for part in options.parts or PARTS:
        for step in _steps(part, options):
            try:
                lines += step()
            except Broken as broken:
                traceback.print_exc()
                lines.append(Line(part, "broken off", 0, str(broken)[:80], 0.0, [str(broken)]))
    print(f"\n{table(lines)}")
    for line in lines:
        for text in line.broken:
            print(f"\n{line.part}, {line.what}: {text}")
    return 1 if any(line.broken for line in lines) else 0


def _steps(part: str, options: argparse.Namespace) -> list[Callable[[], list[Line]]]:
    """The steps of a part; imports wait until the part is wanted."""
    if part in ("store", "checkpoints"):
        return [lambda: _kills(part, options)]
    if part == "files":
        from tests.torture import files

        return [lambda: files.run(options.files, options.seed)]
    if part == "fuzz":
        from tests.torture import fuzz

        return [lambda: fuzz.run(options.cases, options.seed, options.only)]
    if part == "guided":
        from tests.torture import guided

        return [lambda: guided.run(options.cases, options.seed)]
    from tests.torture import longrun

    return [lambda: longrun.run(options.runs)]


def _kills(part: str, options: argparse.Namespace) -> list[Line]:
    from tests.torture.forks import Forker
    from tests.torture.kills import kill_fit, kill_study, kill_workers

    with Forker() as forker:
        if part == "checkpoints":
            return [kill_fit(forker, options.kills, options.seed)]
        found = [kill_study(forker, options.kills, options.seed)]
        if options.kills_local:
            found.append(kill_study(forker, options.kills_local, options.seed, "local:2"))
            found.append(kill_workers(forker, options.kills_local, options.seed))
        return found


if __name__ == "__main__":
    sys.exit(main())
