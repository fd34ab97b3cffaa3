"""What the paper published: its tables, protocol, hyperparameters and claims, from `published.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

DATASETS = {
    "california": "California",
    "wine": "Wine",
    "linear": "Linear",
    "nonlinear": "Nonlinear",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
}
REGRESSION = ("california", "wine", "linear", "nonlinear")
IMAGES = ("mnist", "cifar10")


@dataclass(frozen=True)
class Value:
    """A published mean and standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True)
class Hyper:
    """One row of the hyperparameter tables; `weight_decay` is that of the +L2 arm, `psi` mixup's shape."""

    optimizer: str
    lr: float
    weight_decay: float | None = None
    psi: float | None = None


@cache
def data() -> dict[str, Any]:
    """The whole file."""
    text = resources.files("rlploss.paper").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def table1(dataset: str, trained: str, measured: str) -> Value | None:
    """Table 1: test error of the network trained with one loss and measured with another."""
    return _cell("table1", dataset, f"{trained}/{measured}")


def table2(dataset: str, trained: str) -> Value | None:
    """Table 2: test MSE with 50 training examples."""
    return _cell("table2", dataset, trained)


def _cell(table: str, dataset: str, column: str) -> Value | None:
    content = data()[table]
    if dataset not in content or column not in content["columns"]:
        return None
    return Value(*content[dataset][content["columns"].index(column)])


def epochs(dataset: str) -> int:
    """Epochs of Table 1."""
    return int(data()["table1"]["epochs"][dataset])


def subsets(experiment: str) -> int:
    """Number of subsets K of an experiment."""
    return int(data()["protocol"]["subsets"][experiment])


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
    return [
        (dataset, experiment, Hyper(**values))
        for dataset, experiments in data()["hyperparameters"].items()
        for experiment, values in experiments.items()
    ]


def claims() -> list[tuple[str, str]]:
    """(id, text) of every claim, in order."""
    return [(claim["id"], claim["text"]) for claim in data()["claim"]]
