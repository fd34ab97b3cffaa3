"""What to expect of a kept model on new rows, from the errors of its arm on the test rows.

Numbers get intervals, and classes probabilities that come true as often as they say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import softmax

from rlploss import _checks
from rlploss._files import read_bytes, write_text
from rlploss._scaling import Array
from rlploss.compare.metrics import metric_of
from rlploss.compare.read import TableError
from rlploss.compare.result import Results

FILE = "expected.json"
FEW_ROWS = 100  # with fewer, intervals may hold less often than they say
MOST_ERRORS = 2_000  # that are kept, evenly from the smallest to the largest
MOST_BYTES = 2**20
LEAST = 1e-4  # a probability below it says as much as this


@dataclass(frozen=True)
class Expected:
    """How far off predictions were on test rows. `errors` are the sorted distances of numbers from
    the truth, between logarithms with `log`; `temperature` is that of class probabilities.
    """

    target: str
    task: str
    metric: str
    value: float  # of the metric, the mean over splits
    n_rows: int  # different rows behind it
    errors: Sequence[float] = ()
    log: bool = False
    classes: Sequence[str] = ()
    temperature: float = 1.0

    @classmethod
    def of(cls, results: Results, name: str, *, target: str, classes: Sequence[str] = ()) -> Self:
        """Return what the test rows of all splits say of one arm."""
        arm = results.arm(name)
        predicted = np.concatenate(arm.predicted)
        truth = np.concatenate(results.truth[: len(arm.predicted)])
        value = float(results.values(name).mean())
        common = (target, results.task, results.metric.name, value, min(len(truth), results.n_rows))
        if results.task == "classification":
            return cls(*common, classes=tuple(classes), temperature=temperature(predicted, truth))
        numbers = predicted[:, 0]
        log = bool(np.mean(arm.details.get("log", 0)) > 0.5) and bool((numbers > 0).all())
        gaps = np.log(truth) - np.log(numbers) if log else truth - numbers
        some = np.linspace(0, len(gaps) - 1, min(len(gaps), MOST_ERRORS)).round().astype(int)
        errors = np.sort(np.abs(gaps))[some]
        return cls(*common, errors=tuple(errors.tolist()), log=log)

    @property
    def most(self) -> float:
        """The largest coverage that so many rows can promise."""
        return self.n_rows / (self.n_rows + 1)

    def distance(self, coverage: float) -> float:
        """Return the distance within which so large a part of the truths lies: the conformal
        quantile of as many errors as there are different rows.
        """
        if not 0 < _checks.number("coverage", coverage) <= self.most:
            raise ValueError(
                f"coverage must be above 0 and at most {self.most:.3f}, which is what {self.n_rows}"
                f" test rows can promise, got {coverage:g}; ask for less"
            )
        rank = math.ceil((self.n_rows + 1) * coverage)
        part = min(rank - 1e-6, self.n_rows) / self.n_rows  # the rank-th of n_rows, not the next
        return float(np.quantile(self.errors, part, method="inverted_cdf"))

    def interval(self, predicted: Array, coverage: float) -> tuple[Array, Array]:
        """Return the lower and upper ends around predictions (n,) of the kept model."""
        half = self.distance(coverage)
        if self.log:
            return predicted * math.exp(-half), predicted * math.exp(half)
        return predicted - half, predicted + half

    def ordered(self, model: Any, frame: pd.DataFrame) -> Array:
        """Return the probabilities of the model [n, C], in the order of `classes`."""
        names = [str(int(c)) if _is_whole(c) else str(c).strip() for c in model.classes_.tolist()]
        return np.asarray(model.predict_proba(frame)[:, [names.index(c) for c in self.classes]])

    def calibrated(self, p: Array) -> Array:
        """Return probabilities [n, C] as sure as the test rows were right."""
        return np.asarray(softmax(np.log(np.clip(p, LEAST, 1)) / self.temperature, axis=1))

    def truth(self, values: pd.Series) -> NDArray[Any]:
        """Return the target of new rows as numbers, or class numbers; NaN, or −1, where there is
        none.
        """
        if self.task == "regression":
            return np.asarray(pd.to_numeric(values, errors="coerce"), dtype=np.float64)
        texts = values.map(lambda value: str(value).strip())
        return np.asarray(pd.Categorical(texts, categories=list(self.classes)).codes, np.int64)

    def sentence(self, predicted: Array, values: pd.Series, coverage: float) -> str:
        """Return how good predictions [n, C] were on new rows whose target is there."""
        truth = self.truth(values)
        known = truth >= 0 if self.task == "classification" else ~np.isnan(truth)
        if not known.any():
            return f"Column {self.target} is there, but no value of it can be read."
        metric, n = metric_of(self.task, self.metric), int(known.sum())
        told = metric.told(metric.value(metric.losses(predicted[known], truth[known])))
        text = f"{metric.words} {told} on the {n:,} rows with a {self.target}"
        text += f"; the comparison had {metric.told(self.value)}"
        if self.task == "regression":
            low, high = self.interval(predicted[known, 0], coverage)
            within = 100 * np.mean((low <= truth[known]) & (truth[known] <= high))
            text += f"; {within:.0f} % of them lie within their intervals of {100 * coverage:g} %"
        return text[0].upper() + text[1:] + "."

    def save(self, directory: Path) -> None:
        """Write it as JSON beside the model."""
        write_text(directory / FILE, json.dumps(asdict(self), ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote."""
        place = directory if (directory / FILE).exists() else directory / "model"
        try:
            expected = cls(**json.loads(read_bytes(place / FILE, MOST_BYTES)))
            metric_of(expected.task, expected.metric).told(expected.value)
            if not np.isfinite(
                [*expected.errors, expected.n_rows, math.log(expected.temperature)]
            ).all():
                raise ValueError("it holds numbers that are not finite")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise TableError(
                f"{place / FILE} cannot be read ({error}); run compare again to make it anew"
            ) from error
        return expected


def _is_whole(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and value == int(value)


def temperature(p: Array, truth: NDArray[Any]) -> float:
    """Return what the logarithms of probabilities [n, C] are divided by, such that the log loss of
    test rows is least: above 1 they were too sure.
    """
    logs, rows = np.log(np.clip(p, LEAST, 1)), np.arange(len(truth))

    def loss(log_t: float) -> float:
        scaled = logs / math.exp(log_t)
        return float(np.mean(np.logaddexp.reduce(scaled, axis=1) - scaled[rows, truth]))

    return math.exp(optimize.minimize_scalar(loss, bounds=(-2, 2), method="bounded").x)


def reliability(p: Array, truth: NDArray[Any]) -> list[tuple[float, float, int]]:
    """Return the mean probability, how often it came true, and how many rows, for tenths of
    probability: of the second of two classes, or of the most probable of several.
    """
    two = p.shape[1] == 2
    told = p[:, 1] if two else p.max(axis=1)
    came = truth == 1 if two else p.argmax(axis=1) == truth
    tenth = np.minimum((told * 10).astype(int), 9)
    parts = [tenth == k for k in range(10) if (tenth == k).any()]
    return [(float(told[part].mean()), float(came[part].mean()), int(part.sum())) for part in parts]
