"""What the cross-validated networks try: settings, and the objective of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from rlploss import MSE, RLP, CrossEntropy
from rlploss._checks import number, one_of, positive
from rlploss.estimators import base
from rlploss.estimators.dial import MIDDLE, MSE_END, Dial, objective_at
from rlploss.models import ACTIVATIONS
from rlploss.training.objectives import Objective, as_objective

V = TypeVar("V")
MOST_ROWS_IN_A_SUBSET = 2000  # a step of more would cost too much
PLAN_ROWS, FEWEST_SUBSETS, MOST_SUBSETS = 100_000, 20, 200  # rows in the subsets of one network


class Candidate(NamedTuple):
    """One setting: a place on the dial, and what is chosen beside the stopping step."""

    place: Dial
    subset_size: int  # there, in a fold
    alpha: float
    learning_rate: float
    activation: str
    linear: bool
    batch_size: int | str
    mixup: float | None
    log: bool


@dataclass(eq=False, repr=False, kw_only=True)
class Settings(base.NetworkEstimator):
    """The settings of a cross-validated network.

    Parameters
    ----------
    loss : str or objective
        What is made small: a name, or a value such as `Huber(0.5)` or `Pointwise(function)`. "rlp"
        is RLP with its dial; the others have no subsets.
    subset_sizes : "auto" or sequence
        Places on the dial, as numbers of rows, as fractions of the training rows of a fold, or
        "auto" for M = √(p·N), the middle of the dial. Its pointwise end, which has no subsets, is
        always among them, and alone with (). "auto" is ["auto"].
    alphas : sequence of float
        Weight decays to choose from: alpha/2·‖weights‖² is added to the mean loss.
    learning_rates : sequence of float
        Learning rates of Adam to choose from.
    activations : sequence of {"relu", "tanh", "logistic", "identity"}
        What follows every hidden layer, to choose from.
    batch_size : "auto", int, or several
        Rows per step of losses without subsets, or several numbers to choose from; "auto" is
        min(200, N). One iteration is a pass over the rows in such batches, at least 10 steps, the
        same number for every loss.
    mixup : float, None, or several
        ψ of the distribution Beta(ψ, ψ) by which pairs of subsets, or of rows, are mixed, or
        several to choose from. None: no mixup.
    latin : bool
        Whether each place on the dial (without a dial: each value of the other lists) meets each
        learning rate once, and the other lists go round, instead of all meeting all.
    """

    loss: str | Objective = "mse"
    subset_sizes: str | Sequence[int | float | str] = "auto"
    alphas: Sequence[float] = (1e-4, 1e-2, 1e-1)
    learning_rates: Sequence[float] = (1e-2,)
    activations: Sequence[str] = ("relu", "tanh")
    batch_size: Any = "auto"
    mixup: float | Sequence[float | None] | None = None
    latin: bool = False

    _end: ClassVar[type[MSE] | type[CrossEntropy]]  # what the pointwise end of the dial makes small
    _losses: ClassVar[tuple[str, ...]]

    def _settings(self, n_fold: int, logs: Sequence[bool]) -> list[Candidate]:
        """Return all that is tried with so many rows in a fold, the pointwise end of the dial
        first.
        """
        alphas = listed("alphas", self.alphas, partial(number, minimum=0.0))
        rates = listed("learning_rates", self.learning_rates, positive)
        kinds = listed("activations", self.activations, partial(one_of, options=ACTIVATIONS))
        skip = getattr(self, "linear_skip", False)  # classes have no plane to add to
        planes = [skip] if isinstance(skip, bool) else [False, True]
        if len(planes) > 1:
            one_of("linear_skip", skip, ("auto",))
        places, batches, mixups = self._places(), several(self.batch_size), several(self.mixup)
        own = list(itertools.product(places, alphas, rates, batches, mixups))
        if self.latin:
            own = []
            for i in range(max(len(places), len(alphas), len(batches), len(mixups))):
                for j, rate in enumerate(rates):
                    k = i + j if len(places) > 1 else i  # beside a dial the others go round
                    others = (one[k % len(one)] for one in (alphas, batches, mixups))
                    alpha, batch, mixup = others
                    own.append((places[i % len(places)], alpha, rate, batch, mixup))
        return [
            Candidate(
                place,
                self._subset_size(place, n_fold),
                alpha,
                rate,
                kind,
                linear,
                batch,
                mixup,
                log,
            )
            for log in logs
            for place, alpha, rate, batch, mixup in own
            for kind, linear in itertools.product(kinds, planes)
        ]

    def _places(self) -> list[Dial]:
        """Return the places on the dial; losses without subsets have its pointwise end alone."""
        if isinstance(self.loss, str):
            one_of("loss", self.loss, self._losses)
        if not isinstance(as_objective(self.loss), RLP):
            return [MSE_END]
        if isinstance(self.subset_sizes, str):
            one_of("subset_sizes", self.subset_sizes, ("auto",))
            return [MSE_END, MIDDLE]
        return [MSE_END, *listed("subset_sizes", self.subset_sizes, Dial.of, fewest=0)]

    @property
    def _p(self) -> int:
        """The columns of the planes, and the subset size that stands for the pointwise end."""
        return self._form().planes.n_columns(self.n_features_in_)

    def _subset_size(self, place: Dial, n_rows: int) -> int:
        return max(self._p, place.subset_size(min(n_rows, MOST_ROWS_IN_A_SUBSET), self._p))

    def _objective(self, setting: Candidate, n_rows: int) -> Objective:
        """Return what is made small on so many rows."""
        kind: Any = as_objective(self.loss)
        batch = base.batch_of(setting.batch_size, n_rows)
        if not isinstance(kind, RLP):
            mixup = {} if setting.mixup is None else {"mixup": setting.mixup}
            return cast(Objective, replace(kind, batch_size=batch, **mixup))
        form = self._form() if isinstance(self.loss, str) else kind
        size = self._subset_size(setting.place, n_rows)
        return objective_at(
            replace(form, mixup=setting.mixup),
            size,
            n_rows,
            self.n_features_in_,
            end=self._end,
            batch_size=batch,
            most_subsets=max(FEWEST_SUBSETS, min(MOST_SUBSETS, PLAN_ROWS // size)),
        )

    def _distinct(self, settings: Sequence[Candidate], sizes: Sequence[int]) -> list[Candidate]:
        """Return the first of the settings that come to the same with folds of these sizes."""
        known: dict[str, Candidate] = {}
        for setting in settings:
            objectives = [self._objective(setting, n_rows) for n_rows in dict.fromkeys(sizes)]
            known.setdefault(
                repr(
                    (
                        objectives,
                        setting.alpha,
                        setting.learning_rate,
                        setting.activation,
                        setting.linear,
                        setting.log,
                    )
                ),
                setting,
            )
        return list(known.values())


def several(value: Any) -> Sequence[Any]:
    """Return a value, or several to choose from, as a list."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [value]
    return listed("a setting with several values", value, lambda name, one: one)


def listed(name: str, values: Any, read: Callable[[str, Any], V], *, fewest: int = 1) -> list[V]:
    """Return several values of a setting, each of them read."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, got {values!r}; write [{values!r}]")
    read_values = [read(name, value) for value in values]
    if len(read_values) < fewest:
        raise ValueError(f"{name} must name at least one value, got none")
    return read_values
