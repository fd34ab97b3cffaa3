"""Protocols: from a dataset and an experiment of the paper to cells.

`released` is the released loop at equal epochs, `steps` gives every arm the RLP arm's number of optimiser
steps on as many rows per step, `paper` is the algorithms as printed (one step per epoch, paired with
full-batch MSE), and `corrected` removes what handicaps the released baseline, at equal epochs, and at equal
steps (`corrected-steps`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rlploss.lab.study import Arm, Budget, Cell, Scalar, Settings, Task, settings
from rlploss.paper import published
from rlploss.paper.request import Request

PROTOCOLS = {
    "released": "released, equal epochs",
    "paper": "paper, as printed",
    "steps": "equal steps",
    "corrected": "corrected, equal epochs",
    "corrected-steps": "corrected, equal steps",
}
OBJECTIVES = {
    "mse": "mse",
    "mse_l2": "mse",
    "mae": "mae",
    "rlp": "rlp",
    "mse_mixup": "mse+mixup",
    "rlp_mixup": "rlp+mixup",
    "ce": "cross_entropy",
    "ce_mixup": "cross_entropy+mixup",
}
ARMS = {
    "mse": "MSE",
    "mse_l2": "MSE+L2",
    "mae": "MAE",
    "rlp": "RLP",
    "mse_mixup": "MSE+mixup",
    "rlp_mixup": "RLP+mixup",
    "ce": "cross entropy",
    "ce_mixup": "cross entropy+mixup",
}


def is_rlp(arm: str) -> bool:
    """Whether an arm trains with RLP."""
    return arm.startswith("rlp")


@dataclass(frozen=True)
class Sizes:
    """What a family of experiments fixes: K subsets of M rows, batches of as many rows, epochs at this scale."""

    n_subsets: int
    subset_size: int
    batch_size: int
    epochs: int
    full_epochs: int

    @property
    def steps(self) -> int:
        """Optimiser steps of the RLP arm under `released`: K·E."""
        return self.n_subsets * self.epochs


def _every(n: int, points: int) -> int:
    """Evaluate so often that a curve has about so many points."""
    return max(1, n // points)


@dataclass(frozen=True)
class Maker:
    """Makes the cells of one task under every protocol that was asked for."""

    request: Request
    sizes: Sizes
    hyper: published.Hyper
    seeds: tuple[int, ...]
    points: int = 100
    short_last: bool = False  # sweeps look at the end only

    def budget(self, unit: str, n: int) -> Budget:
        """A budget with its evaluations."""
        return Budget(unit, n, n if self.short_last else _every(n, self.points))

    def optimiser(self, arm: str, *, default_decay: float | None = None) -> dict[str, Scalar]:
        """Optimiser settings of an arm; AdamW has a weight decay of its own wherever +L2 does not set it."""
        decay = default_decay
        if decay is None and self.hyper.optimizer == "adamw":
            decay = published.adamw_weight_decay()
        if arm.endswith("_l2"):
            decay = self.hyper.weight_decay
        mixup = self.hyper.psi if arm.endswith("_mixup") else None
        return {"optimizer": self.hyper.optimizer, "lr": self.hyper.lr, "weight_decay": decay, "mixup_alpha": mixup}

    def cell(self, arm: str, protocol: str, task: Task, values: dict[str, Scalar], budget: Budget) -> Cell:
        """One cell with this maker's seeds."""
        return Cell(Arm(arm, OBJECTIVES[arm], protocol, settings(values)), task, budget, self.seeds)

    def subsets(self, preset: str | None) -> dict[str, Scalar]:
        """Settings of an RLP arm."""
        return {"preset": preset, "subset_size": self.sizes.subset_size, "n_subsets": self.sizes.n_subsets}

    def released(
        self, arms: Iterable[str], task: Task, *, extra: dict[str, dict[str, Scalar]] | None = None,
        preset: str = "released", default_decay: float | None = None,
    ) -> list[Cell]:  # fmt: skip
        """`released` and `steps`; `extra` are settings by arm that the released code has and the paper has not."""
        cells = []
        for arm in arms:
            values = self.optimiser(arm, default_decay=default_decay) | (extra or {}).get(arm, {})
            epochs = self.budget("epochs", self.sizes.epochs)
            if is_rlp(arm):
                values |= self.subsets(preset)
                # RLP's own budget is the same whichever way the others are matched to it.
                cells.append(self.cell(arm, "released", task, values, epochs))
                if self.request.steps_wanted:
                    cells.append(self.cell(arm, "steps", task, values, epochs))
                continue
            values |= {"batch_size": self.sizes.batch_size}
            if self.request.epochs_wanted:
                cells.append(self.cell(arm, "released", task, values, epochs))
            if self.request.steps_wanted:
                cells.append(self.cell(arm, "steps", task, values, self.budget("steps", self.sizes.steps)))
        return cells

    def paper(
        self, arms: Iterable[str], task: Task, *, extra: dict[str, dict[str, Scalar]] | None = None
    ) -> list[Cell]:
        """`paper`: one step per epoch over all K subsets, paired with full-batch MSE."""
        if not self.request.epochs_wanted:
            return []
        cells = []
        for arm in arms:
            values = self.optimiser(arm) | (extra or {}).get(arm, {})
            values |= self.subsets("paper") if is_rlp(arm) else {"batch_size": "all"}
            cells.append(self.cell(arm, "paper", task, values, self.budget("epochs", self.sizes.epochs)))
        return cells

    def corrected(
        self, arms: Iterable[str], task: Task, *, extra: dict[str, dict[str, Scalar]] | None = None,
        rlp: dict[str, Scalar] | None = None, batch_size: int | None = None,
    ) -> list[Cell]:  # fmt: skip
        """`corrected` and `corrected-steps`: the same comparison with the baseline's handicap removed."""
        cells = []
        for arm in arms:
            values = self.optimiser(arm) | (extra or {}).get(arm, {})
            epochs = self.budget("epochs", self.sizes.epochs)
            if is_rlp(arm):
                values |= self.subsets(None) | (rlp or {})
                cells.append(self.cell(arm, "corrected", task, values, epochs))
                if self.request.steps_wanted:
                    cells.append(self.cell(arm, "corrected-steps", task, values, epochs))
                continue
            values |= {"batch_size": batch_size or self.sizes.batch_size}
            if self.request.epochs_wanted:
                cells.append(self.cell(arm, "corrected", task, values, epochs))
            if self.request.steps_wanted:
                budget = self.budget("steps", self.sizes.steps)
                cells.append(self.cell(arm, "corrected-steps", task, values, budget))
        return cells


