"""Protocols: from a dataset and an experiment of the paper to cells.

`released` is the released loop at equal epochs, `steps` gives every arm the RLP arm's number of optimiser steps on as
many rows per step, `paper` is the algorithms as printed (one step per epoch, paired with full-batch MSE), and
`corrected` removes what handicaps the released baseline, at equal epochs, and at equal steps (`corrected-steps`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from rlploss._values import from_json
from rlploss.lab.study import Arm, Cell, Task, Variant
from rlploss.paper.published import EPOCHS, HYPER, PROTOCOL, Hyper, data
from rlploss.paper.request import Request
from rlploss.training import objectives
from rlploss.training.job import SGD, Adam, AdamW, Epochs, OptimizerValue, Steps
from rlploss.training.objectives import RLP, BinaryCrossEntropy, Objective, OnBatches

PROTOCOLS: dict[str, str] = data("report.toml")["protocols"]
OURS: dict[str, Callable[..., RLP]] = {
    "released": RLP.released,
    "paper": RLP.paper,
    "corrected": partial(RLP, subsets_per_step=1),
}
LEVELS = tuple(round(0.1 * k, 1) for k in range(1, 10))  # of γ and β
AT_EQUAL_STEPS = {"released": "steps", "corrected": "corrected-steps"}


@dataclass(frozen=True)
class ArmKind:
    """One of the paper's arms: its label, the style of its lines, what it minimises, and whether with +L2 or mixup."""

    label: str
    style: str
    objective: Callable[..., Objective]
    penalised: bool = False
    mixed: bool = False


ARMS = {
    name: ArmKind(**{**row, "objective": getattr(objectives, row["objective"])})
    for name, row in data("report.toml")["arms"].items()
}


def is_rlp(arm: str) -> bool:
    """Whether an arm trains with RLP."""
    return arm in ARMS and ARMS[arm].objective is RLP


def label_of(arm: str) -> str:
    """The label of one of the paper's arms; a loss of a reader's own has its name."""
    return ARMS[arm].label if arm in ARMS else arm


def own_kind(name: str, loss: str) -> ArmKind:
    """The arm of a reader's loss, from its JSON: it takes the batch size that the other arms have."""
    value = from_json(json.loads(loss))
    if not isinstance(value, OnBatches):
        raise ValueError(f"the loss {name!r} must be one of batches of rows, got {value!r}; wrap it in BatchLoss")

    def objective(batch_size: int | str, mixup: None = None) -> Objective:
        return replace(value, batch_size=batch_size)  # type: ignore[type-var]  # every subclass is a dataclass

    return ArmKind(name, "ochre", objective)


def axis_of(protocol: str) -> str:
    """The axis on which a protocol is fair: its arms have the same budget there."""
    return "step" if protocol.endswith("steps") else "epoch"


