"""The survey: its splits and cells, its numbers over tables, its report and its command."""

import json
import math
import pickle
from dataclasses import asdict

import numpy as np
import pytest
from matplotlib.figure import Figure as MplFigure
from scipy import stats as scipy_stats

from rlploss import cli
from rlploss.cli.compare import _own_losses
from rlploss.datasets.tables import SurveyTable
from rlploss.lab import report, stats
from rlploss.lab.store import Store, code_version
from rlploss.lab.study import CellResult, StoredCell, TrainedNetwork, loss_json
from rlploss.survey import run as survey
from rlploss.survey import tables as survey_tables
from rlploss.survey.report import _ratio, answers, build, ratios_drawing
from rlploss.survey.results import WORDS, Ranks, Survey
from rlploss.survey.run import SurveyArm, SurveyRequest, SurveyTrainer
from rlploss.survey.tables import drawn_rows, half_of, load_rows, table_names

DEVELOPMENT, HELD_OUT = ("c", "e"), ("a", "b")  # by the hash of their names, as a test below says
SIZES = {"a": 300, "b": 120}
NAMES = "abcdefghijlmnopqrstuv"


def fake(name, n=200):
    """A table: "a" is a plane without noise, "b" is noise, "k" has classes, others are curved."""
    rng = np.random.default_rng(len(name))
    X = rng.normal(size=(SIZES.get(name, n), 3))
    y = {"a": X @ [1.0, 2.0, 3.0], "b": rng.normal(size=len(X)), "k": (X[:, 0] > 0) * 1.0}
    return X, y.get(name, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=len(X)))


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    made = {
        name: SurveyTable(
            name,
            f"{name}.txt",
            name * 64,
            1,
            collection="survey-classes" if name == "k" else "survey",
        )
        for name in [*NAMES, "k"]
    }
    for module in (survey, survey_tables):
        monkeypatch.setattr(module, "survey_tables", lambda: made)
    monkeypatch.setattr(survey_tables, "load_table", lambda name, progress: fake(name))
    for cached in (load_rows, drawn_rows):
        cached.cache_clear()
    yield made
    for cached in (load_rows, drawn_rows):
        cached.cache_clear()


# Splits and cells


def test_random_splits_and_splits_inside_and_outside():
    rows = load_rows("a")
    for outside in (False, True):
        parts = [drawn_rows("a", 50, outside).split(seed) for seed in (0, 1)]
        for fit, test in parts:
            assert len(fit) == 50
            assert not set(fit) & set(test)
            assert not outside or (rows.inside[fit].all() and not rows.inside[test].any())
        assert set(parts[0][0]) != set(parts[1][0])
        assert set(parts[0][1]) != set(parts[1][1])
    whole = drawn_rows("a", 1000, True).split(0)
    assert [len(part) for part in whole] == [
        112,
        112,
    ]  # three quarters of each half: another seed has others


def test_few_rows_come_first_and_no_table_is_drawn_twice_with_the_same_rows():
    request = SurveyRequest(("a", "b"), rows=(1000, 100), splits=5)
    drawn = [(task.table, task.rows, task.outside) for task in request.tasks]
    assert drawn == [
        ("a", 100, False), ("b", 100, False), ("a", 100, True), ("b", 100, True), ("a", 1000, False), ("a", 1000, True),
    ]  # fmt: skip
    cells = request.cells()
    assert len({cell.hash for cell in cells}) == len(cells) == 6 * len(request.arms)
    assert {len(cell.seeds) for cell in cells if cell.task.outside} == {3}
    assert {len(cell.seeds) for cell in cells if not cell.task.outside} == {5}


