"""Every table and figure of the paper as a study: which cells it needs under which protocol, and
what a cell costs.

`released` is the released loop at equal epochs, `steps` gives every arm the RLP arm's number of
optimiser steps on as many rows per step, `paper` is the algorithms as printed (one step per epoch,
paired with full-batch MSE), and `corrected` removes what handicaps the released baseline, at equal
epochs, and at equal steps (`corrected-steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from rlploss.lab import cost, train
from rlploss.lab.study import AnyCell, Arm, Cell, Task, Variant
from rlploss.paper.measure import Measured, Measurement, Setting
from rlploss.paper.published import EPOCHS, HYPER, PROTOCOL, REPORT, Hyper
from rlploss.paper.request import Request
from rlploss.training.job import SGD, Adam, AdamW, Epochs, OptimizerValue, Steps
from rlploss.training.objectives import (
    MAE,
    MSE,
    RLP,
    BatchLoss,
    BinaryCrossEntropy,
    CrossEntropy,
    Objective,
    Pointwise,
)

PROTOCOLS: dict[str, str] = REPORT["protocols"]
OURS: dict[str, Callable[..., RLP]] = {
    "released": RLP.released,
    "paper": RLP.paper,
    "corrected": partial(RLP, subsets_per_step=1),
}
LEVELS = tuple(round(0.1 * k, 1) for k in range(1, 10))  # of γ and β
AT_EQUAL_STEPS = {"released": "steps", "corrected": "corrected-steps"}


@dataclass(frozen=True)
class ArmKind:
    """One of the paper's arms: its label, the style of its lines, what it minimises, and whether
    with +L2 or mixup.
    """

    label: str
    style: str
    objective: Callable[..., Objective]
    penalised: bool = False
    mixed: bool = False


OBJECTIVES = {"MSE": MSE, "MAE": MAE, "RLP": RLP, "CrossEntropy": CrossEntropy}
ARMS = {
    name: ArmKind(**{**row, "objective": OBJECTIVES[row["objective"]]})
    for name, row in REPORT["arms"].items()
}


def is_rlp(arm: str) -> bool:
    """Return whether an arm trains with RLP."""
    return arm in ARMS and ARMS[arm].objective is RLP


class Side(NamedTuple):
    """What the RLP arms, or the others, have of their own under a protocol."""

    output: str = "logits"  # the last layer
    momentum: float | None = None  # of SGD, instead of Nesterov's


PLAIN = Side()


@dataclass(frozen=True)
class CellFactory:
    """Makes the cells of an experiment under a protocol."""

    request: Request
    arms: Sequence[str]
    hyper: Hyper
    experiment: str  # whose number of seeds is used
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
        rlp: Side = PLAIN,
        others: Side = PLAIN,
        options: Mapping[str, bool] = MappingProxyType(
            {}
        ),  # of the RLP arms' objective, beside M, K and mixup
        baseline: (
            Callable[..., Objective] | None
        ) = None,  # of the others, if not what they are named for
        batch_size: (
            int | str | None
        ) = None,  # rows per step of the others (of released ones at equal epochs only)
        weight_decay: float | None = None,  # AdamW's, if not the paper's
    ) -> list[Cell]:
        """Return the cells of a task at equal epochs and, where the protocol has them, at equal
        steps.
        """
        made: list[tuple[Arm, Epochs | Steps]] = []
        n_subsets = min(self.n_subsets, self.request.at.most_subsets)
        usual = self.batch_size or self.subset_size
        at_steps = AT_EQUAL_STEPS.get(protocol)
        for name in self.request.picked("arms", self.arms):
            kind = ARMS[name]
            ours = is_rlp(name)
            if protocol == "corrected" and kind.penalised:
                continue
            mixup = self.hyper.psi if kind.mixed else None
            side = rlp if ours else others
            if ours:
                objective: Objective = OURS[protocol](
                    self.subset_size, n_subsets, mixup=mixup, **options
                )
            else:
                make = partial(baseline or kind.objective, mixup=mixup)
                objective = make(batch_size or ("all" if protocol == "paper" else usual))
            optimizer = self.optimizer(kind, side.momentum, weight_decay)
            arm = Arm(name, objective, optimizer, protocol=protocol, output=side.output)
            epochs = Epochs(self.epochs if ours else self.baseline_epochs or self.epochs)
            # Equal steps are RLP's steps: its own cell is needed for either comparison.
            if self.request.budget != "steps" or (ours and at_steps):
                made.append((arm, epochs))
            if self.request.budget != "epochs" and at_steps:
                same = ours or protocol != "released"
                arm = replace(arm, protocol=at_steps, objective=objective if same else make(usual))
                made.append((arm, epochs if ours else Steps(n_subsets * self.epochs)))
        seeds = self.request.seeds_for(self.experiment)
        return [
            Cell(arm, task, budget, seeds, evaluate_every=max(1, budget.n // self.points))
            for arm, budget in made
        ]

    def optimizer(
        self, kind: ArmKind, momentum: float | None, weight_decay: float | None
    ) -> OptimizerValue:
        """Return the published optimiser; AdamW has a weight decay of its own wherever +L2 does not
        set it.
        """
        lr = self.hyper.lr
        penalty = (self.hyper.weight_decay if kind.penalised else None) or 0.0
        if self.hyper.optimizer == "adam":
            return Adam(lr, penalty)
        if self.hyper.optimizer == "adamw":
            return AdamW(lr, penalty or weight_decay or PROTOCOL["adamw_weight_decay"])
        if momentum is None:
            return SGD(lr, momentum=0.9, nesterov=True, weight_decay=penalty)
        return SGD(lr, momentum=momentum, weight_decay=penalty)


def regression_cells(
    request: Request,
    dataset: str,
    arms: Sequence[str],
    *,
    experiment: str = "full",  # of the hyperparameter tables; "shift" and "noise" are sweeps
    name: str = "{}",  # of the task, {} is the dataset
    corrected: bool = False,  # whether the baseline is also run without what handicaps it
    full_epochs: int | None = None,  # instead of the paper's; a scale with fewer has no such cells
    points: int | None = None,  # about how many a curve has, if not the scale's
    rates: Sequence[float] = (),  # learning rates, each with the training rows whole and held out
    **rows: Any,  # of the task
) -> list[Cell]:
    """Return all cells of one dataset in one experiment."""
    given = PROTOCOL[experiment]
    sweep = experiment in ("shift", "noise")
    published = given.get("epochs", EPOCHS)
    full = full_epochs or (published if isinstance(published, int) else published[dataset])
    epochs = request.at.epochs(experiment, full)
    if epochs < (full_epochs or 0):
        return []
    baseline_epochs = None
    if (
        experiment == "time"
    ):  # each arm has its own epochs, whatever was asked for: the seconds are the budget here
        request = replace(request, budget="epochs")
        baseline_epochs = max(1, round(given["baseline_epochs"][dataset] * epochs / full))
    # NOTE[DIFF]: with M = 10 and 11 features RLP would be MSE on Wine; M = 12 is the least that is
    # not.
    size = 12 if (dataset, experiment) == ("wine", "small") else given["subset_size"]
    sizes = given["n_subsets"], size, epochs, given["batch_size"], baseline_epochs
    points = 1 if sweep else points or request.at.points  # a sweep looks at the end only
    factory = CellFactory(request, arms, HYPER[dataset, experiment], experiment, *sizes, points)
    levels = (
        {"variants": tuple(Variant(**{experiment: level}) for level in LEVELS)} if sweep else {}
    )
    task = Task(
        name.format(dataset), dataset, "regression", **{"metrics": ("mse", "rlp"), **rows, **levels}
    )
    if rates:
        return [cell for rate in rates for cell in _rate_cells(factory, task, rate)]
    cells = factory.cells("released", task) + factory.cells("paper", task)
    if corrected:
        # Raw features handicap every arm. RLP on centred features needs its intercept: it cannot
        # see an offset.
        cells += factory.cells(
            "corrected", replace(task, scaling="standard"), options={"intercept": True}
        )
    return cells


def _rate_cells(factory: CellFactory, task: Task, rate: float) -> list[Cell]:
    """Return the cells of a task at equal steps and one learning rate: on all training rows, and
    with a fifth of them held out to choose the rate by.
    """
    at_rate = replace(factory, hyper=factory.hyper._replace(lr=rate), points=1)
    tasks = [
        replace(task, name=f"{task.name} (rate {rate:g}{words})", held_out=share)
        for words, share in (("", None), (", a fifth held out", 0.2))
    ]
    cells = [cell for each in tasks for cell in at_rate.cells("released", each)]
    return [cell for cell in cells if cell.arm.protocol == "steps"]


def autoencoder_cells(
    request: Request,
    dataset: str,
    arms: Sequence[str],
    *,
    n_train: int | None = None,
    change: str = "",  # the one thing that differs from the released loop
) -> list[Cell]:
    """Return all cells of one image set: |J| = 5000, or 50 or 100 with the sizes of the small
    experiments; or those in which one thing differs from the released loop.
    """
    scale = request.at
    images = PROTOCOL["images"]
    full = n_train is None
    given = images if full else PROTOCOL["small"]
    most = min(5000, scale.most_rows)
    tests = min(images["test_images"], scale.most_rows)
    rows = n_train or most
    epochs = (
        scale.epochs(dataset, EPOCHS[dataset])
        if full
        else scale.epochs("images-small", given["epochs"])
    )
    size = min(given["subset_size"], rows // 2)
    hyper = HYPER[dataset, "full" if full else "small"]
    points = 20 if full else max(1, epochs // 5)  # small sets are looked at after 5, 10, 50 epochs
    factory = CellFactory(
        request, arms, hyper, "images", given["n_subsets"], size, epochs, points=points
    )
    random = Task(
        dataset, dataset, "autoencoder", n_train=rows, n_test=most, metrics=("mse", "rlp")
    )
    if not full:
        keep = "reconstructions" if (dataset, n_train) == ("mnist", 50) else None
        random = replace(random, n_test=tests, metrics=("mse",), keep=keep)
    pixels = "cifar10-released" if dataset == "cifar10" else dataset
    first = replace(random, dataset=pixels, n_test=tests, first=True)
    fast, slow = (Side(momentum=images[f"momentum_{arm}"]) for arm in ("rlp", "mse"))
    if change:
        task = replace(first, name=f"{dataset} ({change})", metrics=("mse",))
        if change == "pixels in [0, 1]":
            task = replace(task, dataset=dataset)
        if change == "random rows":
            task = replace(task, first=False)
        ours, theirs = {"momentum for MSE too": (fast, fast), "Nesterov": (PLAIN, PLAIN)}.get(
            change, (fast, slow)
        )
        return replace(factory, experiment="causes").cells(
            "released",
            task,
            rlp=ours,
            others=theirs,
            options={"float32_cutoff": change != "exact factors"},
            batch_size=min(100, size) if change == "MSE in batches of 100" else None,
        )
    cells = factory.cells(
        "released", first, rlp=fast, others=slow, options={"float32_cutoff": True}
    )
    # NOTE[DIFF]: K = 1000 factorisations of 1000×d matrices are out of reach of a step over all
    # subsets.
    printed = replace(factory, n_subsets=min(factory.n_subsets, 10 if full else 100))
    cells += printed.cells("paper", replace(random, keep=None))
    if full:
        same = {"rlp": fast, "others": fast, "batch_size": min(100, size)}
        cells += factory.cells("corrected", random, **same, options={"intercept": False})
    return cells


def classifier_cells(
    request: Request, dataset: str, arms: Sequence[str], *, small: bool = False
) -> list[Cell]:
    """LeNet-5 on MNIST or the Moons classifier, at either size."""
    moons = dataset == "moons"
    mixed = any(ARMS[arm].mixed for arm in arms)
    kind = REPORT["classifiers"][dataset]
    name = f"{kind['family']}-small" if small else kind["family"]
    given = PROTOCOL["classes"][name]
    hyper = HYPER[kind["family"], "small" if small else "full"]
    epochs = request.at.epochs(kind["experiment"], given["epochs_mixup" if mixed else "epochs"])
    sizes = given["n_subsets"], given["subset_size"], epochs
    factory = CellFactory(request, arms, hyper, kind["experiment"], *sizes, points=kind["points"])
    most = 1000 if moons else request.at.most_rows
    keep = "boundary" if moons else None
    task = Task(
        name, name if moons else dataset, kind["model"], metrics=("accuracy", "f1"), keep=keep
    )
    printed, released = (
        replace(
            task,
            n_train=min(given[rows][0], most),
            n_test=min(given[rows][1], most),
            first=rows == "released",
        )
        for rows in (
            "printed",
            "released",
        )  # NOTE[DIFF]: released Moons are split by another generator than ours.
    )
    last = Side("sigmoid" if moons else "softmax")
    alone = (
        moons and small and mixed
    )  # the one place where released Moons train with AdamW, on all rows
    cells = replace(factory, hyper=hyper._replace(optimizer="adamw") if alone else hyper).cells(
        "released",
        released,
        rlp=last,
        others=last,
        baseline=BinaryCrossEntropy if moons else None,
        batch_size="all" if alone else None,
        weight_decay=0.01,  # torch's own, which the released classifiers leave in place
    )
    # What the paper describes: cross entropy on logits, not on a soft-max or sigmoid; RLP with a
    # sigmoid.
    cells += factory.cells("paper", printed, rlp=Side("sigmoid"))
    return cells + factory.cells(
        "corrected", released, rlp=Side("sigmoid"), options={"intercept": False}
    )


KINDS: dict[str, Callable[..., list[Cell]]] = {
    "regression": regression_cells,
    "autoencoder": autoencoder_cells,
    "classifier": classifier_cells,
}
CATALOG = {row["name"]: row for row in REPORT["section"]}


def _study(name: str, request: Request) -> list[AnyCell]:
    """Return the cells of a section, from its rows in `report.toml`; a name instead of rows stands
    for that section's.
    """
    rows = CATALOG[name].get("cells", ())
    if isinstance(rows, str):
        return _study(rows, request)
    cells: list[AnyCell] = []
    for row in rows:
        options = {
            "arms": CATALOG[name].get("arms", ()),
            "protocols": PROTOCOLS,
            "thresholds": False,
        } | row
        datasets = request.picked("datasets", options.pop("on"))
        make = KINDS[options.pop("kind", "regression")]
        protocols = options.pop("protocols")
        seeds = request.threshold_seeds() if options.pop("thresholds") else ()
        for dataset in datasets:
            asked = [c for c in make(request, dataset, **options) if c.arm.protocol in protocols]
            cells += asked + [replace(cell, seeds=seeds) for cell in asked if seeds]
    return cells


def propositions(request: Request) -> list[AnyCell]:
    """Return the statements that are measured, not trained; `smoke` draws less."""
    draws, samples = (1_000, 4) if request.scale == "smoke" else (20_000, 30)
    settings = {name: [Setting(**row) for row in rows] for name, rows in REPORT["settings"].items()}
    settings["empirical"] = [replace(setting, samples=samples) for setting in settings["empirical"]]
    tasks = [Measurement(name, name, draws, tuple(variants)) for name, variants in settings.items()]
    return [Cell(Measured(), task, Steps(1), request.seeds_for("full")[:3]) for task in tasks]


STUDIES: dict[str, Callable[[Request], list[AnyCell]]] = {
    name: partial(_study, name) for name in CATALOG
}
STUDIES["propositions"] = propositions


def cells_of(names: Iterable[str], request: Request) -> list[AnyCell]:
    """Return the cells of some tables and figures, with repetitions."""
    return [cell for name in names for cell in STUDIES[name](request)]


def _resolved(cell: Cell) -> list[tuple[Objective, int]]:
    """Return the objective with its sizes filled in, and the number of training rows, for every
    variant.
    """
    rows = [train.train_rows(cell.task, variant) for variant in cell.task.variants]
    return [(cell.arm.objective.resolve(n, train.n_features(cell.task)), n) for n in rows]


def steps_of(cell: Cell) -> float:
    """Return the optimiser steps of a cell, averaged over its variants."""
    totals = [cell.budget.steps(objective.steps_per_epoch(n)) for objective, n in _resolved(cell)]
    return sum(totals) / len(totals)


def expected_seconds(cell: AnyCell) -> float:
    """Return the seconds that a cell is expected to take on one core."""
    if isinstance(cell.task, Measurement):
        return cost.expected_seconds("measured", cell.n_replicas)
    objective, n_rows = _resolved(cell)[0]
    return cost.expected_seconds(
        _family(cell, objective, n_rows),
        cell.n_replicas,
        evaluations=cell.budget.n / cell.evaluate_every,
        steps=steps_of(cell),
        rows=objective.rows_per_step,
    )


def _family(cell: Cell, objective: Objective, n_rows: int) -> str:
    """Return what decides the price of a step, in the words of `lab/prices.toml`."""
    images = cell.task.model == "autoencoder"
    rlp = objective if isinstance(objective, RLP) else None
    mixed = rlp is not None and rlp.mixup is not None
    words = {
        "cifar10": cell.task.dataset.startswith("cifar10"),
        "printed": rlp is not None and rlp.subsets_per_step == rlp.n_subsets,
        "mixup": mixed,
        "by torch": isinstance(objective, BinaryCrossEntropy | Pointwise | BatchLoss),
        "planes": images and rlp is not None and not mixed and n_rows > 500,
        "RLP measured": images and "rlp" in cell.task.metrics,
    }
    return " ".join([cell.task.model, *(word for word, holds in words.items() if holds)])
