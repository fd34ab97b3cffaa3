"""The numbers of the README, from the stored results: `python docs/readme.py` writes them between
their markers.

Nothing is trained here. `docs/results` has the commands that make the results, `make bench` makes
the speeds.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAPER = RESULTS / "paper" / "tables"
NAMES = {
    "california": "California",
    "wine": "Wine",
    "linear": "Linear",
    "nonlinear": "Nonlinear",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
}
SIGNS = {
    "reproduced": "✓",
    "reproduced, undecided at equal steps": "✓?",
    "reproduced, but gone at equal steps": "✓✗",
    "undecided": "?",
    "not reproduced": "✗",
}
SEEDS = 30  # of Table 1, unless its row says otherwise


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def short(text: str | float) -> str:
    """Three digits: 0.952, 11.6, 2.38e-6."""
    value = float(text)
    return re.sub(
        r"e-0?", "e-", f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:#.3g}"
    ).rstrip(".")


def table1() -> str:
    """Published and ours, for both losses, and the ratio at equal epochs and at equal steps."""
    rows = {
        (row["dataset"], row["trained_with"], row["protocol"]): row
        for row in read(PAPER / "table1.csv")
    }
    ratios = {
        (row["dataset"], row["protocol"]): row
        for row in read(PAPER / "table1-ratios.csv")
        if row["baseline"] == "mse"
    }
    heads = ("published", "ours, equal epochs", "ours, equal steps")
    columns = [
        *(f"{head}: MSE, RLP" for head in heads),
        "RLP / MSE, equal epochs",
        "RLP / MSE, equal steps",
    ]
    lines = [f"| | {' | '.join(columns)} |", "|---" * 6 + "|"]
    for name, shown in NAMES.items():
        seeds = int(ratios[name, "released"]["seeds"])
        cells = [shown if seeds == SEEDS else f"{shown} ({seeds} seeds)"]
        for protocol, key in (
            ("released", "published_mean"),
            ("released", "mean"),
            ("steps", "mean"),
        ):
            cells.append(", ".join(short(rows[name, arm, protocol][key]) for arm in ("mse", "rlp")))
        for protocol in ("released", "steps"):
            row = ratios[name, protocol]
            cells.append(
                "{} [{}, {}]".format(*(short(row[key]) for key in ("effect", "low", "high")))
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdicts() -> dict[str, tuple[str, str]]:
    """Claim to (text, verdict), in the report's order: the verdicts in favour first."""
    return {row["claim"]: (row["text"], row["verdict"]) for row in read(PAPER / "claims.csv")}


def claims() -> str:
    """How many claims got which verdict, in a sentence."""
    counts = Counter(verdict for _, verdict in verdicts().values())
    told = "; ".join(f"{n} {word} ({SIGNS.get(word, '–')})" for word, n in counts.items())
    return f"Of the paper's {counts.total()} claims: {told}."


def speed() -> str:
    """The lines of the benchmarks that speak of the released loop, with AVX-512 and with AVX2
    alone.
    """
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    line = re.compile(
        r"^\| ([^|]*the released loop[^|]*) \| ([\d.]+) \|[^|]*\|[^|]*\| ([^|]*) \|$", re.M
    )
    plain, narrow = (
        line.findall(text.partition(f"<!-- begin: {block} -->")[2].partition("<!-- end:")[0])
        for block in ("training", "training, vectors of 256 bits")
    )
    rows = [
        f"| {words(what)} | {times} | {units(detail, float(times))} | {slower} |"
        for (what, times, detail), (_, slower, _) in zip(plain, narrow, strict=True)
    ]
    head = "| | times as fast as the released loop | | with AVX2 alone |"
    return "\n".join([head, "|---|---|---|---|", *rows])


MEASURED = {  # rows of the benchmarks, in the README's words
    "fit, one network, RLP step": "one network (`fit`)",
    "30 seeds as a fleet": "30 networks at once (`fit_fleet`)",
    "Table 1, 30 seeds": "30 networks on a table like Nonlinear",
}


def words(what: str) -> str:
    """The name of a row of the benchmarks, before its colon, in the README's words."""
    name = what.partition(":")[0]
    return next(
        (
            ours + name.removeprefix(theirs)
            for theirs, ours in MEASURED.items()
            if name.startswith(theirs)
        ),
        name,
    )


def units(detail: str, times: float) -> str:
    """What was measured, with its units: steps per second, and minutes instead of hours."""
    detail = re.sub(
        r"(\S+) against (\S+) per second", r"\1 against \2 steps per second, all 30 counted", detail
    )
    seconds = re.match(r"([\d.]+) s instead of ", detail)
    return (
        f"{seconds[1]} s instead of {float(seconds[1]) * times / 60:.0f} min" if seconds else detail
    )