def test_halves_and_wine_once(tables):
    assert [name for name in DEVELOPMENT + HELD_OUT if half_of(name) == "development"] == [
        *DEVELOPMENT
    ]
    both = [table_names(half=half) for half in ("development", "held-out")]
    assert not set(both[0]) & set(both[1])
    assert sorted(both[0] + both[1]) == sorted(table_names())
    assert both[0].count("wine") == 1
    assert "k" not in table_names()
    assert table_names("classification") == ["k"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tables": ()}, "at least one table"),
        ({"tables": ("zebra",)}, "zebra"),
        ({"tables": ("k",)}, "'k'"),
        ({"rows": (3,)}, "rows"),
        ({"splits": 1}, "splits"),
    ],
)
def test_bad_requests_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        SurveyRequest(**{"tables": ("a",)} | options)


def one_cell(name, arm, *, rows=40, steps=40, outside=False, kind="regression", loss=""):
    request = SurveyRequest((name,), (rows,), 2, steps, kind=kind)
    task = next(task for task in request.tasks if task.outside == outside)
    return request.cell(SurveyArm(arm, arm, loss), task)


def test_cells_tell_of_steps_where_there_are_some():
    own = loss_json("cubic", cubic, ())
    shown = [
        str(one_cell("a", arm, loss=loss))
        for arm, loss in (("rlp", ""), ("cubic", own), ("ridge", ""))
    ]
    ends = [text.removeprefix("a, 40 rows · ") for text in shown]
    assert ends == ["rlp · 40 steps", "cubic · 40 steps", "ridge"]


def train(cell, tell):
    return SurveyTrainer.of([cell.task.table])(cell, tell)


def test_a_worker_needs_no_data_of_its_own(monkeypatch):
    sent, cell = pickle.dumps(SurveyTrainer.of(["a"])), one_cell("a", "ridge")
    for cached in (load_rows, drawn_rows):
        cached.cache_clear()
    monkeypatch.setattr(
        survey_tables, "load_table", lambda *_, **__: pytest.fail("a worker looked for the table")
    )
    found = pickle.loads(sent)(cell, lambda done: None)
    assert len(found.networks) == 2


@pytest.mark.parametrize("arm", ["ridge", "rlp", "mse+l2"])
def test_an_arm_is_trained_on_every_split(arm):
    found = train(one_cell("a", arm), lambda done: None)
    assert [one.seed for one in found.networks] == [0, 1]
    assert all(one.values["n_train"] == 40 and not one.artifacts for one in found.networks)
    noise = np.std(fake("a")[1])
    assert all(
        0 < one.values["rmse"] < (0.01 if arm == "ridge" else 2) * noise for one in found.networks
    )


def test_classes_are_trained_too():
    found = train(one_cell("k", "logistic", kind="classification"), lambda done: None)
    assert all(0 < one.values["brier"] < 0.3 for one in found.networks)


def test_the_twin_tries_as_many_settings():
    X, y = fake("a")
    counts = []
    for name in ("rlp-cv", "mse-cv"):
        model = survey.estimator_arm(SurveyArm(name, name), "regression", 40, 40).estimator
        model.set_params(max_iter=1, max_doublings=0, cv=2).fit(X[:30], y[:30])
        counts.append(len(model.cv_results_["params"]))
        sizes = set(model.cv_results_["param_subset_size"].tolist())
        assert len(sizes) == (2 if name == "rlp-cv" else 1)
    assert counts[0] == counts[1]


CUBIC = "def cubic(pred, target):\n    return (pred - target).abs() ** 3\n"


def cubic(pred, target):
    return (pred - target).abs() ** 3


def test_a_loss_of_ones_own_is_an_arm_that_any_process_can_load():
    loss = loss_json("cubic", cubic, survey.ARMS["regression"])
    request = SurveyRequest(("a",), (40,), 2, losses=(("cubic", loss),))
    assert request.arms[-1] == SurveyArm("cubic", "cubic", loss)
    found = train(one_cell("a", "cubic", steps=8, loss=loss), lambda done: None)
    assert all(one.values["rmse"] > 0 for one in found.networks)
    with pytest.raises(ValueError, match="define it with def"):
        loss_json("mine", lambda pred, target: (pred - target) ** 4, ())
    with pytest.raises(ValueError, match="no arm has"):
        loss_json("rlp", cubic, survey.ARMS["regression"])