def regression_sizes(request: Request, dataset: str, experiment: str, full_epochs: int | None = None) -> Sizes:
    """K, M, batch and epochs of a regression experiment at the request's scale; `full_epochs` overrides the paper's."""
    scale = request.at
    n_subsets = min(published.subsets(experiment), scale.most_subsets)
    if experiment == "small":
        small = published.protocol("small")
        # NOTE[DIFF]: with M = 10 and 11 features RLP would be MSE on Wine; M = 12 is the least that is not.
        size = max(small["subset_size"], 12 if dataset == "wine" else 0)
        full = int(small["epochs"])
        return Sizes(n_subsets, size, small["batch_size"], scale.epochs("small", full), full)
    common = published.protocol("regression")
    family, full = {"mae": ("mae", published.protocol("mae")["epochs"])}.get(
        experiment, ("sweep" if experiment in ("shift", "noise") else "regression", published.epochs(dataset))
    )
    full = full_epochs or full
    return Sizes(n_subsets, common["subset_size"], common["batch_size"], scale.epochs(family, full), full)


def regression_cells(
    request: Request,
    dataset: str,
    experiment: str,
    arms: Iterable[str],
    *,
    n_train: int | None = None,
    variants: tuple[Settings, ...] = ((),),
    region: str | None = None,
    metrics: str = "mse,rlp",
    corrected: bool = False,
    name: str | None = None,
    full_epochs: int | None = None,
) -> list[Cell]:
    """All cells of one regression dataset in one experiment; `name` is the task's name, the dataset's if None."""
    arms = request.pick_arms(arms)
    sweep = variants != ((),)
    maker = Maker(
        request,
        regression_sizes(request, dataset, experiment, full_epochs),
        published.hyper(dataset, experiment),
        request.seeds_for("sweep" if sweep else "regression"),
        points=250 if request.scale == "paper" else 50,
        short_last=sweep,
    )
    base: dict[str, Scalar] = {
        "dataset": dataset, "model": "regression", "n_train": n_train, "region": region, "metrics": metrics,
    }  # fmt: skip
    task = Task(name or dataset, settings(base), variants)
    cells = maker.released(arms, task) + maker.paper(arms, task)
    if corrected:
        # Raw features handicap every arm; RLP on centred features needs its intercept (it cannot see an
        # offset).
        standard = replace(task, settings=settings(base | {"scaling": "standard"}))
        affine: dict[str, Scalar] = {"probe": "subset", "subsets_per_step": 1, "plan": "once", "intercept": True}
        cells += maker.corrected([a for a in arms if a != "mse_l2"], standard, rlp=affine)
    return cells


