"""A model to keep: a scikit-learn Pipeline from raw frames to predictions, saved without pickle and
loaded again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import nn

from rlploss import __version__
from rlploss._files import read_bytes, write_bytes, write_text
from rlploss._scaling import Array
from rlploss._trusted import UntrustedError, load_estimator
from rlploss.compare.arms import LARGE
from rlploss.compare.columns import Column
from rlploss.compare.comparison import frame_of
from rlploss.compare.design import Class
from rlploss.compare.read import TableError
from rlploss.compare.rows import FillAndScale, TargetScale
from rlploss.compare.train import fit_model, network_problem, outputs, with_trees
from rlploss.lab.text import LabError
from rlploss.models import Skip, WeightedMean
from rlploss.training.job import Steps
from rlploss.training.loop import DivergenceError

if TYPE_CHECKING:
    from rlploss.compare.answer import Comparison

FILE, WEIGHTS, ESTIMATOR = "model.json", "weights.safetensors", "estimator.skops"
LARGEST = 2**31  # bytes of a file of a model
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda z: np.maximum(z, 0),
    "tanh": np.tanh,
    "sigmoid": expit,
    "identity": lambda z: z,
    "softmax": lambda z: softmax(z, axis=1),
}


@dataclass(frozen=True)
class ReadColumns:
    """Raw frames to numbers: every column as it was read in the table, dates counted from the
    table's first day.

    Columns may be missing or in another order. A category that the table did not have counts as
    none of its own, or where the table had two as the more frequent.
    """

    columns: Sequence[Column]

    def __call__(self, X: Any) -> Array:
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


@dataclass(frozen=True)
class Chain:
    """A network as arrays: layers of weights [out, in] and offsets [out], each with what follows
    it.
    """

    layers: tuple[tuple[Array, Array], ...]
    activations: tuple[str, ...]
    share: float = 1.0  # in a mean of networks

    @classmethod
    def of(cls, network: nn.Module, share: float = 1.0) -> Chain:
        """Return a sequence of linear layers and activations as arrays."""
        layers, names = [], []
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                layers.append(
                    (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
                )
                names.append("identity")
            elif type(layer).__name__.lower() in ACTIVATIONS:
                names[-1] = type(layer).__name__.lower()
        return cls(tuple(layers), tuple(names), share)

    def __call__(self, X: Array) -> Array:
        """Return the outputs [n, C]."""
        for (weight, offset), name in zip(self.layers, self.activations, strict=True):
            X = ACTIVATIONS[name](X @ weight.T + offset)
        return X


class Kept(BaseEstimator):
    """The last step: networks or a model of scikit-learn, and the way back to the target's own
    units or classes.
    """

    def __init__(
        self, model: Any, target: TargetScale, classes: Sequence[Class], logits: bool = False
    ) -> None:
        self.model, self.target, self.classes, self.logits = model, target, classes, logits

    def fit(self, X: Any, y: Any = None) -> Self:
        """Refuse: this model is trained; a new comparison trains another."""
        raise TypeError(
            "this model is trained already; run compare on the new table to train another"
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the columns of `predict_proba`."""
        return np.array(self.classes)

    def predict_proba(self, X: Array) -> Array:
        """Return probabilities [n, C] of the classes."""
        return self._predicted(X)

    def _predicted(self, X: Array) -> Array:
        if isinstance(self.model, tuple):
            out = np.asarray(sum(chain.share * chain(X) for chain in self.model))
        else:
            (out,) = outputs(self.model, X, len(self.classes))
        return self.target.original(out, logits=self.logits)

    def predict(self, X: Array) -> NDArray[Any]:
        """Return numbers in the target's own units, or classes."""
        found = self._predicted(X)
        return np.asarray(self.classes_[found.argmax(axis=1)]) if len(self.classes) else found[:, 0]