def test_a_loss_from_a_file_reaches_processes_that_cannot_import_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(CUBIC)
    monkeypatch.setattr(survey, "ARMS", {"regression": ["ridge"]})
    monkeypatch.setattr("rlploss.cli.survey.render", lambda *_: None)  # which wants every arm
    words = ["survey", "--tables", "a", "--rows", "40", "--splits", "2", "--quick"]
    own = ["--loss", f"{tmp_path / 'mine.py'}:cubic", "--workers", "local:1"]
    assert cli.run([*words, *own, "--out", str(tmp_path / "s")]) == 0
    loss = dict(_own_losses([f"{tmp_path / 'mine.py'}:cubic"], ()))["cubic"]
    with Store(tmp_path / "s", code_version=code_version(*survey.DECIDING)) as store:
        cells = SurveyRequest(("a",), (40,), 2, 1000, (("cubic", loss),)).cells()
        mine = [store.read(cell) for cell in cells if cell.arm.name == "cubic"]
    assert len(mine) == 2  # random splits, and splits outside
    assert all(cell.final("rmse").min() > 0 for cell in mine)
    with pytest.raises(ValueError, match="no arm has, got 'cubic'"):
        _own_losses([f"{tmp_path / 'mine.py'}:cubic"] * 2, ())


def test_the_command_in_the_report_makes_the_same_survey(tmp_path):
    (tmp_path / "mine.py").write_text(CUBIC)
    losses = _own_losses([f"{tmp_path / 'mine.py'}:cubic"], survey.ARMS["regression"])
    request = SurveyRequest(("a", "b", "c"), (40,), 3, 1000, losses)
    command = build(made_survey((), lambda t: 0.0, request=request), tmp_path).sections[0].command
    assert f"--rows 40 --splits 3 --loss {tmp_path / 'mine.py'}:cubic --quick --out" in command
    assert (
        "--quick" not in build(made_survey(("a", "b"), lambda t: 0.0), tmp_path).sections[0].command
    )


# Numbers


def made_survey(names, effect, *, rows=(100,), splits=6, noise=0.02, request=None):
    """A survey with made-up errors: RLP's ratio on a table is exp(effect(traits)), with made-up
    traits and a little noise."""
    request = request or SurveyRequest(tuple(names), rows, splits)
    levels = {arm.arm: 1.0 + 0.2 * at for at, arm in enumerate(request.arms)}

    def read(cell):
        table = cell.task.table
        own = np.random.default_rng([ord(letter) for letter in table] + [cell.task.rows])
        traits = {
            "linear": own.random(),
            "noise": own.random(),
            "distance": 1 + own.random(),
            "columns": own.integers(2, 30),
        }
        rng = np.random.default_rng(
            [len(cell.arm.arm), cell.task.rows, ord(table[0]), cell.task.outside]
        )
        networks = []
        for seed in cell.seeds:
            error = levels.get(cell.arm.arm, 1.0) * math.exp(noise * rng.normal())
            if cell.arm.arm == "rlp":
                error = levels["mse+l2"] * math.exp(effect(traits) + noise * rng.normal())
            values = {
                "rmse": math.sqrt(error),
                "n_test": 400,
                "n_train": 100,
                "subset_size": seed % 2,
                "n_rows": 4000,
            }
            networks.append(TrainedNetwork(seed, 0, {}, 1.0, values))
        return StoredCell(
            tuple(networks), {"engine": "kernel", "machine": {"processor": "one"}}, 2.0
        )

    return Survey(request, read)


