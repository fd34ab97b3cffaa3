import math
from dataclasses import replace

import pytest
from benchmarks.costs import costs
from tests.lab.test_report import checked
from tests.paper import world

from rlploss.lab import report, stats
from rlploss.lab.figures import Panel, data_rows
from rlploss.lab.report import Report
from rlploss.lab.stats import Contrast
from rlploss.lab.study import distinct
from rlploss.paper import published
from rlploss.paper.request import Request
from rlploss.paper.results import effect
from rlploss.paper.sections import against_published
from rlploss.paper.studies import CATALOG, cells_of

REQUEST = Request("quick", seeds=3)
IMAGES = ("mnist", "cifar10", "cifar10-released")


@pytest.fixture(scope="module")
def sections():
    return {name: world.section(name, REQUEST, "gone") for name in CATALOG}


def test_every_name_has_a_section_with_something_in_it(sections):
    for name, section in sections.items():
        assert section.name == name
        assert section.tables or section.figures
        assert all(len(f.panels) for f in section.figures)


def test_names_of_tables_and_figures_are_distinct(sections):
    tables = [t.name for s in sections.values() for t in s.tables]
    figures = [f.name for s in sections.values() for f in s.figures]
    assert len(tables) == len(set(tables))
    assert len(figures) == len(set(figures))


def test_every_panel_of_curves_has_data_and_words(sections):
    for section in sections.values():
        for figure in section.figures:
            for panel in figure.panels:
                assert len(panel.describe()) > 20
                if isinstance(panel, Panel):
                    assert panel.lines, (figure.name, panel.title)


def test_every_figure_has_its_data(sections):
    for section in sections.values():
        for figure in section.figures:
            assert {row[0] for row in data_rows(figure)} == {panel.title for panel in figure.panels}


def test_curves_are_drawn_on_the_epoch_axis_and_on_the_step_axis(sections):
    main, *folded = sections["fig-curves"].figures
    assert [p.x_label for p in main.panels] == [
        "epochs",
        "optimiser steps",
    ] * 6  # side by side, task by task
    ends = (", equal epochs", ", equal steps")
    assert [p.title for p in main.panels] == [
        name + end for name in published.DATASETS.values() for end in ends
    ]
    assert not main.folded
    assert all(figure.folded for figure in folded)
    # The published values stand where epochs are equal.
    assert [bool(p.levels) for p in main.panels] == [True, False] * 6


def test_table1_has_published_and_our_numbers_side_by_side(sections):
    table, _, by_rlp = sections["table1"].tables
    assert table.header[:3] == ("dataset", "trained with", "published")
    assert table.header[3:6] == ("equal epochs", "against published", "equal steps")
    assert table.header[-1] == "n"
    assert {row[-1] for row in table.rows} == {"3"}
    assert len(table.rows) == len(by_rlp.rows) == 6 * 3
    row = next(r for r in table.rows if r[:2] == ("Linear", "RLP"))
    assert row[2] == "2.60e-6 ±\u00a01.70e-6"
    data = [dict(zip(table.data_header, r, strict=True)) for r in table.data_rows]
    wanted = {
        "dataset": "linear",
        "trained_with": "rlp",
        "measured_with": "mse",
        "protocol": "released",
    }
    mine = next(d for d in data if wanted.items() <= d.items())
    assert mine["published_mean"] == 2.6e-6
    assert mine["mean"] == pytest.approx(2.6e-6, rel=0.1)
    assert len(mine["cell"]) == 16


@pytest.fixture(scope="module")
def full():
    """Table 1 at the paper's epochs."""
    return world.section("table1", Request("paper", seeds=3), "gone")


def test_agreement_with_the_paper_is_judged_at_full_epochs_only(sections, full):
    assert {row[4] for row in sections["table1"].tables[0].rows} == {"–"}
    assert next(r for r in full.tables[0].rows if r[:2] == ("Linear", "RLP"))[4] == "same, +0.0 sd"


def test_ratio_tables_say_which_way_it_goes_where_that_is_judged(sections, full):
    table, at = full.tables[1], full.tables[1].header.index("equal steps")
    for row, quick in zip(table.rows, sections["table1"].tables[1].rows, strict=False):
        assert row[2].endswith("better")
        assert row[at].endswith("worse") or row[at] == "–"  # Wine for 500 epochs
        assert quick[2].endswith("]")


def test_missing_datasets_are_told_and_the_rest_is_shown():
    section = world.section("table1", REQUEST, "gone", without=IMAGES)
    assert any("MNIST: not tested (dataset mnist cannot be had)" in text for text in section.lead)
    rows = {r[0]: r for r in section.tables[0].rows}
    assert "MNIST" not in rows  # no row without numbers
    assert "±" in rows["Linear"][3]
    curves = world.section("fig-curves", REQUEST, "gone", without=IMAGES)
    mnist = next(p for p in curves.figures[0].panels if p.title == "MNIST, equal epochs")
    assert "cannot be had" in mnist.describe()


