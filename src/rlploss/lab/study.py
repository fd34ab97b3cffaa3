"""Describe a study as plain values: which arms are trained on which tasks, for what budget, with
what seeds.

An *arm* is a loss with an optimiser, a *task* a dataset with a network. The unit of work is a
*cell*: one arm on one task for one budget, with all its seeds. A cell is trained as one fleet and
stored in one transaction. Its identity is the SHA-256 of its canonical JSON. This has no names and
labels, so two tables that need the same training share one cell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Generic

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar  # torch depends on it; Python's own has defaults from 3.13 on

from rlploss import _checks
from rlploss._scaling import Array
from rlploss._values import Value, from_json, put
from rlploss.training.job import Epochs, OptimizerValue, Steps
from rlploss.training.objectives import BatchLoss, Objective, Pointwise, as_objective

Tell = Callable[[float], None]  # receives the fraction done, now and then


def canonical_json(value: Any) -> str:
    """Return plain data as JSON in its one canonical form: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    )


def as_loss(name: str, value: Any, taken: Iterable[str]) -> Objective:
    """Return a user's loss as an objective: a function of two arguments becomes `Pointwise`, one of
    three `BatchLoss`; an objective stays as it is.
    """
    if not name or name in taken:
        raise ValueError(
            f"a loss of your own needs a name that no arm has, got {name!r}; rename it"
        )
    if isinstance(value, Objective):
        return value
    try:
        return Pointwise(value)
    except TypeError as error:
        if not callable(value) or isinstance(value, type):
            raise TypeError(
                f"the loss {name!r} must be a function or a Pointwise or BatchLoss value; {error}"
            ) from None
        return BatchLoss(value)


def loss_json(name: str, loss: Any, taken: Iterable[str]) -> str:
    """Return a user's loss as JSON. Refuse the name of a known arm, and a loss that another process
    could not load.
    """
    text = canonical_json(as_loss(name, loss, taken).to_json())
    if '"where":null' in text:
        raise ValueError(
            f"the loss {name!r} must be a function at the top of a file, got {loss!r}; define it"
            " with def"
        )
    return text


def loss_options(losses: Iterable[tuple[str, str]]) -> list[str]:
    """Return the command-line options that name these losses."""
    wheres = [
        (name, json.loads(text).get("function", {}).get("where", "FILE.py"))
        for name, text in losses
    ]
    return [word for name, where in wheres for word in ("--loss", f"{where}:{name}")]


class Part(Value):
    """The base of arms, tasks and variants: frozen dataclasses that turn into JSON and back.

    A study may define arms and tasks of its own: the store and the workers use only what this class
    defines.
    """

    name: str
    # Fields that people read and that do not change a result.
    labels = frozenset({"name", "protocol"})
    timed = False  # whether the seconds are a result; such cells train alone, after all others
    variants: tuple[Any, ...] = (None,)  # levels of a task, trained together, each with every seed
    metrics: Any = ()  # what each curve of a task must have
    takes_steps: Any = True  # whether an arm is trained for the budget of its cell

    def to_json(self) -> dict[str, Any]:
        """Return all fields that decide a result as plain data, with the class under "kind"."""
        return {name: value for name, value in super().to_json().items() if name not in self.labels}

    @property
    def family(self) -> str:
        """A name for cells whose predicted cost is wrong by the same factor."""
        return ""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Arm(Part):
    """An objective and an optimiser. `protocol` names the column of a report, `output` the last
    layer.
    """

    name: str
    objective: Objective
    optimizer: OptimizerValue
    _: KW_ONLY
    protocol: str = ""
    output: str = "logits"

    def __post_init__(self) -> None:
        put(self, "objective", as_objective(self.objective))
        if not isinstance(self.optimizer, OptimizerValue):
            raise TypeError(
                "optimizer of an arm must be Adam(...), AdamW(...) or SGD(...), got"
                f" {self.optimizer!r}"
            )
        _checks.one_of("output", self.output, ("logits", "softmax", "sigmoid"))

    @property
    def family(self) -> str:
        """The objective, whether it uses mixup, and how many subsets a step takes."""
        steps = getattr(self.objective, "subsets_per_step", "")
        return f"{type(self.objective).__name__} {self.objective.mixup is None} {steps}"

    def __str__(self) -> str:
        return f"{self.protocol} · {self.name}" if self.protocol else self.name


@dataclass(frozen=True)
class Variant(Part):
    """One level of a sweep: a distribution shift γ, or noise β on the training features."""

    checks: ClassVar = {
        "shift": partial(_checks.number, minimum=0.0, maximum=1.0),
        "noise": partial(_checks.number, minimum=0.0, maximum=1e6),
    }

    shift: float | None = None
    noise: float | None = None