def time_cells(request: Request, dataset: str) -> list[Cell]:
    """RLP and MSE against elapsed seconds: K = 2000, a learning rate of 1e-6, each arm its own epochs."""
    given = published.protocol("time")
    at = given["datasets"].index(dataset)
    full_rlp, full_mse = int(given["rlp_epochs"][at]), int(given["mse_epochs"][at])
    epochs = request.at.epochs("time", full_rlp)
    common = published.protocol("regression")
    n_subsets = min(published.subsets("time"), request.at.most_subsets)
    sizes = Sizes(n_subsets, common["subset_size"], common["batch_size"], epochs, full_rlp)
    maker = Maker(request, sizes, published.hyper(dataset, "time"), request.seeds_for("time"), points=50)
    task = Task(dataset, settings({"dataset": dataset, "model": "regression", "metrics": "mse", "timed": True}))
    cells = []
    for arm in request.pick_arms(("mse", "rlp")):
        values = maker.optimiser(arm)
        if is_rlp(arm):
            values |= maker.subsets("released")
            budget = maker.budget("epochs", epochs)
        else:
            values |= {"batch_size": sizes.batch_size}
            budget = maker.budget("epochs", max(1, round(full_mse * epochs / full_rlp)))
        cells.append(maker.cell(arm, "released", task, values, budget))
    return cells