def train_model(found: Comparison) -> Pipeline:
    """Return the winner, trained on all rows of the table with the setting that it chose most
    often.

    Steps, or trees of boosting, are the median of those chosen with it. Windows of time and groups
    leave some splits more training rows than others. Boosting tries other settings with many rows,
    so splits on the same side of that number as the largest decide, whatever the winner.
    """
    design, best = found.design, found.answer().best.name
    one = next(one for one in found.contenders if one.name == best)
    final = found.cells[best].final
    y = design.target.y
    numbers = FillAndScale.of(design.X)
    X = numbers(design.X)
    n_train = final("n_train")
    alike = (n_train > LARGE) == (n_train.max() > LARGE)
    chosen = final("setting")
    setting = int(Counter(chosen[alike]).most_common(1)[0][0])
    taken = alike & (chosen == setting)
    steps = sorted(final("best_step")[taken])
    n_steps = int(steps[len(steps) // 2])
    in_logs = bool(final("log")[taken][0])
    target = TargetScale.of(y, log=in_logs, n_classes=len(design.target.classes))
    if one.model:
        model, _ = found.rows.tries(one, int(n_train.max()), 0)[setting]
        kept = fit_model(with_trees(model, n_steps), X, target.scaled(y))
        kept = _members(kept) if one.model == "rlp-cv" else kept
    else:
        problem = network_problem(found.rows.settings(one)[setting], X, target.matrix(y), 0)
        try:
            (history,) = found.rows.fit(one, [(problem, Steps(n_steps))], lambda _: None)
        except DivergenceError as error:
            raise LabError(f"{one.label} could not be trained on all rows: {error}") from error
        assert history.model is not None
        kept = (Chain.of(history.model),)
    columns = ReadColumns([column for column in design.columns if column.names])
    last = Kept(kept, target, design.target.values, one.gives_logits)
    return _pipeline(columns, numbers, last)


def _pipeline(columns: ReadColumns, numbers: FillAndScale, last: Kept) -> Pipeline:
    first, second = FunctionTransformer(columns), FunctionTransformer(numbers)
    return Pipeline([("columns", first), ("numbers", second), ("model", last)])


def _members(fitted: Any) -> tuple[Chain, ...]:
    """Return the networks of `RLPRegressorCV`, with its scaling put into their first and last
    layers.
    """
    s, network = fitted.scaling_, fitted.network_
    members, shares = [network], [1.0]
    if isinstance(network, WeightedMean):
        members, shares = list(network.networks), network.weights.tolist()
    found = []
    for member, share in zip(members, shares, strict=True):
        parts = [member.plane, member.network] if isinstance(member, Skip) else [member]
        for part, mean in zip(
            parts, (s.y_mean, 0 * s.y_mean), strict=False
        ):  # the offset counts once
            chain = Chain.of(part, share)
            layers = list(chain.layers)
            weight, offset = layers[0]
            layers[0] = weight / s.x_scale, offset - weight @ (s.x_mean / s.x_scale)
            weight, offset = layers[-1]
            layers[-1] = weight * s.y_scale[:, None], offset * s.y_scale + mean
            found.append(replace(chain, layers=tuple(layers)))
    return tuple(found)


# Files


def save(model: Pipeline, directory: Path, about: Mapping[str, Any]) -> None:
    """Write a model: JSON for columns and scaling, safetensors for networks, skops for
    scikit-learn's own.
    """
    columns, numbers, last = model[0].func, model[1].func, model[2]
    networks = last.model if isinstance(last.model, tuple) else ()
    kept: dict[str, Any] = {
        "rlploss": __version__,
        **about,
        "columns": [asdict(column) for column in columns.columns],
        "numbers": {name: values.tolist() for name, values in vars(numbers).items()},
        "target": asdict(last.target),
        "classes": list(last.classes),
        "logits": last.logits,
        "networks": [
            {"activations": chain.activations, "share": chain.share} for chain in networks
        ],
    }
    if networks:
        from safetensors.numpy import save as to_bytes

        arrays = {
            f"{i}.{j}.{name}": np.ascontiguousarray(array)
            for i, chain in enumerate(networks)
            for j, layer in enumerate(chain.layers)
            for name, array in zip(("weight", "offset"), layer, strict=True)
        }
        write_bytes(directory / WEIGHTS, to_bytes(arrays))
    else:
        import skops.io

        write_bytes(directory / ESTIMATOR, skops.io.dumps(last.model))
    write_text(directory / FILE, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def load(directory: str | Path) -> Pipeline:
    """Return the model that a comparison kept in a directory: a Pipeline that predicts from raw
    frames.

    Nothing in the directory is run: it holds numbers, and of scikit-learn's own objects only types
    that are known.

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
        kept = json.loads(read_bytes(place / FILE, LARGEST // 32))
        told: list[dict[str, Any]] = [
            {k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}
            for one in kept["columns"]
        ]
        columns = ReadColumns([Column(**one) for one in told])
        numbers = FillAndScale(
            **{name: np.array(values) for name, values in kept["numbers"].items()}
        )
        if kept["networks"]:
            model = _networks(place, kept["networks"])
        else:
            model = load_estimator(read_bytes(place / ESTIMATOR, LARGEST))
        last = Kept(model, TargetScale(**kept["target"]), tuple(kept["classes"]), kept["logits"])
        made = _pipeline(columns, numbers, last)
        made.predict(
            pd.DataFrame({column.name: [None, "1", "a"] for column in columns.columns})
        )  # whether its parts fit
    except UntrustedError as error:
        raise TableError(
            f"the model in {place} must hold only what rlploss saves, got {error}; make it anew"
        ) from error
    except Exception as error:  # each format has its own for damaged files
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise TableError(f"the model in {place} cannot be read ({why}); make it anew") from error
    return made


def _networks(place: Path, described: Sequence[Mapping[str, Any]]) -> tuple[Chain, ...]:
    from safetensors.numpy import load

    arrays, found = load(read_bytes(place / WEIGHTS, LARGEST)), []
    for i, one in enumerate(described):
        names = tuple(one["activations"])
        layers = tuple(
            (arrays[f"{i}.{j}.weight"], arrays[f"{i}.{j}.offset"]) for j in range(len(names))
        )
        found.append(Chain(layers, names, one["share"]))
    return tuple(found)
