"""How far predictions can be trusted, for the report: classes recognised, probabilities that come
true, columns that matter, intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlploss.compare import drawings
from rlploss.compare.answer import FITS, Comparison
from rlploss.compare.expected import FEW_ROWS, Expected, reliability
from rlploss.compare.result import Results
from rlploss.lab.figures import Figure
from rlploss.lab.report import Table
from rlploss.lab.text import number, shown

PROPER = ("brier", "log_loss")
MOST_BARS = 20  # columns in the figure of importance


def classes_table(results: Results, classes: Sequence[str]) -> Table:
    """Return how often each class is taken for each, by the arm that leads, on the test rows of all
    splits.
    """
    arm = results.answer.leader
    truth = np.concatenate(results.truth[: len(arm.predicted)])
    predicted = np.concatenate(arm.predicted).argmax(1)
    counts = [[int(((truth == i) & (predicted == j)).sum()) for j in range(len(classes))]
              for i in range(len(classes))]  # fmt: skip
    rows = [
        (name, *(f"{n:,}" for n in row), f"{row[i] / max(1, sum(row)):.0%}")
        for i, (name, row) in enumerate(zip(classes, counts, strict=True))
    ]
    head = ("truth", *(f"taken for {name}" for name in classes), "right")
    title = f"Classes recognised by {arm.label}, test rows of all splits"
    return Table("classes", title, head, tuple(rows))


def reliability_table(results: Results, expected: Expected) -> Table:
    """Return how often what was predicted came true, on the test rows of all splits."""
    arm = results.answer.best
    truth = np.concatenate(results.truth[: len(arm.predicted)])
    predicted = np.concatenate(arm.predicted)
    rows = tuple(
        (f"{told:.0%}", f"{came:.0%}", f"{n:,}")
        for told, came, n in reliability(expected.calibrated(predicted), truth)
    )
    of = f"of {expected.classes[1]}" if len(expected.classes) == 2 else "of the most probable class"
    head = (f"probability {of}, calibrated", "came true", "test rows")
    values = {name: number(float(results.values(arm.name, name).mean())) for name in PROPER}
    note = (
        f"{arm.label}: Brier score {values['brier']}, log loss {values['log_loss']}."
        " rlploss predict divides the logarithms of its probabilities by"
        f" {expected.temperature:.2f} (above 1: they were too sure), and so does this table."
    )
    title = "Do probabilities come true?"
    return Table("reliability", title, head, rows, notes=(note,))


def importance_figure(found: Comparison) -> Figure:
    """Return how much worse the metric becomes on test rows when a column is shuffled."""
    words, label = found.results.metric.words, found.results.answer.best.label
    bars: list[drawings.Bar] = [
        (shown(name), "blue", (mean, low, high))
        for name, mean, low, high in found.importance[:MOST_BARS]
    ]
    caption = (
        f"How much worse the {words} of {label} becomes on test rows when a column is shuffled;"
        f" mean and 95 % interval over {min(FITS, len(found.seeds))} splits. Columns that say the"
        " same share what they are worth."
    )
    drawing = drawings.intervals(
        "Columns, shuffled", bars, f"{words}, worse by", "column", mark=0.0
    )
    return Figure("importance", "", caption, (drawing,), 1)


def expected_said(expected: Expected) -> tuple[str, ...]:
    """Return how far off numbers may be, and when intervals may hold less than they say."""
    if expected.task == "classification":
        return ()
    half, few = expected.distance(min(0.9, expected.most)), expected.n_rows < FEW_ROWS
    far = f"×/÷ {number(math.exp(half))}" if expected.log else f"± {number(half)}"
    told = (
        f"{100 * min(0.9, expected.most):.0f} % of new rows like these lie within {far} of their"
        " prediction: predict gives lower and upper."
    )
    less = f" With {expected.n_rows} rows, fewer than {FEW_ROWS}, it may be less." if few else ""
    return (told + less,)