PAIRS = {
    ("rlp", "mse"): "RLP / MSE",
    ("rlp", "mse+l2"): "RLP / MSE+L2",
    ("rlp+l2", "mse+l2"): "RLP+L2 / MSE+L2",
    ("rlp-cv", "mse-cv"): "`RLPRegressorCV` / its MSE-only twin",
    ("rlp-cv", "ridge"): "`RLPRegressorCV` / ridge regression",
    ("rlp-cv", "boosting"): "`RLPRegressorCV` / boosting",
    ("rlp-cv", "trees"): "`RLPRegressorCV` / extra trees",
}


def survey() -> str:
    """Ratios of squared errors over the tables of the survey, at random splits: a column for each
    half.
    """
    found = [
        row
        for row in read(RESULTS / "survey" / "tables" / "pairs.csv")
        if row["outside"] == "False"
    ]
    rows = {(row["ours"], row["theirs"], row["rows"], row["half"]): row for row in found}
    halves, sizes = (
        dict.fromkeys(row["half"] for row in found),
        sorted({row["rows"] for row in found}, key=int),
    )
    lines = [f"| | training rows | {' | '.join(halves)} |", "|---" * (2 + len(halves)) + "|"]
    for n in sizes:
        for pair, shown in PAIRS.items():
            cells = [rows.get((*pair, n, half)) for half in halves]
            told = [with_interval(one) for one in cells]
            lines += [f"| {shown} | {int(n):,} | {' | '.join(told)} |"] if any(cells) else []
    tables = [
        " and ".join(f"{rows['rlp', 'mse+l2', n, half]['tables']} {half}" for half in halves)
        for n in sizes
    ]
    said = "; ".join(
        f"{told} with {int(n):,} training rows" for n, told in zip(sizes, tables, strict=True)
    )
    return "\n".join([*lines, "", f"Tables: {said}. {extremes(sizes[0])}"])


def with_interval(row: dict[str, str] | None) -> str:
    """A ratio, its interval and its word; a dash where there is none."""
    if row is None:
        return "–"
    return "{} [{}, {}], {}".format(
        *(short(row[key]) for key in ("ratio", "low", "high")), row["word"]
    )


def extremes(n: str) -> str:
    """Which table of each half is farthest from all others in the ratio to boosting, and by how
    much.
    """
    found = [
        row
        for row in read(RESULTS / "survey" / "tables" / "tables.csv")
        if row["outside"] == "False" and row["draw_rows"] == n
    ]
    told, exact = [], True
    for half in dict.fromkeys(row["half"] for row in found):
        rows = {row["table"]: row for row in found if row["half"] == half}
        ratios = {
            table: float(row["rlp-cv"]) / float(row["boosting"]) for table, row in rows.items()
        }
        table = max(ratios, key=lambda name: abs(math.log(ratios[name])))
        told.append(f"{short(ratios[table])} on {table} ({half})")
        exact &= float(rows[table]["linear"]) > 0.9999 and float(rows[table]["noise"]) < 0.01
    shown = f"with {int(n):,} training rows `RLPRegressorCV` / boosting is {' and '.join(told)}"
    why = " On these two the target is an exact linear function of the columns." if exact else ""
    return f"One table in each half makes intervals wide: {shown}.{why}"


def compare() -> str:
    """The answer of the comparison that is kept in docs/results."""
    text = (RESULTS / "compare-diabetes" / "answer.txt").read_text(encoding="utf-8")
    return "\n".join(f"> {line}<br>" for line in text.strip().splitlines()).removesuffix("<br>")


def checkout() -> str:
    """How to get the repository, whose owner pyproject.toml names, and what to do in it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    owner = settings["tool"]["hatch"]["metadata"]["hooks"]["custom"]["owner"]
    return f"""```
git clone https://github.com/{owner}/rlploss && cd rlploss
make demo   # Table 1 at full length: as many of its tables as fit into three minutes
make test   # the tests: five minutes, after the first installation (make test-all: every one)
```"""


BLOCKS = {
    "checkout": checkout,
    "compare": compare,
    "table1": table1,
    "claims": claims,
    "survey": survey,
    "speed": speed,
}


def render(text: str) -> str:
    """The text with every block made anew."""
    for name, make in BLOCKS.items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
        head, found, rest = text.partition(begin)
        if found and end not in rest:
            raise ValueError(f"the block {name} must end with {end}, got none; put it back")
        if found:
            text = f"{head}{begin}{make()}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
    print(path)
