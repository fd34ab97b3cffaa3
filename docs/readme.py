"""The numbers of the README, from the stored results: `python docs/readme.py` writes them between
their markers.

Nothing is trained here. `docs/results` has the commands that make the results, `make bench` makes
the speeds.
"""

from __future__ import annotations

import csv
import lzma
import re
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

from rlploss.lab import stats
from rlploss.lab.stats import Contrast
from rlploss.survey.tables import half_of

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
    ("rlp+l2", "mse+l2"): "RLP+L2 / MSE+L2",
    ("rlp-cv", "mse-cv"): "`RLPRegressorCV` / its twin without RLP",
}


@cache
def survey_ratios() -> dict[tuple[str, str, int], tuple[Contrast, int]]:
    """Return every pair of the README on the held-out tables, at random splits, by arms and
    training rows: the geometric mean of the ratios of squared errors, and the number of tables.
    """
    with lzma.open(RESULTS / "rows" / "survey.csv.xz", "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "rmse"]
    errors: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if "outside" not in row["draw"] and half_of(row["task"]) == "held-out":
            where = row["arm"], row["draw"].removeprefix("rows="), row["task"]
            errors.setdefault(where, []).append(max(float(row["value"]) ** 2, 1e-12))
    ratios = {}
    for ours, theirs in PAIRS:
        for n in dict.fromkeys(n for _, n, _ in errors):
            tables = [table for arm, size, table in errors if (arm, size) == (ours, n)]
            means = (
                np.exp([np.log(errors[arm, n, table]).mean() for table in tables])
                for arm in (ours, theirs)
            )
            ratios[ours, theirs, int(n)] = stats.compare(*means), len(tables)
    return ratios


def survey() -> str:
    """Return a row for each pair, and a column for each number of training rows."""
    ratios = survey_ratios()
    sizes = sorted({n for *_, n in ratios})
    counts = {n: ratios["rlp", "mse", n][1] for n in sizes}
    heads = [f"up to {n:,} training rows ({counts[n]} tables)" for n in sizes]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(sizes)) + "|"]
    for pair, shown in PAIRS.items():
        cells = [with_interval(ratios[(*pair, n)][0]) for n in sizes]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_interval(c: Contrast) -> str:
    """Return a ratio, its interval and its word; an interval wider than a factor of ten is no
    result.
    """
    if c.high > 10 * c.low:
        return "too uncertain to say"
    return f"{short(c.effect)} [{short(c.low)}, {short(c.high)}], {c.word}"


def answer() -> str:
    """Return the answer in five lines, each from a stored result."""
    rows = [row for row in read(PAPER / "table1-ratios.csv") if row["baseline"] == "mse"]
    words = {(row["dataset"], row["protocol"]): row["word"] for row in rows}
    sets = ("california", "wine", "linear", "nonlinear")
    ahead = {
        protocol: sum(words[name, protocol] == "better" for name in sets)
        for protocol in ("released", "steps")
    }
    tuned = survey_ratios()["rlp", "mse", 100][0]
    regularised = survey_ratios()["rlp+l2", "mse+l2", 100][0]
    bench = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    (kept,) = re.findall(r"\| kernel, RLP step \(kept\) / MSE step[^|]*\| ([\d.]+) ", bench)[:1]
    return "\n".join(
        [
            f"- **Equal epochs**, as in the paper: RLP's test error is lower on {ahead['released']}"
            " of 4 regression sets, because an epoch gives it many more steps.",
            f"- **Equal steps**: it is lower on {ahead['steps']} of 4.",
            f"- **Tuned alike**, on public tables it was not tuned on: RLP / MSE is"
            f" {with_interval(tuned)}; with weight decay for both"
            f" {with_interval(regularised)}.",
            "- **Nothing tuned**, few noisy rows: RLP regularises, as weight decay does"
            " ([the dial](docs/dial.md)).",
            f"- **Cost**: a compiled RLP step takes {kept} times as long as an MSE step. Nothing is"
            " inverted on the way.",
        ]
    )


def compare() -> str:
    """The answer of the comparison that is kept in docs/results."""
    text = (RESULTS / "compare-diabetes" / "answer.txt").read_text(encoding="utf-8")
    return "\n".join(f"> {line}<br>" for line in text.strip().splitlines()).removesuffix("<br>")


BLOCKS = {
    "answer": answer,
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