def autoencoder_cells(request: Request, dataset: str, arms: Iterable[str], *, n_train: int | None = None) -> list[Cell]:
    """All cells of one image set: |J| = 5000, or 50 or 100 with the sizes of the small experiments."""
    arms = request.pick_arms(arms)
    scale = request.at
    given = published.protocol("autoencoder")
    small = published.protocol("small")
    if n_train is None:
        full, family = published.epochs(dataset), dataset
        rows = min(5000, scale.most_rows)
        size, n_subsets = min(given["subset_size"], rows // 2), given["n_subsets"]
    else:
        full, family, rows = small["epochs"], "images-small", n_train
        size, n_subsets = small["subset_size"], published.subsets("small")
    n_subsets = min(n_subsets, scale.most_subsets)
    epochs = scale.epochs(family, full)
    maker = Maker(
        request,
        Sizes(n_subsets, size, size, epochs, full),
        published.hyper(dataset, "full" if n_train is None else "small"),
        request.seeds_for("images"),
        points=20 if n_train is None else max(1, epochs // 5),  # small sets are looked at after 5, 10, 50 epochs
    )
    tests = min(given["test_images"], scale.most_rows)
    kept: dict[str, Scalar] = {"model": "autoencoder", "metrics": "mse,rlp"}
    if dataset == "mnist" and n_train == 50:
        kept["keep"] = "reconstructions"
    first = Task(
        dataset,
        settings(
            {**kept, "dataset": "cifar10-released" if dataset == "cifar10" else dataset, "n_train": rows,
             "n_test": tests, "first": True}
        ),
    )  # fmt: skip
    plain: dict[str, Scalar] = {"optimizer": "sgd", "momentum": given["momentum_mse"]}
    heavy: dict[str, Scalar] = {"optimizer": "sgd", "momentum": given["momentum_rlp"]}
    by_arm = {"mse": plain, "mse_l2": plain, "rlp": heavy}
    cells = maker.released(arms, first, extra=by_arm, preset="released-autoencoder")
    if n_train is None:
        random = Task(
            dataset, settings({**kept, "dataset": dataset, "n_train": rows, "n_test": min(5000, scale.most_rows)})
        )
        # NOTE[DIFF]: K = 1000 factorisations of 1000×d matrices are out of reach of a step over all subsets.
        printed = replace(maker, sizes=replace(maker.sizes, n_subsets=min(n_subsets, 10)))
        cells += printed.paper(arms, random)
        cells += maker.corrected(
            [a for a in arms if a != "mse_l2"],
            random,
            extra={"mse": heavy, "rlp": heavy},
            rlp={"probe": "subset", "subsets_per_step": 1, "plan": "once", "intercept": False},
            batch_size=min(100, size),
        )
    return cells


def classifier_cells(
    request: Request, family: str, arms: Iterable[str], *, small: bool, epochs: int | None = None
) -> list[Cell]:
    """LeNet-5 on MNIST (`family="mnist_classes"`) or the Moons classifier (`"moons"`), at either size."""
    arms = request.pick_arms(arms)
    scale = request.at
    mixed = any(arm.endswith("_mixup") for arm in arms)
    moons = family == "moons"
    given = published.protocol("moons_small" if moons and small else family)
    full = epochs or given["epochs_mixup" if mixed and not moons else "epochs"]
    size = given["subset_size"]
    n_subsets = min(given["n_subsets"], scale.most_subsets)
    maker = Maker(
        request,
        Sizes(n_subsets, size, size, scale.epochs("moons" if moons else "classes", full), full),
        published.hyper(family, "small" if small else "full"),
        request.seeds_for("moons" if moons else "classes"),
        points=50 if moons else 20,
    )
    if moons:
        dataset = "moons-small" if small else "moons"
        base: dict[str, Scalar] = {"dataset": dataset, "model": "moons", "keep": "boundary"}
        # The paper has 900 of 1000 rows for training, the released code 500.
        by_paper: dict[str, Scalar] = {"n_train": given["train"], "n_test": given["test"]}
        by_code = by_paper if small else {"n_train": given["released_train"]}
    else:
        base = {"dataset": "mnist", "model": "lenet5"}
        rows = 100 if small else min(5000, scale.most_rows)
        tests = given["test_images_small"] if small else 5000
        by_paper = by_code = {"n_train": rows, "n_test": min(tests, scale.most_rows)}
    base |= {"metrics": "accuracy,f1"}
    name = family + ("-small" if small else "")
    released, printed = (Task(name, settings(base | part)) for part in (by_code, by_paper))
    softmax: dict[str, Scalar] = {"output": "softmax"}
    sigmoid: dict[str, Scalar] = {"output": "sigmoid"}
    decay = None if moons else 0.01  # torch's default, which the released classifiers leave in place
    cells = maker.released(arms, released, extra=dict.fromkeys(arms, softmax), default_decay=decay)
    logits: dict[str, Scalar] = {"output": "logits"}
    heads = {arm: sigmoid if is_rlp(arm) else logits for arm in arms}
    cells += maker.paper(arms, printed, extra=heads)
    # Cross entropy on logits instead of on a soft-max; RLP with the paper's sigmoid.
    cells += maker.corrected(
        arms, released, extra=heads, rlp={"probe": "subset", "subsets_per_step": 1, "plan": "once", "intercept": False}
    )
    return cells
