"""Sections of the report that no training stands behind: drawings, hyperparameters, measured statements."""

from __future__ import annotations

from rlploss.lab.figures import Figure, number
from rlploss.lab.files import Value
from rlploss.lab.report import Section, Table, Text
from rlploss.lab.study import Cell
from rlploss.paper import studies
from rlploss.paper.drawings import network_drawings, plane_drawings
from rlploss.paper.measure import variant_words
from rlploss.paper.request import Request
from rlploss.paper.tables import hyperparameter_tables
from rlploss.paper.view import Grid, View


def planes(view: View) -> Section:
    """The explanatory figures."""
    caption = "Lines through every pair of four points, of the true function (thick blue) and of a prediction (red)."
    figure = Figure("fig-planes", "A function and its planes", caption, plane_drawings(), 2)
    return Section(
        "fig-planes", "Why planes: two functions are equal if all their planes are", "Planes", figures=(figure,)
    )


def networks(view: View) -> Section:
    """The four architectures."""
    figure = Figure(
        "fig-networks", "The four networks", "Drawn from the modules that are trained.", network_drawings(), 2
    )
    return Section("fig-networks", "The networks", "Networks", figures=(figure,))


def hyperparameters(view: View) -> Section:
    """Both hyperparameter tables."""
    request = Request("paper", "epochs")
    used: dict[tuple[str, str], list[Cell]] = {}
    for experiment, make in (
        ("full", studies.table1), ("full", studies.mixup_curves), ("small", studies.table2),
        ("small", studies.mixup_small), ("shift", studies.mixup_shift), ("shift", studies.shift),
        ("noise", studies.mixup_noise), ("noise", studies.noise), ("mae", studies.mae), ("time", studies.elapsed),
        ("classes", studies.mnist_classes), ("classes", studies.moons),
    ):  # fmt: skip
        for cell in make(request):
            if cell.arm.protocol != "released":
                continue
            name = cell.task.name
            if experiment == "classes":
                family, _, is_small = name.partition("-")
                key = (family, "small" if is_small else "full")
            else:
                key = (name.split(" ")[0].split("-")[0], experiment)
            used.setdefault(key, []).append(cell)
    tables = hyperparameter_tables(used)
    lead = ("Read off the cells of the studies, released protocol at paper scale.",)
    return Section("tables-hyperparameters", "Hyperparameters", "Hyperparameters", lead, tables)


def _measured(grid: Grid, task: str, key: str, variant: int) -> float:
    """Mean over seeds of a measured value; NaN where it was not measured."""
    stored = grid.stored(task, "measured", "measured")
    return float("nan") if stored is None else float(stored.final(key, variant).mean())


def propositions(view: View) -> Section:
    """What the two propositions and three other statements come to when they are measured."""
    cells = studies.propositions(view.request)
    grid = view.grid(cells)
    by_name = {cell.task.name: cell for cell in cells}

    def table(task: str, title: str, header: tuple[str, ...], keys: tuple[str, ...], note: str) -> Table:
        rows: list[tuple[str, ...]] = []
        data: list[tuple[Value, ...]] = []
        for index, variant in enumerate(by_name[task].task.variants):
            values = [_measured(grid, task, key, index) for key in keys]
            rows.append((variant_words(variant), *(_shown(key, v) for key, v in zip(keys, values, strict=True))))
            data.append((variant_words(variant), *values))
        return Table(
            f"propositions-{task}", title, ("setting", *header), tuple(rows),
            data_header=("setting", *keys), data_rows=tuple(data), notes=(note,),
        )  # fmt: skip

    tables = (
        table(
            "floor", "Proposition 1: RLP at h = E[Y|X], label noise 1",
            ("measured", "standard error", "σ²d/(M − d − 1)"), ("value", "error", "exact"),
            "The paper's proof has 0 here. The value is a noise floor, and it is infinite at M = d + 1, the smallest "
            "M the paper allows: the measured mean there is a sample of a distribution without one.",
        ),
        table(
            "excess", "Proposition 1: what another function costs",
            ("bent function", "standard error", "a bump at x = 0", "standard error"),
            ("bent", "bent_error", "at_zero", "at_zero_error"),
            "Without an atom at the origin every deviation costs something: E[Y|X] is the only minimiser. With one "
            "(a share of 0.2 of the rows at 0), the value at the origin is free.",
        ),
        table(
            "condition", "Proposition 2: condition (iii) and its conclusion",
            ("E[a_jk a_lk], j ≠ l", "must be at least", "(iii) holds", "curvature RLP", "curvature MSE",
             "nearer, small steps", "up to step", "convergent up to"),
            ("different", "threshold", "holds", "curvature_rlp", "curvature_mse", "nearer", "good_step",
             "convergent_step"),
            "In the family h* + (θ* − θ), which satisfies condition (ii). Symmetric features have mean 0 where the "
            "condition asks for 1/d². Very skewed ones satisfy it; a small RLP step is then the nearer one, but not "
            "every convergent step is, which is what the proposition says.",
        ),
        table(
            "empirical", "The empirical loss and Definition 2.2", ("relative error",), ("error",),
            "Root mean square over samples of N rows; it falls where the definition is finite (M > d + 1).",
        ),
        table(
            "coverage", "Algorithm 1: rows in no subset, equal subsets, least and most appearances of a row",
            ("rows missing", "equal subsets", "least", "most"), ("missing", "equal", "least", "most"),
            "Algorithm 1 as printed drops the N mod M rows that are left after each shuffle.",
        ),
        table(
            "planes", "Functions that share all planes: free directions on N points",
            ("free directions",), ("nullity",),
            "0: equal on all N points. Rows at the origin are free, and one subset of all rows fixes its plane only.",
        ),
    )  # fmt: skip
    lead = ("Measured with the library's own loss on freshly drawn features; means over seeds.",)
    return Section("propositions", "The propositions, measured", "Propositions", lead, tables, (), grid.facts())


def _shown(key: str, value: float) -> Text:
    if key in ("holds", "nearer"):
        return Text("yes" if value > 0.5 else "no", "good" if value > 0.5 else "calm")
    return Text("infinite" if value != value and key == "exact" else number(value))