def test_ratios_over_tables_are_geometric_means_with_t_intervals():
    found = made_survey(NAMES, lambda t: 0.3 * t["noise"])
    tasks = found.tasks((100, False))
    c = found.over(tasks, "rlp", "mse+l2")
    logs = [
        np.mean(np.log(found.errors(t, "rlp")) - np.log(found.errors(t, "mse+l2"))) for t in tasks
    ]
    test = scipy_stats.ttest_1samp(logs, 0.0)
    assert c.effect == pytest.approx(math.exp(np.mean(logs)))
    assert [c.low, c.high] == pytest.approx(np.exp(test.confidence_interval()))
    assert c.p == pytest.approx(test.pvalue)
    assert c.word == "worse"
    assert sum(found.tally(tasks, "rlp", "mse+l2").values()) == len(tasks) == 21
    assert found.stays(tasks) == 0.5
    median, wins = found.spread(tasks, "rlp", "mse+l2")
    assert median == pytest.approx(np.median(np.exp(logs)))
    assert wins == sum(log < 0 for log in logs)


def test_a_readers_loss_is_compared_with_the_plain_one():
    loss = loss_json("cubic", cubic, survey.ARMS["regression"])
    request = SurveyRequest(("a",), (40,), 2, losses=(("cubic", loss),))
    assert Survey(request, lambda cell: None).pairs[-1] == ("cubic", "mse")


def test_pairs_are_of_arms_that_are_trained():
    for kind, pairs in survey_tables.FACTS["pairs"].items():
        assert {arm for pair in pairs for arm in pair} <= set(survey.ARMS[kind])


def test_outside_overlap_is_that_of_the_rows_that_could_be_tested():
    found = made_survey(("a", "b", "c"), lambda t: 0.1)
    task = next(task for task in found.cells if task.outside)
    n_test, n_rows = (found.cells[task]["rlp"].mean(name) for name in ("n_test", "n_rows"))
    expected = stats.compare(
        found.errors(task, "rlp"), found.errors(task, "mse"), overlap=n_test / (n_rows / 2 - n_test)
    )
    assert found.on(task, "rlp", "mse") == expected


def test_an_interval_wider_than_a_factor_of_ten_is_no_result():
    wide, narrow = (
        stats.Contrast(0.1, 0.1 / factor, 0.1 * factor, 0.2, 11, True, "ratio")
        for factor in (4.0, 3.0)
    )
    assert _ratio(wide).startswith("too uncertain to say")
    assert _ratio(narrow) == "0.100 [0.0333, 0.300]"


@pytest.mark.parametrize(
    ("low", "high", "p", "said"),
    [
        (0.8, 0.9, 0.01, "better"),
        (1.1, 1.2, 0.01, "worse"),
        (0.96, 1.04, 0.5, "level"),
        (0.9, 1.04, 0.5, "undecided"),
    ],
)
def test_a_lack_of_evidence_is_undecided(low, high, p, said):
    assert stats.Contrast(math.sqrt(low * high), low, high, p, 9, high < 1, "ratio").word == said


def test_ranks_and_critical_difference():
    found = made_survey(NAMES, lambda t: -0.5, noise=0.0)
    made = found.ranks(found.tasks((100, False)))
    k = len(found.arms)
    assert made.means == tuple(sorted(made.means))
    assert sum(made.means) == pytest.approx(k * (k + 1) / 2)
    assert made.arms[0] == "rlp"
    assert made.p < 1e-6
    # Demšar's table of q at 5 %: 3.219 for eleven arms
    assert made.critical == pytest.approx(3.219 * math.sqrt(k * (k + 1) / (6 * 21)), rel=1e-3)


def test_groups_hold_what_cannot_be_told_apart_and_none_lies_in_another():
    made = Ranks(tuple("abcde"), (1.0, 1.5, 2.2, 3.0, 4.9), 0.01, 1.3, 9)
    assert made.groups() == [(0, 2), (2, 3)]
    assert Ranks(tuple("ab"), (1.0, 2.0), 0.01, 0.5, 9).groups() == []


# Report and command


