"""Define objectives as values: the losses that training minimises, and how they divide rows into
steps.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlploss._checks import count, n_different, named, number, one_of, outside, plan_sizes, positive
from rlploss._values import Value, from_json, loaded_by_path, put
from rlploss.loss.planes import PlaneForm
from rlploss.loss.subsets import METHODS


def count_or_all(name: str, value: object) -> int | str:
    """Check a number of rows or subsets in a step, or "all"."""
    return "all" if value == "all" else count(name, value)


class Objective(Value, ABC):
    """What training minimises. The rows and steps of an epoch are known once it is resolved."""

    loss: ClassVar[str]  # the name of the formula
    mixup: float | None = None  # ψ of Beta(ψ, ψ); None: rows are not mixed

    @abstractmethod
    def resolve(self, n_rows: int, n_features: int) -> Objective:
        """Return the same objective with every default filled in for N rows of d features."""

    @abstractmethod
    def shape(self) -> tuple[int, int | None, int]:
        """Return the rows in a unit (a row or a subset), the units in an epoch (None: one for each
        row), and the units in a step.
        """

    @property
    def rows_per_step(self) -> int:
        """The number of rows read in one step; the last step of an epoch may read fewer."""
        unit, _, in_step = self.shape()
        return unit * in_step

    def steps_per_epoch(self, n_rows: int) -> int:
        """Return the number of optimiser steps in one epoch."""
        _, in_epoch, in_step = self.shape()
        return -(-(in_epoch or n_rows) // in_step)

    def samples(self, step: int, n_rows: int) -> int:
        """Return the number of rows read in the first `step` steps."""
        unit, in_epoch, in_step = self.shape()
        epochs, rest = divmod(step, self.steps_per_epoch(n_rows))
        return unit * (epochs * (in_epoch or n_rows) + rest * in_step)

    def _resolved(self, size: int | str | None) -> int:
        if not isinstance(size, int):
            raise ValueError(
                f"{self!r} depends on the table until it is resolved; call resolve(n_rows,"
                " n_features)"
            )
        return size


@dataclass(frozen=True, repr=False)
class RLP(Objective):
    """The Random Linear Projections loss: planes through subsets of the rows.

    Args:
        subset_size: M, rows per subset. Default min(100, N // 2), raised to p + 2 where N allows.
        n_subsets: K, subsets in a plan. Default 1000, capped at the number of different subsets.
        subsets_per_step: a number of subsets, or "all" (Algorithm 2). Default 1.
        probe: where the planes are compared: "subset", "draw", "expected" or "sum"; see `rlp_loss`.
        intercept: whether planes have an offset. Default True, except for probe="sum", where the
            loss would see the mean residual only.
        ridge: λ ≥ 0, the penalty of the planes.
        draw_from: the rows from which a point is drawn: "train" is all rows, "outside" those not in
            the subset.
        method: how subsets are drawn, "balanced" or "paper" (Algorithm 1 to the letter); see
            `balanced_subsets`.
        plan: "once" keeps one plan for the whole run, "each-epoch" draws a new one.
        mixup: ψ of Beta(ψ, ψ), from which λ is drawn for each pair of subsets (Algorithm 3).
            Default: no mixup.
        float32_cutoff: the loss of the paper's released autoencoder, which drops directions; see
            `RLP.released`.

    >>> RLP(subset_size=85).resolve(n_rows=100, n_features=5)  # what fit makes of it
    RLP(85, n_subsets=1000, subsets_per_step=1, intercept=True)
    """

    loss: ClassVar[str] = "rlp"
    subset_size: int | None = None
    n_subsets: int | None = None
    _: KW_ONLY
    subsets_per_step: int | str | None = None
    probe: str = "subset"
    intercept: bool | None = None
    ridge: float = 0.0
    draw_from: str = "train"
    method: str = "balanced"
    plan: str = "once"
    mixup: float | None = None
    float32_cutoff: bool = False

    checks: ClassVar = {
        "subset_size": count,
        "n_subsets": count,
        "subsets_per_step": count_or_all,
        "method": partial(one_of, options=METHODS),
        "plan": partial(one_of, options=("once", "each-epoch")),
        "mixup": positive,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        planes = self.planes  # creating them checks the form
        put(self, "ridge", planes.ridge)
        put(self, "intercept", None if self.intercept is None else planes.intercept)
        if self.mixup is not None and self.draw_from == "outside":
            raise ValueError(
                'draw_from="outside" has no meaning with mixup, whose rows are in no subset; use'
                ' "train"'
            )
        plain = planes.is_projection and not planes.intercept and self.plan == "once"
        if self.float32_cutoff and not (plain and self.mixup is None):
            raise ValueError(
                "float32_cutoff=True is the loss of one released program, which has"
                ' probe="subset", intercept=False, ridge=0, plan="once" and no mixup, got'
                f" {self!r}; use RLP.released(..., float32_cutoff=True)"
            )

    @property
    def planes(self) -> PlaneForm:
        """The planes that are fitted, and the points where they are compared.

        NOTE[DIFF]: in the paper's formulas planes have no offset. Here they have one by default,
        except for probe="sum".
        """
        return PlaneForm(self.probe, self.intercept, ridge=self.ridge, draw_from=self.draw_from)

    @classmethod
    def paper(
        cls,
        subset_size: int | None = None,
        n_subsets: int | None = None,
        *,
        mixup: float | None = None,
    ) -> RLP:
        """Return Algorithm 2 as printed, or with mixup Algorithm 3: one step per epoch on all
        subsets of one plan.
        """
        return cls(
            subset_size,
            n_subsets,
            subsets_per_step="all",
            probe="draw" if mixup is None else "sum",
            intercept=False,
            method="paper",
            mixup=mixup,
        )

    @classmethod
    def released(
        cls,
        subset_size: int | None = None,
        n_subsets: int | None = None,
        *,
        mixup: float | None = None,
        float32_cutoff: bool = False,
    ) -> RLP:
        """Return the loop behind the published numbers: one step per subset, planes without an
        offset.

        NOTE[DIFF]: the released batch generator loses a block when M divides N and may never
        return; subsets here are drawn by method="balanced", which keeps what that generator
        promises.
        """
        return cls(
            subset_size,
            n_subsets,
            subsets_per_step=1,
            intercept=False,
            mixup=mixup,
            float32_cutoff=float32_cutoff,
        )

    def resolve(self, n_rows: int, n_features: int) -> RLP:
        """Fill in M, K and the subsets per step.

        M is the paper's 100, or half of the rows if that is less, but at least p + 2. Up to M = p
        the subset probe equals MSE, and at M = p + 1 an independent probe has no finite mean.
        """
        size, planes = self.subset_size, self.planes
        if size is None:
            size = max(1, min(100, n_rows // 2))
            smallest = planes.n_columns(n_features) + 2
            if size < smallest <= n_rows - int(planes.draw_from == "outside"):
                size = smallest
        K = self.n_subsets or min(1000, n_different(n_rows, min(size, n_rows)))
        plan_sizes(n_rows, size, K)  # refuses impossible sizes
        outside(planes.draw_from, size, n_rows)  # refuses subsets without rows outside
        per_step = K if isinstance(self.subsets_per_step, str) else self.subsets_per_step or 1
        if per_step > K:
            raise ValueError(
                f"subsets_per_step must be at most n_subsets = {K}, got {per_step}; lower it"
            )
        return replace(
            self,
            subset_size=size,
            n_subsets=K,
            subsets_per_step=per_step,
            intercept=planes.intercept,
        )

    def shape(self) -> tuple[int, int, int]:
        """Return M, K and the subsets per step of a resolved value."""
        M, K, k = map(self._resolved, (self.subset_size, self.n_subsets, self.subsets_per_step))
        return M, K, k


@dataclass(frozen=True, repr=False)
class TwoSpeed(Objective):
    """MSE at two speeds: in full for the part linear in the features, and κ times for the
    rest.

    It is RLP averaged over all subsets, without a draw: see `two_speed_loss`. κ = 1 is MSE, κ = 0
        is RLP of all rows as one subset. With batches the planes are fitted to each batch, which
        acts like κ + (1 − κ)·kappa(batch_size, n_rows, n_columns) on all rows.

    Args:
        kappa: κ in [0, 1]; `kappa(M, N, p)` is that of RLP with subsets of M rows.
        batch_size: rows in a step, drawn again in every epoch, or "all".
        n_batches: steps in an epoch. Default: as many as contain all rows.

    >>> TwoSpeed(0.25).resolve(n_rows=100, n_features=5)  # what fit makes of it
    TwoSpeed(0.25, batch_size=100, n_batches=1)
    """

    loss: ClassVar[str] = "two_speed"
    kappa: float
    batch_size: int | str = "all"
    _: KW_ONLY
    n_batches: int | None = None

    checks: ClassVar = {
        "kappa": partial(number, minimum=0.0, maximum=1.0),
        "batch_size": count_or_all,
        "n_batches": count,
    }

    @property
    def batches(self) -> RLP:
        """The batches as the subsets of an RLP objective."""
        return RLP(
            self._resolved(self.batch_size),
            self.n_batches,
            subsets_per_step=1,
            intercept=True,
            plan="once" if self.n_batches == 1 else "each-epoch",
        )

    def resolve(self, n_rows: int, n_features: int) -> Objective:
        """Fill in the sizes; κ = 1 is MSE, which needs no planes."""
        if self.kappa == 1:
            return MSE(self.batch_size).resolve(n_rows, n_features)
        size = n_rows if isinstance(self.batch_size, str) else min(self.batch_size, n_rows)
        return replace(self, batch_size=size, n_batches=self.n_batches or -(-n_rows // size))

    def shape(self) -> tuple[int, int, int]:
        return self.batches.shape()


class OnBatches(Objective):
    """A loss on batches of rows, reshuffled every epoch: `batch_size` rows per step, or "all";
    default min(100, N).
    """

    checks: ClassVar = {"batch_size": count_or_all, "mixup": positive}
    batch_size: int | str | None

    def values(self, pred: Tensor, target: Tensor) -> Tensor:
        """Return the loss of every row [B], or of every output [B, C], for predictions and targets
        [B, C]; only losses that are means have it.
        """
        raise NotImplementedError

    def value(
        self, pred: Tensor, target: Tensor, features: Tensor, weight: Tensor | None
    ) -> Tensor:
        """Return the loss of a batch: the mean over rows and outputs, with row weights [B, 1]."""
        values: object = self.values(pred, target)
        if not isinstance(values, Tensor) or values.shape not in (pred.shape[:1], pred.shape):
            raise ValueError(
                f"a Pointwise function must return one value per row ({pred.shape[0]},) or per"
                f" output {tuple(pred.shape)}, got {_shown(values)}; leave out the mean"
            )
        values = values.unsqueeze(1) if values.ndim == 1 else values
        return (values if weight is None else values * weight).sum() / values.numel()

    def resolve(self, n_rows: int, n_features: int) -> Objective:
        size = n_rows if isinstance(self.batch_size, str) else min(self.batch_size or 100, n_rows)
        return replace(self, batch_size=size)  # type: ignore[type-var]  # every subclass is a dataclass

    def shape(self) -> tuple[int, None, int]:
        return 1, None, self._resolved(self.batch_size)


@dataclass(frozen=True, repr=False)
class RowLoss(OnBatches):
    """A mean over rows: `values` returns the loss of each row; `mixup` is ψ of Beta(ψ, ψ)."""

    batch_size: int | str | None = None
    _: KW_ONLY
    mixup: float | None = None


@dataclass(frozen=True, repr=False)
class MSE(RowLoss):
    """Mean squared error over rows and outputs, on batches of `batch_size` rows; `mixup` is ψ of
    Beta(ψ, ψ).

    >>> objective = MSE(50, mixup=0.2)  # for fit(net, X, y, objective, ...)
    """

    loss: ClassVar[str] = "mse"

    def values(self, pred: Tensor, target: Tensor) -> Tensor:
        return (pred - target).square()


@dataclass(frozen=True, repr=False)
class MAE(RowLoss):
    """Mean absolute error over rows and outputs, on batches of `batch_size` rows; `mixup` is ψ of
    Beta(ψ, ψ).

    >>> objective = MAE("all")  # for fit(net, X, y, objective, ...)
    """

    loss: ClassVar[str] = "mae"

    def values(self, pred: Tensor, target: Tensor) -> Tensor:
        return (pred - target).abs()


@dataclass(frozen=True, repr=False)
class Huber(RowLoss):
    """Mean of e²/2 up to |e| = delta, delta·(|e| − delta/2) beyond; `mixup` is ψ of Beta(ψ, ψ).

    >>> Huber(delta=0.5).values(torch.tensor([0.1, 3.0]), torch.zeros(2))
    tensor([0.0050, 1.3750])
    """

    loss: ClassVar[str] = "huber"
    checks: ClassVar = {**RowLoss.checks, "delta": positive}
    _: KW_ONLY
    delta: float = 1.0

    def values(self, pred: Tensor, target: Tensor) -> Tensor:
        return nn.functional.huber_loss(pred, target, reduction="none", delta=self.delta)


@dataclass(frozen=True, repr=False)
class CrossEntropy(RowLoss):
    """Cross entropy of logits against class numbers or probabilities; `mixup` is ψ of Beta(ψ, ψ).

    >>> CrossEntropy().values(torch.zeros(1, 4), torch.eye(4)[:1])  # log 4
    tensor([1.3863])
    """

    loss: ClassVar[str] = "cross_entropy"

    def values(self, pred: Tensor, target: Tensor) -> Tensor:
        return -(target * pred.log_softmax(1)).sum(1)


@dataclass(frozen=True, repr=False)
class BinaryCrossEntropy(RowLoss):
    """Cross entropy of each output separately, a probability (after a sigmoid), against 0 and 1."""

    loss: ClassVar[str] = "binary_cross_entropy"

    def values(self, pred: Tensor, target: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy(pred, target, reduction="none")


@dataclass(frozen=True, repr=False)
class _OwnLoss(OnBatches):
    """A loss that is a user's function of `arguments`."""

    arguments: ClassVar[tuple[str, ...]]
    function: Callable[..., Tensor]
    batch_size: int | str | None = None

    def __post_init__(self) -> None:
        """Refuse a function that does not accept the arguments; without a signature, the first step
        decides.
        """
        super().__post_init__()
        function, name = self.function, type(self).__name__
        wanted = f"{name} takes a function of ({', '.join(self.arguments)})"
        if not callable(function) or isinstance(function, type):
            remedy = f"; write {name}({function.__name__}())" if isinstance(function, type) else ""
            raise TypeError(f"{wanted}, got {function!r}{remedy}")
        called = function.forward if isinstance(function, nn.Module) else function
        try:
            inspect.signature(called).bind(*self.arguments)
        except TypeError as error:
            other = "BatchLoss" if name == "Pointwise" else "Pointwise"
            raise TypeError(
                f"{wanted}, got {function!r}, which does not ({error}); or do you mean {other}?"
            ) from None
        except ValueError:  # a built-in function without a signature
            pass
        if isinstance(function, nn.Module) and any(True for _ in function.parameters()):
            raise ValueError(
                f"a loss must have no parameters of its own to train, got {type(function).__name__}"
                " with some; put them into the model"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as JSON if the function comes from a file loaded by its path, which another
        process cannot import.
        """
        if loaded_by_path(self.function):
            return from_json, (self.to_json(),)
        return type(self), (self.function, self.batch_size)

    @property
    def has_generator(self) -> bool:
        """Whether the function holds a generator of its own, which checkpoints cannot store."""
        held = getattr(self.function, "__dict__", {})
        return any(isinstance(value, torch.Generator) for value in held.values())


@dataclass(frozen=True, repr=False)
class Pointwise(_OwnLoss):
    """A user's loss of single rows: a function (pred, target) [B, C] -> values [B] or [B, C].

    Values are averaged over rows and outputs, with the row weights. Class numbers are passed as
    one-hot rows.

    >>> loss = Pointwise(lambda pred, target: torch.log(torch.cosh(pred - target)), batch_size=50)
    """

    loss: ClassVar[str] = "pointwise"
    arguments: ClassVar[tuple[str, ...]] = ("pred", "target")

    def values(self, pred: Tensor, target: Tensor) -> Tensor:
        return self.function(pred, target)


@dataclass(frozen=True, repr=False)
class BatchLoss(_OwnLoss):
    """A user's loss of a batch: a function (pred, target, features) -> scalar, for example
    `RLPLoss()`.

    Features are flattened to [B, d]. Sample weights are refused, because the loss is not a sum over
    rows.

    >>> offset = lambda pred, target, features: (pred - target).mean().square()
    >>> bias = BatchLoss(offset, batch_size=50)
    """

    loss: ClassVar[str] = "batch"
    arguments: ClassVar[tuple[str, ...]] = ("pred", "target", "features")

    def value(
        self, pred: Tensor, target: Tensor, features: Tensor, weight: Tensor | None
    ) -> Tensor:
        value: object = self.function(pred, target, features)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ValueError(
                f"a BatchLoss function must return one number, got {_shown(value)}; take the mean"
            )
        return value.reshape(())


def _shown(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


NAMES: dict[str, Callable[..., Objective]] = {
    kind.loss: kind for kind in (RLP, MSE, MAE, Huber, CrossEntropy)
}


def as_objective(value: object) -> Objective:
    """Read an objective: a value, or a name that stands for the value with its defaults."""
    objective = named("objective", value, Objective, NAMES)
    if not isinstance(objective, Objective):
        hint = "; wrap a function of your own in Pointwise or BatchLoss" if callable(value) else ""
        raise TypeError(
            f"objective must be a value such as RLP() or MSE(), or its name, got {value!r}{hint}"
        )
    return objective
