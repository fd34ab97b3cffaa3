"""A model to keep: a scikit-learn Pipeline from raw frames to predictions, saved without pickle and
loaded again.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from rlploss import __version__
from rlploss._files import read_bytes, write_bytes, write_text
from rlploss._trusted import UntrustedError, load_estimator
from rlploss.compare.read import TableError
from rlploss.compare.train import Trainer
from rlploss.estimators.network_cv import NetworkCV
from rlploss.lab.text import LabError, sentence

if TYPE_CHECKING:
    from rlploss.compare.answer import Comparison

FILE, ESTIMATOR = "model.json", "model.skops"
LARGEST = 2**31  # bytes of a file of a model


class OlderModelError(Exception):
    """The model was kept by a version whose models were of another form."""


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
            return everything.fit(arm, np.arange(len(y)), 0, y=y)
    except Exception as error:  # of anyone's estimator
        raise LabError(
            f"{arm.label} could not be trained on all rows: {sentence(str(error), 300)}"
        ) from error


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
        rows = pd.DataFrame({column.name: [None, "1", "a"] for column in model[0].columns})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.predict(rows)  # whether its parts fit
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