def test_the_report_begins_with_the_answer_on_held_out_tables(tmp_path):
    found = made_survey(NAMES, lambda t: -0.3 - 0.1 * t["linear"])
    assert found.halves == ("held-out", "development")
    n = len({task.table for task in found.tasks(half="held-out")})
    first = answers(found)[0]
    assert first.startswith(
        f"Does RLP help? Squared errors, every loss tuned alike: RLP / MSE on {n} held-out tables,"
        " up to 100 training rows: 0."
    )
    made = build(found, tmp_path)
    page, *others = report.write(made, tmp_path)
    text = page.read_text()
    assert text.index(first[:40]) < text.index("Average ranks")
    assert {"ratios.svg", "ranks.svg", "pairs.csv", "pairs.md", "tables.csv"} <= {
        path.name for path in others
    }


def test_the_picture_has_every_table_once_sorted_in_its_half(tmp_path):
    found = made_survey(NAMES, lambda t: 0.2 * t["noise"])
    (picture,) = build(found, tmp_path).sections[0].figures
    for panel in picture.panels:
        names = [name for name, _, _ in panel.data]
        assert sorted(name for name in names if " tables" not in name) == sorted(NAMES)
        starts = [at for at, name in enumerate(names) if " tables" in name]
        for start, end in zip(starts, [*starts[1:], len(names)], strict=True):
            ratios = [value for _, _, value in panel.data[start + 1 : end]]
            assert ratios == sorted(ratios)


def test_tables_that_are_not_whole_are_left_out_and_told(tmp_path):
    whole = made_survey(("a", "b", "c"), lambda t: 0.0)
    cells = {(task, arm): cell for task, arms in whole.cells.items() for arm, cell in arms.items()}
    part = Survey(
        whole.request,
        lambda cell: (
            None
            if (cell.task.table, cell.arm.arm) == ("b", "gp")
            else cells[cell.task, cell.arm.arm]
        ),
    )
    assert {task.table for task in part.cells} == {"a", "c"}
    assert "2 of 6 tables and draws are not whole yet" in build(part, tmp_path).summary[-1]


@pytest.fixture
def stub(monkeypatch):
    """Training that takes no time; returns the cells that were trained."""
    trained = []

    def made(cell, tell):
        trained.append(cell)
        found = made_survey(
            (cell.task.table,),
            lambda t: 0.1,
            request=SurveyRequest((cell.task.table,), (cell.task.rows,), 3),
        )
        stored = found.cells[cell.task][cell.arm.arm]
        return CellResult(stored.networks, "none", 1, 0.1)

    monkeypatch.setattr(survey.SurveyTrainer, "__call__", lambda _, cell, tell: made(cell, tell))
    return trained


def run(*words):
    return cli.run(["survey", "--workers", "inline", *map(str, words)])