@dataclass(frozen=True)
class CellFactory:
    """Makes the cells of a family of experiments under a protocol."""

    request: Request
    arms: Sequence[str]
    hyper: Hyper
    family: str  # whose number of seeds is used
    n_subsets: int  # K of the RLP arms, unless the scale has less
    subset_size: int  # M of the RLP arms
    epochs: int
    batch_size: int | None = None  # rows per step of the others, if not M
    baseline_epochs: int | None = None  # of the others than RLP, if they differ
    points: int = 50  # about how many a curve has

    def cells(
        self,
        protocol: str,
        task: Task,
        *,
        rlp: Mapping[str, bool] = MappingProxyType({}),
        baseline: Callable[..., Objective] | None = None,
        batch_size: int | str | None = None,
        momentum: tuple[float, float] | None = None,
        weight_decay: float | None = None,
        outputs: tuple[str, str] = ("logits", "logits"),
    ) -> list[Cell]:
        """The cells of a task at equal epochs and, where the protocol has them, at equal steps.

        Args:
            protocol: "released", "paper" or "corrected".
            task: what is trained on.
            rlp: options of the RLP arms' objective, beside M, K and mixup.
            baseline: makes the other arms' objective from their batch size and mixup. Default: what they are named for.
            batch_size: rows per step of the other arms (released ones at equal epochs only). Default: the factory's, or
                all of them for "paper".
            momentum: of plain SGD, for RLP arms and for others. Default: the published optimiser.
            weight_decay: AdamW's. Default: the paper's.
            outputs: last layer of RLP arms and of others.
        """
        made = []
        n_subsets = min(self.n_subsets, self.request.at.most_subsets)
        usual = self.batch_size or self.subset_size
        kinds = ARMS | {name: own_kind(name, loss) for name, loss in self.request.losses}
        for name in self.request.picked("arms", self.arms):
            kind, ours, column = kinds[name], is_rlp(name), 0 if is_rlp(name) else 1
            if protocol == "corrected" and kind.penalised:
                continue
            mixup = self.hyper.psi if kind.mixed else None
            make = baseline or kind.objective
            if ours:
                objective: Objective = OURS[protocol](self.subset_size, n_subsets, mixup=mixup, **rlp)
            else:
                objective = make(batch_size or ("all" if protocol == "paper" else usual), mixup=mixup)
            optimizer = self.optimizer(kind, None if momentum is None else momentum[column], weight_decay)
            arm = Arm(name, objective, optimizer, protocol=protocol, output=outputs[column])
            epochs = Epochs(self.epochs if ours else self.baseline_epochs or self.epochs)
            at_steps = AT_EQUAL_STEPS.get(protocol)
            # Equal steps are RLP's steps: its own cell is needed for either comparison.
            if self.request.budget != "steps" or (ours and at_steps):
                made.append(self.cell(arm, task, epochs))
            if self.request.budget != "epochs" and at_steps:
                arm = replace(arm, protocol=at_steps)
                if not ours and protocol == "released":
                    arm = replace(arm, objective=make(usual, mixup=mixup))
                made.append(self.cell(arm, task, epochs if ours else Steps(n_subsets * self.epochs)))
        return made

    def cell(self, arm: Arm, task: Task, budget: Epochs | Steps) -> Cell:
        """One cell with this family's seeds and evaluations."""
        seeds = self.request.seeds_for(self.family)
        return Cell(arm, task, budget, seeds, evaluate_every=max(1, budget.n // self.points))

    def optimizer(self, kind: ArmKind, momentum: float | None, weight_decay: float | None) -> OptimizerValue:
        """The published optimiser; AdamW has a weight decay of its own wherever +L2 does not set it."""
        lr, penalty = self.hyper.lr, (self.hyper.weight_decay if kind.penalised else None)
        if self.hyper.optimizer == "adam":
            return Adam(lr, penalty or 0.0)
        if self.hyper.optimizer == "adamw":
            return AdamW(lr, penalty or weight_decay or PROTOCOL["adamw_weight_decay"])
        if momentum is None:
            return SGD(lr, momentum=0.9, nesterov=True, weight_decay=penalty or 0.0)
        return SGD(lr, momentum=momentum, weight_decay=penalty or 0.0)


def _regression_factory(
    request: Request, dataset: str, experiment: str, arms: Sequence[str], full_epochs: int | None = None
) -> CellFactory:
    if full_epochs is None:
        full_epochs = PROTOCOL[experiment]["epochs"] if experiment in ("small", "mae") else EPOCHS[dataset]
    given = PROTOCOL["small" if experiment == "small" else "regression"]
    # NOTE[DIFF]: with M = 10 and 11 features RLP would be MSE on Wine; M = 12 is the least that is not.
    size = 12 if (dataset, experiment) == ("wine", "small") else given["subset_size"]
    family = {"full": "regression", "shift": "sweep", "noise": "sweep"}.get(experiment, experiment)
    seeds, epochs = family if family in request.at.seeds else "regression", request.at.epochs(family, full_epochs)
    hyper, n_subsets = HYPER[dataset, experiment], PROTOCOL["subsets"][experiment]
    return CellFactory(request, arms, hyper, seeds, n_subsets, size, epochs, batch_size=given["batch_size"])


def regression_cells(
    request: Request,
    dataset: str,
    arms: Sequence[str],
    *,
    experiment: str = "full",
    name: str = "{}",
    corrected: bool = False,
    full_epochs: int | None = None,
    **rows: Any,
) -> list[Cell]:
    """All cells of one dataset in one experiment.

    Args:
        request: the scale, and what narrows it.
        dataset: its name.
        arms: names of ARMS.
        experiment: a column of the hyperparameter tables; "shift" and "noise" are sweeps.
        name: of the task, {} is the dataset.
        corrected: whether the baseline is also run without what handicaps it.
        full_epochs: instead of the paper's; a scale with fewer has no such cells.
        rows: `n_train`, `region` and `metrics` of the task.
    """
    if full_epochs is not None and request.at.epochs("regression", full_epochs) < full_epochs:
        return []
    levels = tuple(Variant(**{experiment: level}) for level in LEVELS) if experiment in ("shift", "noise") else ()
    given = {"metrics": ("mse", "rlp"), **rows, **({"variants": levels} if levels else {})}
    task = Task(name.format(dataset), dataset, "regression", **given)
    # A sweep looks at the end only.
    points = 1 if levels else 250 if request.scale == "paper" else 50
    factory = replace(_regression_factory(request, dataset, experiment, arms, full_epochs), points=points)
    cells = factory.cells("released", task) + factory.cells("paper", task)
    if corrected:
        # Raw features handicap every arm. RLP on centred features needs its intercept: it cannot see an offset.
        cells += factory.cells("corrected", replace(task, scaling="standard"), rlp={"intercept": True})
    return cells


def time_cells(request: Request, dataset: str, arms: Sequence[str]) -> list[Cell]:
    """RLP and MSE against elapsed seconds: K = 2000, a learning rate of 1e-6, each arm its own epochs."""
    given = PROTOCOL["time"]
    at = given["datasets"].index(dataset)
    full, full_mse = int(given["rlp_epochs"][at]), int(given["mse_epochs"][at])
    both = replace(request, budget="epochs")  # whatever was asked for: the seconds are the budget here
    factory = _regression_factory(both, dataset, "time", arms, full)
    factory = replace(factory, baseline_epochs=max(1, round(full_mse * factory.epochs / full)))
    return factory.cells("released", Task(dataset, dataset, "regression", timed=True))


def autoencoder_cells(request: Request, dataset: str, arms: Sequence[str], *, n_train: int | None = None) -> list[Cell]:
    """All cells of one image set: |J| = 5000, or 50 or 100 with the sizes of the small experiments."""
    scale, full, given = request.at, n_train is None, PROTOCOL["autoencoder"]
    small, rows, tests = (
        PROTOCOL["small"],
        n_train or min(5000, scale.most_rows),
        min(given["test_images"], scale.most_rows),
    )
    epochs = scale.epochs(dataset, EPOCHS[dataset]) if full else scale.epochs("images-small", small["epochs"])
    size = min(given["subset_size"], rows // 2) if full else small["subset_size"]
    points = 20 if full else max(1, epochs // 5)  # small sets are looked at after 5, 10, 50 epochs
    hyper, n_subsets = HYPER[dataset, "full"], given["n_subsets"]
    if not full:
        hyper, n_subsets = HYPER[dataset, "small"], PROTOCOL["subsets"]["small"]
    factory = CellFactory(request, arms, hyper, "images", n_subsets, size, epochs, points=points)
    random = Task(
        dataset,
        dataset,
        "autoencoder",
        n_train=rows,
        n_test=min(5000, scale.most_rows) if full else tests,
        metrics=("mse", "rlp") if full else ("mse",),
        keep="reconstructions" if (dataset, n_train) == ("mnist", 50) else None,
    )
    pixels = "cifar10-released" if dataset == "cifar10" else dataset
    first = replace(random, dataset=pixels, n_test=tests, first=True)
    heavy, light = given["momentum_rlp"], given["momentum_mse"]
    cells = factory.cells("released", first, rlp={"float32_cutoff": True}, momentum=(heavy, light))
    # NOTE[DIFF]: K = 1000 factorisations of 1000×d matrices are out of reach of a step over all subsets.
    printed = replace(factory, n_subsets=min(factory.n_subsets, 10 if full else 100))
    cells += printed.cells("paper", replace(random, keep=None))
    if full:
        linear = {"intercept": False}
        cells += factory.cells("corrected", random, rlp=linear, batch_size=min(100, size), momentum=(heavy, heavy))
    return cells


def classifier_cells(request: Request, dataset: str, arms: Sequence[str], *, small: bool = False) -> list[Cell]:
    """LeNet-5 on MNIST or the Moons classifier, at either size."""
    scale, moons = request.at, dataset == "moons"
    family, seeds = ("moons", "moons") if moons else ("mnist_classes", "classes")
    given = PROTOCOL[f"{family}_small" if small else family]
    mixed = any(ARMS[arm].mixed for arm in arms)
    hyper, epochs = HYPER[family, "small" if small else "full"], given["epochs_mixup" if mixed else "epochs"]
    sizes = given["n_subsets"], given["subset_size"], scale.epochs(seeds, epochs)
    factory = CellFactory(request, arms, hyper, seeds, *sizes, points=50 if moons else 20)
    name = f"{family}-small" if small else family
    where = (name, "moons") if moons else ("mnist", "lenet5")
    task = Task(name, *where, metrics=("accuracy", "f1"), keep="boundary" if moons else None)
    most = 1000 if moons else scale.most_rows
    printed, released = (
        replace(task, n_train=min(given[rows][0], most), n_test=min(given[rows][1], most), first=rows == "released")
        for rows in ("printed", "released")  # NOTE[DIFF]: released Moons are split by another generator than ours
    )
    described, last = ("sigmoid", "logits"), "sigmoid" if moons else "softmax"
    alone = moons and small and mixed  # the one place where released Moons train with AdamW, on all rows
    cells = replace(factory, hyper=factory.hyper._replace(optimizer="adamw") if alone else factory.hyper).cells(
        "released",
        released,
        baseline=BinaryCrossEntropy if moons else None,
        batch_size="all" if alone else None,
        weight_decay=0.01,  # torch's own, which the released classifiers leave in place
        outputs=(last, last),
    )
    cells += factory.cells("paper", printed, outputs=described)
    # What the paper describes: cross entropy on logits, not on a soft-max or sigmoid; RLP with a sigmoid.
    return cells + factory.cells("corrected", released, rlp={"intercept": False}, outputs=described)
