"""Everything that decides a run, checked and with every default filled in: `Recipe`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import nn
from torch.optim import Optimizer

from rlploss._checks import DRAW_FROM, count, number, one_of
from rlploss.loss.planes import PROBES
from rlploss.training.history import Budget, as_budget

OBJECTIVES = ("mse", "mae", "huber", "cross_entropy", "rlp", "mse+mixup", "cross_entropy+mixup", "rlp+mixup")
OPTIMIZERS = ("adam", "adamw", "sgd", "sgd_nesterov")
METHODS = ("balanced", "paper")
PLANS = ("once", "each-epoch")
SCHEDULES = ("cosine", "linear")

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
Schedule = Callable[[int, int], float]

# What a preset fixes, for plain RLP and for RLP with mixup. "all" subsets per step is one step per epoch.
# NOTE[DIFF]: the released batch generator loses a block when M divides N and may never return; "released" leaves
# `method` open, and its default "balanced" keeps what that generator promises.
_PAPER = {"draw_from": "train", "method": "paper", "plan": "once", "subsets_per_step": "all"}
_RELEASED = {"probe": "subset", "plan": "once", "subsets_per_step": 1}
_PLAIN = {"intercept": False, "ridge": 0.0}  # the paper's formulas have neither
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"rlp": {"probe": "draw", **_PAPER, **_PLAIN}, "rlp+mixup": {"probe": "sum", **_PAPER, **_PLAIN}},
    "released": {"rlp": {**_RELEASED, **_PLAIN}, "rlp+mixup": {**_RELEASED, **_PLAIN}},
    "released-autoencoder": {"rlp": {**_RELEASED, **_PLAIN}},
}


@dataclass(frozen=True)
class Recipe:
    """One run, fully decided. Fields that the objective has no use for are None."""

    objective: str
    budget: Budget
    n_rows: int
    seed: int
    optimizer: str
    lr: float | None  # None: the factory decides
    weight_decay: float
    momentum: float
    schedule: str | None
    clip_grad: float | None
    batch_size: int | None = None
    preset: str | None = None
    probe: str | None = None
    draw_from: str | None = None
    method: str | None = None
    plan: str | None = None
    intercept: bool = False
    ridge: float = 0.0
    subset_size: int | None = None
    n_subsets: int | None = None
    subsets_per_step: int | None = None
    mixup_alpha: float | None = None

    @cached_property
    def loss(self) -> str:
        """The objective without its mixup."""
        return self.objective.removesuffix("+mixup")

    @cached_property
    def mixup(self) -> bool:
        """Whether rows are mixed in pairs."""
        return self.objective.endswith("+mixup")

    @cached_property
    def rows_per_epoch(self) -> int:
        """Rows read in one epoch: N, or K·M for RLP."""
        if self.n_subsets is not None and self.subset_size is not None:
            return self.n_subsets * self.subset_size
        return self.n_rows

    @cached_property
    def rows_per_step(self) -> int:
        """Rows read in one step (the last step of an epoch may have fewer)."""
        if self.subsets_per_step is not None and self.subset_size is not None:
            return self.subsets_per_step * self.subset_size
        assert self.batch_size is not None  # one of the two is always set
        return self.batch_size

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch."""
        return -(-self.rows_per_epoch // self.rows_per_step)

    @cached_property
    def total_steps(self) -> int:
        """Optimiser steps in the whole budget."""
        return self.budget.steps(self.steps_per_epoch)

    def samples(self, step: int) -> int:
        """Rows read in the first `step` steps."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.rows_per_epoch + rest * self.rows_per_step

    def describe(self) -> dict[str, Any]:
        """The recipe as plain values, for History and for telling checkpoints apart."""
        kind = type(self.budget).__name__
        return {**asdict(self), "budget": f"{kind}({self.budget.n})"}


def make_recipe(
    objective: str,
    n_rows: int,
    n_features: int,
    *,
    budget: object,
    preset: str | None,
    probe: str | None,
    draw_from: str | None,
    method: str | None,
    plan: str | None,
    intercept: bool | None,
    ridge: float | None,
    subset_size: int | None,
    n_subsets: int | None,
    subsets_per_step: int | str | None,
    mixup_alpha: float | None,
    optimizer: str | OptimizerFactory,
    lr: float | None,
    weight_decay: float | None,
    momentum: float | None,
    batch_size: int | None,
    seed: int,
    schedule: str | Schedule | None,
    clip_grad: float | None,
) -> Recipe:
    """Check the settings of a run and fill in what was left open; None means "not given" throughout."""
    one_of("objective", objective, OBJECTIVES)
    common = _optimiser_part(optimizer, lr, weight_decay, momentum)
    common |= {
        "objective": objective,
        "budget": as_budget("budget", budget),
        "n_rows": n_rows,
        "seed": count("seed", seed, minimum=0),
        "schedule": _schedule_name(schedule),
        "clip_grad": None if clip_grad is None else positive("clip_grad", clip_grad),
    }
    mixed = objective.endswith("+mixup")
    if mixed:
        # NOTE[DIFF]: the paper gives its shape parameter per data set; 0.25 is the one of its regression tables
        common["mixup_alpha"] = positive("mixup_alpha", 0.25 if mixup_alpha is None else mixup_alpha)
    else:
        _no_meaning(objective, mixup_alpha=mixup_alpha)
    given = {
        "probe": probe,
        "draw_from": draw_from,
        "method": method,
        "plan": plan,
        "intercept": intercept,
        "ridge": ridge,
        "subsets_per_step": subsets_per_step,
    }
    sizes = {"subset_size": subset_size, "n_subsets": n_subsets}
    if not objective.startswith("rlp"):
        _no_meaning(objective, preset=preset, **given, **sizes)
        size = 100 if batch_size is None else count("batch_size", batch_size)
        return Recipe(**common, batch_size=min(size, n_rows))
    _no_meaning(objective, batch_size=batch_size)
    chosen = _with_defaults(_with_preset(objective, preset, given))
    if mixed and chosen["draw_from"] == "outside":
        raise ValueError(
            'draw_from="outside" has no meaning with mixup, whose rows are in no subset; use draw_from="train"'
        )
    chosen |= subset_sizes(
        n_rows,
        n_features + int(chosen["intercept"]),
        subset_size=subset_size,
        n_subsets=n_subsets,
        outside=chosen["draw_from"] == "outside" and chosen["probe"] in ("draw", "expected"),
    )
    if chosen["subsets_per_step"] == "all":
        chosen["subsets_per_step"] = chosen["n_subsets"]
    if chosen["subsets_per_step"] > chosen["n_subsets"]:
        raise ValueError(
            f"subsets_per_step must be at most n_subsets = {chosen['n_subsets']}, "
            f'got {chosen["subsets_per_step"]}; "all" takes every subset in each step'
        )
    return Recipe(**common, preset=preset, **chosen)


def subset_sizes(
    n_rows: int, n_columns: int, *, subset_size: int | None, n_subsets: int | None, outside: bool = False
) -> dict[str, int]:
    """Subset size M and number of subsets K, given or by default.

    M = min(100, N // 2), the paper's size where the rows allow it and half of them otherwise, raised to p + 2 where
    N allows: up to M = p the subset probe is MSE, and at M = p + 1 an independent probe has no finite mean.
    K = 1000 as in the paper, capped at the number of distinct subsets.
    """
    largest = n_rows - 1 if outside else n_rows
    if subset_size is None:
        size = max(1, min(100, n_rows // 2))
        if size < n_columns + 2 <= largest:
            size = n_columns + 2
    else:
        size = count("subset_size", subset_size)
        if size > n_rows:
            raise ValueError(f"subset_size must be at most the number of rows {n_rows}, got {size}")
    distinct = math.comb(n_rows, size)
    if n_subsets is None:
        return {"subset_size": size, "n_subsets": min(1000, distinct)}
    if count("n_subsets", n_subsets) > distinct:
        raise ValueError(
            f"n_subsets must be at most {distinct}, the number of distinct subsets of {size} of {n_rows} rows, "
            f"got {n_subsets}; lower it or change subset_size"
        )
    return {"subset_size": size, "n_subsets": n_subsets}


def learning_rate_factor(schedule: str | Schedule | None, step: int, total: int) -> float:
    """What the learning rate of step `step` (from 0) of `total` is multiplied by."""
    if schedule is None:
        return 1.0
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / total))
    if schedule == "linear":
        return 1 - step / total
    assert callable(schedule)  # names are checked when the recipe is made
    return float(schedule(step, total))


def positive(name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} must be above 0, got {result!r}")
    return result


def _no_meaning(objective: str, **settings: object) -> None:
    for name, value in settings.items():
        if value is not None:
            raise ValueError(f'{name} has no meaning for objective="{objective}", got {value!r}; leave it out')


def _with_preset(objective: str, preset: str | None, given: dict[str, Any]) -> dict[str, Any]:
    if preset is None:
        return given
    one_of("preset", preset, PRESETS)
    if objective not in PRESETS[preset]:
        names = ", ".join(f'"{name}"' for name in PRESETS[preset])
        raise ValueError(f'preset="{preset}" exists for objective {names}, got "{objective}"; leave it out')
    fixed = PRESETS[preset][objective]
    for name, value in fixed.items():
        if given[name] is not None and given[name] != value:
            raise ValueError(
                f'preset="{preset}" sets {name}={value!r}, got {name}={given[name]!r}; drop one of the two'
            )
    return {**given, **fixed}


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """The defaults of RLP without a preset, each with its reason.

    probe="subset", one subset per step: the variant behind the published numbers, with the least variance, and
    cheap (many short steps). intercept=True: planes through points are affine, and without the column of ones a
    network on centred features hardly sees its own constant offset (NOTE[DIFF]: the paper's formulas have none,
    nor do the presets). With probe="sum" the ones would leave nothing but the mean residual, so there it is off.
    method="balanced" keeps Algorithm 1's promise of coverage; plan="once" keeps the factors.
    """
    probe = one_of("probe", given["probe"] or "subset", PROBES)
    intercept = given["intercept"]
    per_step = given["subsets_per_step"]
    if per_step is None:
        per_step = 1
    elif per_step != "all":
        per_step = count("subsets_per_step", per_step)
    return {
        "probe": probe,
        "draw_from": one_of("draw_from", given["draw_from"] or "train", DRAW_FROM),
        "method": one_of("method", given["method"] or "balanced", METHODS),
        "plan": one_of("plan", given["plan"] or "once", PLANS),
        "intercept": probe != "sum" if intercept is None else bool(intercept),
        "ridge": 0.0 if given["ridge"] is None else number("ridge", given["ridge"], minimum=0.0),
        "subsets_per_step": per_step,
    }


def _optimiser_part(
    optimizer: str | OptimizerFactory, lr: float | None, weight_decay: float | None, momentum: float | None
) -> dict[str, Any]:
    if callable(optimizer):
        for name, value in (("lr", lr), ("weight_decay", weight_decay), ("momentum", momentum)):
            if value is not None:
                raise ValueError(f"{name} belongs in the optimizer factory, got {value!r}; leave it out here")
        name = getattr(optimizer, "__qualname__", type(optimizer).__qualname__)
        return {"optimizer": f"factory {name}", "lr": None, "weight_decay": 0.0, "momentum": 0.0}
    one_of("optimizer", optimizer, OPTIMIZERS)
    if optimizer.startswith("adam") and momentum is not None:
        raise ValueError(f'momentum has no meaning for optimizer="{optimizer}", got {momentum!r}; leave it out')
    default = 0.9 if optimizer == "sgd_nesterov" else 0.0
    momentum = default if momentum is None else number("momentum", momentum, 0.0, 1.0)
    if optimizer == "sgd_nesterov" and momentum == 0:
        raise ValueError('optimizer="sgd_nesterov" needs momentum above 0, got 0.0; use optimizer="sgd"')
    return {
        "optimizer": optimizer,
        "lr": positive("lr", 1e-3 if lr is None else lr),
        "weight_decay": 0.0 if weight_decay is None else number("weight_decay", weight_decay, minimum=0.0),
        "momentum": momentum,
    }


def _schedule_name(schedule: str | Schedule | None) -> str | None:
    if schedule is None:
        return None
    if callable(schedule):
        return f"function {getattr(schedule, '__qualname__', type(schedule).__qualname__)}"
    return one_of("schedule", schedule, SCHEDULES)