def test_the_command_resumes_and_reports(stub, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report.figures, "svg", lambda figure: "")  # another test draws
    out = tmp_path / "s"
    assert run("--out", out, "--tables", "a,c", "--rows", 40, "--splits", 3) == 0
    n, said = len(stub), capsys.readouterr().out
    assert n == 2 * 2 * 11
    assert [cell.task.outside for cell in stub] == [False] * (n // 2) + [True] * (n // 2)
    assert "Does RLP help?" in said
    assert (out / "report.html").exists()
    assert run("--out", out, "--tables", "a,c,e", "--rows", 40, "--splits", 3) == 0
    assert {cell.task.table for cell in stub[n:]} == {"e"}
    (out / "report.html").unlink()
    monkeypatch.setattr(
        "rlploss.survey.results.code_version", lambda *files: "newer"
    )  # rows of older code are shown
    assert cli.run(["report", str(out)]) == 0
    assert "another version of the code" in capsys.readouterr().out
    assert (out / "report.html").exists()
    assert len(stub) == n + 22


def test_the_time_is_learned_from_what_is_stored(stub, tmp_path):
    from rlploss.lab.executors import parse_workers
    from rlploss.lab.run import plan
    from rlploss.lab.store import Store

    done, new = (SurveyRequest(tables, (40,), 3) for tables in (("a", "c"), ("a", "c", "e")))
    with Store(tmp_path, code_version="x") as store:
        for cell in done.cells():
            store.write(cell, survey.SurveyTrainer({})(cell, print))
        todo = plan(new.cells(), store, cost=lambda cell: 10.0, workers=parse_workers("inline"))
    assert {cell.task.table for cell in todo.todo} == {"e"}
    assert set(todo.seconds.values()) == {0.1}  # what the stub says that each took


def test_a_store_cannot_name_code_that_is_run(tmp_path, capsys):
    """To train its rows again would be to load the file of a loss that its maker chose."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    where = {"function": "f", "where": str(tmp_path / "evil.py"), "source": ""}
    loss = json.dumps({"kind": "Pointwise", "function": where, "batch_size": None})
    crafted = SurveyRequest(("a",), (40,), 2, 10, losses=(("mine", loss),))
    with Store(tmp_path / "s", code_version="old") as store:
        store.write_request("survey", asdict(crafted))
        for cell in crafted.cells():
            if cell.arm.loss:
                networks = tuple(
                    TrainedNetwork(seed, 0, {"step": [0.0]}, 0.0) for seed in cell.seeds
                )
                store.write(cell, CellResult(networks, "none", 2, 0.1))
    assert cli.run(["report", str(tmp_path / "s"), "--declare-equal"]) == 2
    assert "has no rows of other code that this code could use" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_the_list_tells_the_time_and_trains_nothing(stub, tmp_path, capsys):
    assert run("--list", "--tables", "a,c", "--out", tmp_path / "s") == 0
    said = capsys.readouterr().out
    assert "| a | held-out | 300 | 3 |" in said
    assert "cells, about" in said
    assert not stub
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tables", "zebra"], "zebra"),
        (["--rows", "few"], "few"),
        (["--splits", "0"], "splits must be at least 2, got 0"),
        (["--half", "third"], "third"),
        (["--loss", "no.py:f"], "no.py"),
    ],
)
def test_bad_arguments_end_with_a_sentence(words, told, tmp_path, capsys):
    assert run("--out", tmp_path / "s", *words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_directory_of_another_command_is_refused(stub, tmp_path, capsys):
    from rlploss.lab.store import Store

    with Store(tmp_path / "s", code_version="x") as store:
        store.write_request("table1", {})
    assert run("--out", tmp_path / "s", "--tables", "a", "--rows", 40) == 2
    assert (
        "holds what `rlploss reproduce` made; choose another directory" in capsys.readouterr().err
    )
    assert not stub


def test_words_have_a_colour_and_a_tone():
    from rlploss.survey import report as survey_report

    assert (
        set(WORDS)
        == set(survey_report.COLOURS)
        == set(survey_report.ANSWERS)
        <= set(survey_report.TONES)
    )


def test_an_interval_that_leaves_the_picture_ends_in_an_arrow():
    rows = [("held-out, 2 tables", 1.0, 0.9, 1.1, "undecided"), ("both", 1.0, 0.01, 99.0, "undecided"),
            ("right", 1.2, 1.1, np.inf, "worse"), ("inside", 0.9, 0.8, 1.0, "level")]  # fmt: skip
    axes = MplFigure().add_subplot()
    ratios_drawing("100 training rows", rows).draw(axes)
    drawn = [(line.get_marker(), int(line.get_ydata()[0])) for line in axes.lines]
    assert [row for marker, row in drawn if marker == "<"] == [1]
    assert [row for marker, row in drawn if marker == ">"] == [1, 2]
    assert [row for marker, row in drawn if marker == "D"] == [0]
    assert [row for marker, row in drawn if marker == "o"] == [1, 2, 3]


def test_networks_that_stopped_at_different_steps_are_read(tmp_path):
    cell = one_cell("a", "mse")
    networks = tuple(
        TrainedNetwork(seed, 0, {"step": [0.0] * n, "validation": [1.0] * n}, 1.0, {"rmse": 1.0})
        for n, seed in enumerate(cell.seeds, 3)
    )
    with Store(tmp_path, code_version="e") as store:
        store.write(cell, CellResult(networks, "kernel", 1, 1.0))
        assert len(store.read(cell).networks) == len(cell.seeds)
