"""What the paper published: its tables, protocol, hyperparameters and claims, from `published.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple


@cache
def data(file: str = "published.toml") -> dict[str, Any]:
    """The whole of a data file of this package."""
    return tomllib.loads(resources.files("rlploss.paper").joinpath(file).read_text(encoding="utf-8"))


REGRESSION, IMAGES = ("california", "wine", "linear", "nonlinear"), ("mnist", "cifar10")
DATASETS: dict[str, str] = {name: data("report.toml")["titles"][name] for name in (*REGRESSION, *IMAGES)}
Pairs = tuple[tuple[str, str], ...]  # names of arms: ours, theirs


class Value(NamedTuple):
    """A published mean and standard deviation."""

    mean: float
    sd: float


class Hyper(NamedTuple):
    """One row of the hyperparameter tables; `weight_decay` is that of the +L2 arm, `psi` mixup's shape."""

    optimizer: str
    lr: float
    weight_decay: float | None = None
    psi: float | None = None


@dataclass(frozen=True)
class PublishedClaim:
    """What the paper says, and what decides whether we find it too; `published.toml` explains the fields."""

    id: str
    text: str
    rule: str
    studies: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    pairs: Pairs = (("rlp", "mse"), ("rlp", "mse_l2"))
    metrics: tuple[str, ...] = ("mse",)
    faster: Pairs = ()
    epochs: tuple[int, ...] = ()
    level: float = 0.0
    below: float = 0.0
    above: float = 0.0
    note: str = ""
    scope: str = ""
    beside: Mapping[str, Any] = field(default_factory=dict)

    @property
    def baselines(self) -> tuple[str, ...]:
        """The arms that RLP is compared with."""
        return tuple(theirs for _, theirs in self.pairs)


def frozen(value: Any) -> Any:
    """The same data with tuples instead of lists."""
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value


def value(table: str, dataset: str, trained: str, measured: str) -> Value | None:
    """A value of "table1" or "table2": test error of the network trained with one loss and measured with another."""
    content, column = data()[table], f"{trained}/{measured}"
    if dataset not in content or column not in content["columns"]:
        return None
    return Value(*content[dataset][content["columns"].index(column)])


def epochs(dataset: str) -> int:
    """Epochs of Table 1."""
    return int(data()["table1"]["epochs"][dataset])


def protocol(name: str) -> dict[str, Any]:
    """What the tables do not say: sizes and epochs of a family of experiments."""
    return dict(data()["protocol"][name])


def adamw_weight_decay() -> float:
    """AdamW's weight decay wherever the hyperparameter table does not change it."""
    return float(data()["protocol"]["adamw_weight_decay"])


def hyper(dataset: str, experiment: str) -> Hyper:
    """Optimiser and rates of one dataset and experiment."""
    return Hyper(**data()["hyperparameters"][dataset][experiment])


def hyper_rows() -> list[tuple[str, str, Hyper]]:
    """Both hyperparameter tables: dataset, experiment, values."""
    found = data()["hyperparameters"]
    return [(dataset, experiment, hyper(dataset, experiment)) for dataset in found for experiment in found[dataset]]


@cache
def claims() -> tuple[PublishedClaim, ...]:
    """Every claim, in the order of the text."""
    return tuple(PublishedClaim(**frozen(row)) for row in data()["claim"])


def words_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts, with those of `report.toml` instead of their keys."""
    shared = data("report.toml")["words"]
    return tuple(shared.get(text, text) for text in texts)
