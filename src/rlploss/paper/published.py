"""What the paper published: its tables, protocol, hyperparameters and claims, from
`published.toml`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple

Pairs = tuple[tuple[str, str], ...]  # names of arms: ours, theirs


class PublishedValue(NamedTuple):
    """A published mean and standard deviation, NaN where none was published."""

    mean: float
    sd: float = math.nan


class Hyper(NamedTuple):
    """One row of the hyperparameter tables; `weight_decay` is that of the +L2 arm, `psi` mixup's
    shape, and `table` the optimiser that Table 3 prints where the text names another.
    """

    optimizer: str
    lr: float
    weight_decay: float | None = None
    psi: float | None = None
    table: str = ""


@dataclass(frozen=True)
class PublishedClaim:
    """What the paper says, and what decides whether we find it too; `published.toml` explains the
    fields.
    """

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
    unstated: tuple[str, ...] = ()
    untested: str = ""
    strict: tuple[str, ...] = ()
    beside: Mapping[str, Any] = field(default_factory=dict)


def _frozen(value: Any) -> Any:
    """Return the same data with tuples instead of lists."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


PUBLISHED, REPORT = (  # all that the two data files say
    _frozen(
        tomllib.loads(resources.files("rlploss.paper").joinpath(file).read_text(encoding="utf-8"))
    )
    for file in ("published.toml", "report.toml")
)
EPOCHS: dict[str, int] = PUBLISHED["table1"]["epochs"]  # by dataset
DATASETS: dict[str, str] = {name: REPORT["titles"][name] for name in EPOCHS}  # of Tables 1 and 2
PROTOCOL: dict[str, Any] = PUBLISHED[
    "protocol"
]  # what the tables do not say: sizes and epochs of experiments
HYPER = {  # both hyperparameter tables, by dataset and experiment
    (dataset, experiment): Hyper(**row)
    for dataset, rows in PUBLISHED["hyperparameters"].items()
    for experiment, row in rows.items()
}
CLAIMS = tuple(PublishedClaim(**row) for row in PUBLISHED["claim"])  # in the order of the text
WORDS: dict[str, str] = REPORT["words"]


def value(table: str, dataset: str, trained: str, measured: str) -> PublishedValue | None:
    """Return a value of "table1", "table2" or "mae": the test error of the network trained with
    one loss and measured with another.
    """
    content, column = PUBLISHED[table], f"{trained}/{measured}"
    dataset = content.get("same", {}).get(dataset, dataset)
    if dataset not in content or column not in content["columns"]:
        return None
    return PublishedValue(*content[dataset][content["columns"].index(column)])


def words_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts, with those of `report.toml` instead of their keys."""
    return tuple(WORDS.get(text, text) for text in texts)