def test_a_name_without_any_of_the_datasets_asked_for_has_an_empty_table():
    section = world.section(
        "thresholds", Request("paper", datasets=("california",), seeds=3), "gone"
    )
    assert section.tables[0].rows == ()
    assert section.facts == (("Runs", "none"),)


def test_costs_are_by_name_and_network_and_no_cell_counts_twice():
    results = world.results(
        REQUEST, "gone", names=("table1", "fig-curves", "thresholds", "fig-moons", "propositions")
    )
    rows = costs(results)
    assert set(rows) == {
        "Table 1",
        "Moons",
        "Propositions",
        "all",
    }  # the others share all their cells with Table 1
    cells = distinct(cells_of(("table1", "fig-moons", "propositions"), REQUEST))
    assert rows["all"]["networks"] == sum(cell.n_replicas for cell in cells)
    assert rows["all"]["all"] == 3.0 * len(cells)  # what each cell of this world took
    assert rows["Table 1"]["autoencoder"] + rows["Table 1"]["regression"] == rows["Table 1"]["all"]
    assert rows["Moons"]["predicted"] > 0


def test_hyperparameters_are_those_of_the_cells(sections):
    regression, classes = sections["tables-hyperparameters"].tables
    assert len(regression.rows) + len(classes.rows) == len(published.HYPER)
    row = next(r for r in regression.rows if r[:2] == ("California", "no ablations"))
    assert row[2:] == ("adam", "0.0001", "0.0001", "0.25", "100", "1000", "100", "500")
    mnist = next(r for r in regression.rows if r[:2] == ("MNIST", "no ablations"))
    assert "paper: sgd_nesterov" in mnist[2]


def test_propositions_show_the_infinite_floor(sections):
    floor = sections["propositions"].tables[0]
    assert floor.data_rows[0][1] == 1.0
    assert math.isfinite(floor.data_rows[-1][3])


@pytest.mark.slow
def test_the_whole_page_is_well_formed(sections):
    page = checked(report.html(Report("all", ("s",), tuple(sections.values()))))
    assert page.loads == []
    assert len(page.ids) == len(set(page.ids))


def test_a_difference_of_rounding_is_told_as_0() -> None:
    comparison = Contrast(-7.4e-18, -0.00126, 0.00126, 1.0, 30, False, "difference")
    assert effect(comparison) == "0 [-0.00126,\u00a00.00126]"
    assert effect(replace(comparison, effect=1e-6, low=1e-8, high=100.0, scale="ratio")).startswith(
        "1.00e-6"
    )


@pytest.mark.parametrize(
    ("ends", "shown"),
    [
        ((0.5, 0.4, 0.6), "0.500 [0.400,\u00a00.600]"),
        ((1.002, 1.001, 1.003), "1.002 [1.001,\u00a01.003]"),
        ((1.0066, 1.0004, 1.0128), "1.0066 [1.0004,\u00a01.0128]"),
        ((0.24888, 0.24862, 0.24913), "0.2489 [0.2486,\u00a00.2491]"),
        ((2.0, 2.0, 2.0), "2.00 [2.00,\u00a02.00]"),
    ],
)
def test_an_interval_has_as_many_digits_as_tell_it_from_none(ends, shown) -> None:
    assert effect(Contrast(*ends, 0.01, 30, False, "ratio")) == shown


@pytest.mark.parametrize(
    ("ours", "shown"),
    [(0.0, "+0.0"), (-0.36, "−0.4"), (99.0, "+99.0"), (123.4, "+123"), (25333.9, "+25,300")],
)
def test_a_difference_in_standard_deviations_has_three_digits_at_most(
    monkeypatch, ours, shown
) -> None:
    monkeypatch.setattr(stats, "against_published", lambda *_: ("different", ours))
    grid = world.results(Request("paper", seeds=3), "gone", names=("table1",))["table1"]
    text = against_published(
        grid, "linear", "rlp", "mse", published.value("table1", "linear", "rlp", "mse")
    )
    assert text == f"different, {shown} sd"


def test_what_is_missing_is_told_by_its_column() -> None:
    def later(cell):
        return cell.arm.protocol in ("paper", "corrected") and cell.task.name == "cifar10"

    section = world.section("table1", Request("paper", seeds=2), "gone", later=later)
    assert section.lead[1:] == (
        "CIFAR-10 (as printed; corrected, equal epochs): not complete (not run yet).",
    )


def test_standard_errors_are_those_of_the_means(sections) -> None:
    floor, valley, condition, *_ = sections["propositions"].tables
    assert floor.data_rows[1][2] == pytest.approx(
        0.1 / math.sqrt(3)
    )  # of three seeds with 0.1 each
    assert valley.data_rows[0][-1] == pytest.approx(0.01 / math.sqrt(3))
    assert "standard errors" in condition.notes[0]