@dataclass(frozen=True)
class Task(Part):
    """A dataset, how it is split, and a network. `variants`, such as a sweep over γ, train in one
    fleet, each with every seed.
    """

    checks: ClassVar = {
        "model": partial(_checks.one_of, options=("regression", "autoencoder", "lenet5", "moons")),
        "region": partial(_checks.one_of, options=("paper", "mahalanobis")),
        "scaling": partial(_checks.one_of, options=("standard",)),
        "keep": partial(_checks.one_of, options=("reconstructions", "boundary")),
        "n_train": _checks.count,
        "n_test": _checks.count,
        "held_out": partial(_checks.number, minimum=0.0, maximum=1.0),
    }

    name: str  # for tables and messages
    dataset: str  # a name that `rlploss.datasets.load` knows
    model: str  # which network
    _: KW_ONLY
    n_train: int | None = None  # training rows; None: half of all
    n_test: int | None = None  # test rows; None: the rest
    first: bool = False  # whether to take the first rows instead of random ones
    region: str | None = None  # where a shift takes rows from; None: "paper"
    scaling: str | None = None  # "standard" standardises the features; None leaves them
    held_out: float | None = None  # share of the training rows that replaces the test rows
    metrics: tuple[str, ...] = ("mse",)  # evaluated on the test rows
    keep: str | None = None  # which pictures of the first seed to store
    timed: bool = False
    variants: tuple[Variant, ...] = (Variant(),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.variants:
            raise ValueError(
                f"task {self.name!r} needs at least one variant, got none; leave it out for a plain"
                " task"
            )

    @property
    def family(self) -> str:
        return self.model


A = TypeVar("A", bound=Part, default=Arm)
T = TypeVar("T", bound=Part, default=Task)


@dataclass(frozen=True)
class Cell(Generic[A, T]):
    """One arm on one task for one budget, with all its seeds, evaluated every `evaluate_every`
    epochs or steps of the budget.
    """

    arm: A
    task: T
    budget: Epochs | Steps
    seeds: tuple[int, ...]
    _: KW_ONLY
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Epochs | Steps):
            raise TypeError(f"budget must be Epochs(n) or Steps(n), got {self.budget!r}")
        _checks.count("evaluate_every", self.evaluate_every)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(
                f"a cell needs distinct seeds, at least one, got {self.seeds!r}; give each seed"
                " once"
            )

    def spec(self) -> dict[str, Any]:
        """Return everything that decides the result, as plain data."""
        return {
            "arm": self.arm.to_json(),
            "task": self.task.to_json(),
            "budget": self.budget.to_json(),
            "evaluate_every": self.evaluate_every,
            "seeds": list(self.seeds),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> AnyCell:
        """Return the cell of a stored spec. Its names are empty, because a spec has none."""
        named = {name: {"name": ""} | spec[name] for name in ("arm", "task")}
        return cls(
            **{name: from_json(part, functions=False) for name, part in {**spec, **named}.items()}
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of `spec()`."""
        return hashlib.sha256(canonical_json(self.spec()).encode()).hexdigest()

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(variant, seed) of every network, in the order in which they are trained."""
        return [
            (variant, seed) for variant in range(len(self.task.variants)) for seed in self.seeds
        ]

    @property
    def n_replicas(self) -> int:
        """The number of networks: seeds × variants."""
        return len(self.keys)

    def __str__(self) -> str:
        budget = f" · {self.budget.n:,} {type(self.budget).__name__.lower()}"
        return f"{self.task} · {self.arm}{budget * bool(self.arm.takes_steps)}"


AnyCell = Cell[Any, Any]  # of any arm and task


def distinct(cells: Iterable[Cell[A, T]]) -> list[Cell[A, T]]:
    """Return the first cell of each hash, in order."""
    return list({cell.hash: cell for cell in reversed(list(cells))}.values())[::-1]


# Results of a cell: as trained, and as read from the store


@dataclass(frozen=True)
class TrainedNetwork:
    """One seed of one variant: its curve (one list for each axis and metric), single numbers, and
    arrays.
    """

    seed: int
    variant: int
    curve: Mapping[str, list[float]]
    seconds: float
    values: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class CellResult:
    """All networks of a cell, and how they were trained."""

    networks: tuple[TrainedNetwork, ...]
    engine: str  # the engine of `fit_fleet` that trained them, or "none"
    threads: int
    seconds: float
    notes: tuple[str, ...] = ()  # warnings of the training, each once
    objectives: tuple[
        dict[str, Any], ...
    ] = ()  # with their defaults filled in, as JSON: one, or one per variant


Train = Callable[[AnyCell, Tell], CellResult]


@dataclass(frozen=True)
class StoredCell:
    """A cell read from the store: the networks and the provenance of the row."""

    networks: tuple[TrainedNetwork, ...]
    provenance: Mapping[str, Any]
    seconds: float

    def of_variant(self, variant: int = 0) -> list[TrainedNetwork]:
        """Return the networks of one variant, ordered by seed."""
        return sorted((n for n in self.networks if n.variant == variant), key=lambda n: n.seed)

    def has(self, name: str) -> bool:
        """Return whether every network has this metric or number."""
        return all(name in network.curve or name in network.values for network in self.networks)

    def matrix(self, metric: str, variant: int = 0) -> Array:
        """Return the metric's curve of every seed: [seeds, points]."""
        return np.array(
            [network.curve[metric] for network in self.of_variant(variant)], dtype=np.float64
        )

    def axis(self, name: str, variant: int = 0) -> Array:
        """Return "step", "epoch", "samples" or "seconds" at every point: [points], the mean over
        seeds, which differ in seconds only.
        """
        return self.matrix(name, variant).mean(axis=0)  # type: ignore[no-any-return]  # a mean over an axis is an array

    def final(self, name: str, variant: int = 0) -> Array:
        """Return the last value of a metric's curve, or the single number of this name: [seeds]."""
        networks = self.of_variant(variant)
        return np.array(
            [n.values[name] if name in n.values else n.curve[name][-1] for n in networks],
            dtype=np.float64,
        )

    def mean(self, name: str, variant: int = 0) -> float:
        """Return the mean of `final` over seeds."""
        return float(self.final(name, variant).mean())

    def at(self, metric: str, axis: str, value: float, variant: int = 0) -> Array:
        """Return the metric at the last evaluation with axis ≤ value, or NaN: [seeds]."""
        points = np.flatnonzero(self.axis(axis, variant) <= value)
        matrix = self.matrix(metric, variant)
        return matrix[:, points[-1]] if points.size else np.full(len(matrix), np.nan)
