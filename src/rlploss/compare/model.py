"""A model to keep: a scikit-learn Pipeline from raw frames to predictions, saved without pickle and
loaded again.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import Pipeline

from rlploss import __version__
from rlploss._files import read_bytes, write_bytes, write_text
from rlploss._scaling import Array
from rlploss._trusted import UntrustedError, load_estimator
from rlploss.compare.columns import Column
from rlploss.compare.read import TableError
from rlploss.compare.train import Trainer
from rlploss.estimators.network_cv import NetworkCV
from rlploss.estimators.table import frame_of
from rlploss.lab.text import LabError, sentence

if TYPE_CHECKING:
    from rlploss.compare.answer import Comparison

FILE, ESTIMATOR = "model.json", "model.skops"
LARGEST = 2**31  # bytes of a file of a model


class OlderModelError(Exception):
    """The model was kept by a version whose models were of another form."""


class ReadColumns(TransformerMixin, BaseEstimator):
    """Raw frames to numbers: every column as it was read in the table, dates counted from the
    table's first day.

    Columns may be missing or in another order. A category that the table did not have counts as
    none of its own, or where the table had two as the more frequent.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn nothing: the columns are known."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: Any) -> Array:
        """Return the columns of numbers [n, d], NaN where a value is missing."""
        frame = frame_of(X, [column.name for column in self.columns]).reset_index(drop=True)
        nothing = pd.Series([None] * len(frame), dtype=object)
        return np.hstack(
            [column.numbers(frame.get(column.name, nothing)) for column in self.columns]
        )

    def told(self, frame: pd.DataFrame) -> list[str]:
        """Return what a frame lacks: columns that are not there, and values that are not as in the
        table.
        """
        said = []
        for column in self.columns:
            if column.name not in frame.columns:
                said.append(f"column {column.name} is not there; every row counts as missing in it")
            elif n := column.n_unread(frame[column.name]):
                what = (
                    "none of its categories there"
                    if column.levels
                    else f"not read as a {column.kind} there"
                )
                said.append(
                    f"column {column.name}: {n:,} of {len(frame):,} values are unlike the table's,"
                    f" {what}"
                )
        return said


def train_model(results: Comparison) -> Pipeline:
    """Return the winner, trained anew on all rows of the table: the arm with its whole search."""
    design, best = results.design, results.answer().best.name
    arm = next(arm for arm in results.arms if arm.name == best)
    everything = Trainer.of(design)
    y: Any = everything.y
    if design.target.classes:
        values = np.array(design.target.values)
        y = values[everything.y]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as while it was compared
            model = everything.fit(arm, np.arange(len(y)), 0, y=y)
    except Exception as error:  # of anyone's estimator
        raise LabError(
            f"{arm.label} could not be trained on all rows: {sentence(str(error), 300)}"
        ) from error
    columns = ReadColumns([column for column in design.columns if column.names])
    return Pipeline([("table", columns), *model.steps])


# Files


def save(model: Pipeline, directory: Path, about: Mapping[str, Any]) -> str:
    """Write a model by skops, and what it is as JSON; return why it cannot be kept, or nothing."""
    import skops.io

    last = model[-1]
    if isinstance(last, NetworkCV) and not isinstance(last.loss, str):  # it stays with its owner
        last = copy.copy(last).set_params(loss=last.loss.loss)
    try:
        data = skops.io.dumps(Pipeline([*model.steps[:-1], ("model", last)]))
        skops.io.get_untrusted_types(data=data)
    except Exception as error:  # of anyone's estimator
        return f"The model is not kept: skops cannot write it ({sentence(str(error), 200)})."
    write_bytes(directory / ESTIMATOR, data)
    described = {"rlploss": __version__, **about}
    write_text(directory / FILE, json.dumps(described, indent=1, ensure_ascii=False) + "\n")
    return ""


def load(directory: str | Path, *, trust: Collection[str] = ()) -> Pipeline:
    """Return the model that a comparison kept in a directory: a Pipeline that predicts from raw
    frames.

    Nothing in the directory is run: it holds numbers, and objects only of types that are known, or
    of packages that you `trust`.

    >>> from rlploss.compare import compare
    >>> from tempfile import TemporaryDirectory
    >>> X = [[i % 7, i % 5] for i in range(70)]
    >>> found = compare(X, [a + 2 * b + 0.5 for a, b in X], arms=["ridge", "mean"], n_splits=2)
    >>> with TemporaryDirectory() as directory:
    ...     page = found.write(directory)
    ...     load(directory).predict([[3, 4]]).round(1)
    array([11.5])
    """
    place = Path(directory)
    place = place / "model" if (place / "model" / FILE).exists() else place
    if not os.path.lexists(place / FILE):
        raise TableError(
            f"{directory} holds no model; give the directory that `rlploss compare` wrote"
        )
    try:
        described = json.loads(read_bytes(place / FILE, LARGEST // 32))
        if "columns" in described:
            raise OlderModelError
        model = load_estimator(read_bytes(place / ESTIMATOR, LARGEST), trust)
        names = [column.name for column in model[0].columns]
        model.predict(
            pd.DataFrame({name: [None, "1", "a"] for name in names})
        )  # whether its parts fit
    except OlderModelError:
        raise TableError(
            f"the model in {place} was kept by an older rlploss, which this version cannot read;"
            " run `rlploss compare` again"
        ) from None
    except UntrustedError as error:
        raise TableError(
            f"the model in {place} must hold only what rlploss saves, got {error}; make it anew, or"
            " name the package that you trust with --trust"
        ) from error
    except Exception as error:  # each format has its own for damaged files
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise TableError(f"the model in {place} cannot be read ({why}); make it anew") from error
    return model
