"""Every name that `rlploss reproduce` knows: what it is, which cells it needs, how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlploss import _checks
from rlploss.lab.report import Section
from rlploss.lab.study import Cell
from rlploss.paper import sections, sections_images, sections_static, studies
from rlploss.paper.protocols import ARMS
from rlploss.paper.request import Request
from rlploss.paper.view import View

DATASET_NAMES = ("california", "wine", "linear", "nonlinear", "mnist", "cifar10", "moons")


@dataclass(frozen=True)
class Artefact:
    """One table or figure."""

    name: str
    what: str
    cells: studies.Cells
    section: Callable[[View], Section]


_ALL = [
    Artefact("table1", "Table 1: six datasets × MSE, MSE+L2, RLP", studies.table1, sections.table1),
    Artefact("fig-curves", "test MSE against training, six panels", studies.table1, sections.curves),
    Artefact("table2", "Table 2: 50 training examples", studies.table2, sections.table2),
    Artefact("fig-small-50", "curves with 50 examples", studies.small_50, sections.small_50),
    Artefact("fig-small-100", "curves with 100 examples", studies.small_100, sections.small_100),
    Artefact("fig-shift", "distribution shift γ, two regions", studies.shift, sections.shift),
    Artefact("fig-noise", "additive noise β", studies.noise, sections.noise),
    Artefact(
        "fig-reconstructions", "digits after 5, 10, 50 epochs", studies.reconstructions, sections_images.reconstructions
    ),
    Artefact(
        "fig-mnist-classes", "LeNet-5, 5000 and 100 examples", studies.mnist_classes, sections_images.mnist_classes
    ),
    Artefact("fig-moons", "Moons, with decision boundaries", studies.moons, sections_images.moons),
    Artefact("fig-mixup-curves", "mixup, no ablations", studies.mixup_curves, sections.mixup_curves),
    Artefact("fig-mixup-small", "mixup, 50 and 100 examples", studies.mixup_small, sections.mixup_small),
    Artefact("fig-mixup-shift", "mixup under shift", studies.mixup_shift, sections.mixup_shift),
    Artefact("fig-mixup-noise", "mixup under noise", studies.mixup_noise, sections.mixup_noise),
    Artefact("fig-time", "test MSE against seconds", studies.elapsed, sections.elapsed),
    Artefact("fig-mae", "RLP against MAE", studies.mae, sections.mae),
    Artefact("fig-planes", "functions and their planes", studies.nothing, sections_static.planes),
    Artefact("fig-networks", "the four networks", studies.nothing, sections_static.networks),
    Artefact("tables-hyperparameters", "hyperparameters", studies.nothing, sections_static.hyperparameters),
    Artefact("propositions", "the propositions, measured", studies.propositions, sections_static.propositions),
]
CATALOG = {artefact.name: artefact for artefact in _ALL}


def choose(names: Iterable[str]) -> list[str]:
    """The names asked for, in the order of the catalogue; `all` is everything."""
    wanted = list(names)
    for name in wanted:
        _checks.one_of("name", name, (*CATALOG, "all"))
    if not wanted:
        raise ValueError('name at least one table or figure, got none; "all" is everything, --list shows them')
    return list(CATALOG) if "all" in wanted else [name for name in CATALOG if name in wanted]


def check_narrowing(request: Request) -> None:
    """Datasets and arms must be known by name."""
    for name in request.datasets or ():
        _checks.one_of("dataset", name, DATASET_NAMES)
    for name in request.arms or ():
        _checks.one_of("arm", name, ARMS)


def cells_of(names: Iterable[str], request: Request) -> list[Cell]:
    """All cells of some names, with repetitions."""
    return [cell for name in names for cell in CATALOG[name].cells(request)]
