"""Anyone's loss as an arm; options that shorten a comparison; a terminal and a pipe."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tests.seeds import SEED

from rlploss import BatchLoss, Pointwise
from rlploss.cli import compare as command
from rlploss.cli import run
from rlploss.compare import Raw, arms, compare, comparison
from rlploss.lab.executors import Processes
from rlploss.lab.text import LabError
from rlploss.training import own
from rlploss.training.own import compile_loss

QUICK = ["--splits", "2", "--steps", "20", "--workers", "inline"]


def line(n=40):
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(n, 3))
    return X, X.sum(1) + 0.1 * rng.normal(size=n)


def squared(pred, target):
    return (pred - target).square()


def squared_of_a_batch(pred, target, features):
    return (pred - target).square().mean()


def test_a_loss_of_ones_own_that_is_mse_gives_what_mse_gives():
    X, y = line()
    mine = {
        "mine": squared,
        "batch": squared_of_a_batch,
        "value": Pointwise(squared),
        "lambda": lambda p, t: squared(p, t),
    }
    found = compare(
        X, y, arms=["mse", "mean"], losses=mine, n_splits=2, steps=20, random_state=SEED
    )
    for name in mine:
        np.testing.assert_allclose(found.values(name), found.values("mse"), rtol=1e-4)
    kinds = {type(a.estimator.loss) for a in found.arms if a.name in mine}
    assert kinds == {Pointwise, BatchLoss}
    assert found.answer().against.keys() >= {"mine", "mean"}


def test_a_loss_of_ones_own_is_compiled(monkeypatch):
    compiled = []

    def noted(*arguments):
        compiled.append(compile_loss(*arguments))
        return compiled[-1]

    monkeypatch.setattr(own, "compile_loss", noted)
    X, y = line()
    compare(X, y, arms=["mean"], losses={"mine": squared}, n_splits=2, steps=20)
    assert compiled
    assert all(isinstance(loss, own.CompiledLoss) for loss in compiled)


@pytest.mark.parametrize(
    ("losses", "options", "error", "message"),
    [
        ({"mse": squared}, {}, ValueError, "needs a name that no arm has, got 'mse'"),
        (
            {"mine": 3},
            {},
            TypeError,
            "the loss 'mine' must be a function or a Pointwise or BatchLoss value",
        ),
        (
            {"mine": lambda p, t: p - t},
            {"workers": "local:2"},
            ValueError,
            'must be "inline" for losses of this session',
        ),
    ],
)
def test_losses_that_cannot_be(losses, options, error, message):
    with pytest.raises(error, match=message):
        compare(*line(), arms=["mse", "mean"], losses=losses, n_splits=2, steps=20, **options)


def lost(pred, target):
    return (pred - target) * float("nan")


def test_a_loss_that_diverges_is_told_and_never_the_best():
    """Its weights stay as they began, which on a target without signal may well be the best."""
    X, _ = line()
    y = 1e-3 * np.random.default_rng(SEED).normal(size=len(X))
    found = compare(X, y, arms=["mse", "mean"], losses={"lost": lost}, n_splits=2, steps=20)
    assert [one.name for one in found.arms] == ["mean", "mse"]
    (note,) = found.notes
    assert note.startswith("Left out, because it could not be trained: lost (ValueError: ")
    assert "diverged" in note


def far_away(pred, target):
    """Finite for a few steps."""
    far_away.calls += 1
    return (pred - target).square() * (1.0 if far_away.calls < far_away.most else float("nan"))


def test_a_model_to_keep_that_diverges_is_an_error(monkeypatch):
    far_away.calls, far_away.most = 0, 10**9
    found = compare(
        *line(), arms=["mean", "mse"], losses={"far_away": far_away}, n_splits=2, steps=20
    )
    best = next(one for one in found.arms if one.name == "far_away")
    monkeypatch.setattr(type(found), "answer", lambda self: type("Made", (), {"best": best}))
    far_away.most = 0
    with pytest.raises(
        LabError, match="far_away could not be trained on all rows: every network diverged"
    ):
        found.best_model()


def test_a_lambda_is_not_kept_beyond_the_session(tmp_path):
    with pytest.raises(ValueError, match="a store keeps functions by name"):
        compare(
            *line(),
            arms=["mse", "mean"],
            losses={"m": lambda p, t: (p - t) ** 2},
            n_splits=2,
            out=tmp_path / "o",
        )


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = line()
    pd.DataFrame(X, columns=list("abc")).assign(y=y).to_csv("t.csv", index=False)
    Path("mine.py").write_text(
        "class Cubed:\n    def __call__(self, pred, target):\n        return (pred - target).abs()"
        " ** 3\ndef quartic(pred, target):\n    return (pred - target) ** 4\nfrom"
        " torch.nn.functional import smooth_l1_loss\nconstant = 3\nclass Power:\n    def"
        " __init__(self, power):\n        pass\ndef single(pred):\n    return pred\n"
    )
    Path("other.py").write_text(Path("mine.py").read_text())
    Path("broken.py").write_text("import nothing_of_that_name\n")
    Path("ends.py").write_text("import sys\nsys.exit(3)\n")


@pytest.mark.usefixtures("_here")
def test_losses_from_a_file(capsys):
    losses = ["--loss", "mine.py:quartic"]
    assert run(["compare", "t.csv", "--target", "y", "--arms", "mse,mean", *losses, *QUICK]) == 0
    assert "quartic" in capsys.readouterr().out


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (["gone.py:f"], "takes FILE.py:NAME of a file"),
        (
            ["mine.py:none"],
            "--loss mine.py:none cannot be used (LookupError: there is no 'none' in it)",
        ),
        (
            ["mine.py:constant"],
            "(TypeError: the loss 'constant' must be a function or a Pointwise or BatchLoss value",
        ),
        (
            ["mine.py:Power"],
            (
                "(TypeError: Power.__init__() missing 1 required positional argument: 'power');"
                " correct"
            ),
        ),
        (["mine.py:single"], "(TypeError: BatchLoss takes a function of (pred, target, features)"),
        (
            ["broken.py:f"],
            (
                "(ModuleNotFoundError: No module named 'nothing_of_that_name'); correct the file or"
                " name"
            ),
        ),
        (["ends.py:f"], "--loss ends.py:f cannot be used (SystemExit: 3)"),
        (
            ["mine.py:quartic", "other.py:quartic"],
            "a name that no arm has, got 'quartic'; rename it",
        ),
    ],
)
def test_bad_losses_are_one_sentence_and_exit_code_2(losses, message, capsys):
    words = [word for loss in losses for word in ("--loss", loss)]
    for start in (["compare", "t.csv", "--target", "y"], ["survey", "--tables", "quake"]):
        assert run([*start, *words]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


@pytest.mark.usefixtures("_here")
def test_a_loss_that_a_file_imports_from_a_library(capsys):
    words = [
        "compare",
        "t.csv",
        "--target",
        "y",
        "--arms",
        "mse,mean",
        "--loss",
        "mine.py:smooth_l1_loss",
    ]
    assert run([*words, "--splits", "2", "--steps", "20"]) == 0
    said = capsys.readouterr()
    assert "workers" not in said.err
    assert (
        "could not be trained: smooth_l1_loss (ValueError: a Pointwise function must return one"
        " value" in said.out
    )


def test_which_losses_stay_in_this_process():
    def stays(function):
        return comparison.stays_here(
            arms.arms_for("regression", names=["mse", "mean"], losses={"mine": function})
        )

    assert not stays(squared)
    assert not stays(torch.nn.functional.smooth_l1_loss)
    assert not stays(torch.nn.SmoothL1Loss(reduction="none"))
    assert stays(lambda pred, target: pred)
    of_a_script = type(squared)(squared.__code__, {}, "squared")
    of_a_script.__module__ = "__main__"
    assert stays(of_a_script)


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_here", "_two_threads")
def test_a_loss_from_a_file_is_trained_in_other_processes_too(capsys, monkeypatch):
    monkeypatch.setattr(comparison, "WORTH_PROCESSES", 0.0)
    monkeypatch.setattr(comparison, "cores", lambda: 2)
    trained, submit = [], Processes.submit
    monkeypatch.setattr(
        Processes, "submit", lambda self, *a, **k: trained.append(self) or submit(self, *a, **k)
    )
    losses = ["--loss", "mine.py:quartic", "--loss", "mine.py:Cubed"]
    assert (
        run(
            [
                "compare",
                "t.csv",
                "--target",
                "y",
                "--arms",
                "mse,mean",
                *losses,
                "--splits",
                "2",
                "--steps",
                "20",
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert "quartic" in told.out
    assert "Cubed" in told.out
    assert len(trained) == 8  # four arms on two splits
    assert len(set(map(id, trained))) == 1  # the processes stay from stage to stage


@pytest.mark.usefixtures("_here")
def test_json_quiet_and_the_default_directory(capsys):
    words = ["compare", "t.csv", "--target", "y", "--arms", "ridge,mean", *QUICK]
    assert run([*words, "--json"]) == 0
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert said.err == ""
    assert data["best"] == "ridge"
    assert Path("t-y/report.html").exists()
    assert run([*words, "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == data["summary"].splitlines()
    assert len(said.out.splitlines()) == 3


@pytest.mark.usefixtures("_here")
def test_another_tables_report_is_never_overwritten(capsys):
    words = ["--target", "y", "--arms", "ridge,mean", *QUICK, "--out", "out", "--quiet"]
    assert run(["compare", "t.csv", *words]) == 0
    before = Path("out/report.html").read_bytes()
    pd.read_csv("t.csv").rename(columns={"a": "z"}).to_csv("other.csv", index=False)
    assert run(["compare", "other.csv", *words]) == 2
    assert (
        "out holds the report of another table, t.csv with the target 'y'; choose another"
        in capsys.readouterr().err
    )
    assert Path("out/report.html").read_bytes() == before


def test_a_time_limit_ends_the_training_and_says_so(monkeypatch):
    import time

    X, y = line()
    began, real = time.monotonic(), time.monotonic
    monkeypatch.setattr("rlploss.compare.train.NetworkCV.fit", lambda self, *_, **__: _wait())
    found = compare(
        X, y, arms=["ridge", "mean", "mse"], n_splits=2, time_limit=1.0, random_state=SEED
    )
    assert real() - began < 5
    assert [a.name for a in found.arms] == ["mean", "ridge"]
    assert "The time limit of 1 s ended the training; not trained at all: MSE." in found.notes
    with pytest.raises(
        LabError, match="fewer than two arms were trained within 1 s; give more time"
    ):
        compare(X, y, arms=["ridge", "mse"], n_splits=2, time_limit=1.0)


def _wait():
    import time

    while True:
        time.sleep(0.02)


def test_arms_that_are_clearly_behind_end_after_three_splits():
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(200, 2))
    found = compare(
        X,
        X @ [1.0, 2.0],
        arms=["ridge", "mae", "huber", "rlp"],
        n_splits=6,
        steps=8,
        random_state=SEED,
    )
    n = {a.name: len(found.values(a.name)) for a in found.arms}
    assert n["ridge"] == n["rlp"] == 6
    assert sorted((n["mae"], n["huber"])) == [
        3,
        6,
    ]  # the better of the networks without RLP goes on
    assert any(note.startswith("Ended after 3 splits, clearly behind: ") for note in found.notes)
    assert len(found.table) == 4


def test_the_help_names_every_arm():
    told = (
        command.ARMS.replace("regression: ", "")
        .replace("classification: ", "")
        .replace(";", ",")
        .split(", ")
    )
    assert told == [
        a.name for a in (*arms.arms_for("regression", 100), *arms.arms_for("classification", 100))
    ]


@pytest.mark.parametrize(
    "known", [arms.arms_for("regression", 100), arms.arms_for("classification", 100)]
)
def test_curves_of_one_panel_have_colours_of_their_own(known):
    styles = [
        a.style
        for a in known
        if a.takes_steps and not a.mixes_rows and a.name not in ("mae", "huber")
    ]
    assert len(set(styles)) == len(styles)


def test_quick_takes_fewer_arms_and_splits():
    for task, known in (
        ("regression", arms.arms_for("regression", 100)),
        ("classification", arms.arms_for("classification", 100)),
    ):
        assert set(arms.QUICK[task]) < {a.name for a in known}


def test_a_table_fits_a_terminal(capsys):
    from rich.console import Console

    from rlploss.compare.report import result_table
    from rlploss.lab.report import show

    X, y = line()
    found = compare(X, y, arms=["ridge", "mean"], n_splits=2)
    show(Console(force_terminal=True, width=80), result_table(found.results, short=True))
    said = capsys.readouterr().out
    assert "ridge regression" in said
    assert "|" not in said
    plain = re.sub(r"\x1b\[[\d;]*m", "", said)  # without the codes of colours
    assert max(map(len, plain.splitlines())) <= 80


@pytest.mark.usefixtures("_here")
def test_models_from_a_file(capsys):
    Path("models.py").write_text(
        "from sklearn.linear_model import Lasso\nown_lasso = Lasso(0.01)\nclass Mine(Lasso):\n"
        "    pass\nnothing = 3\n"
    )
    words = ["compare", "t.csv", "--target", "y", "--arms", "mean,ridge", "--splits", "2"]
    own = ["--model", "models.py:own_lasso", "--model", "models.py:Mine"]
    assert run([*words, *own, "--out", "o"]) == 0
    said = capsys.readouterr().out
    assert "own_lasso" in said
    assert "Mine" in said
    assert run([*words, "--model", "models.py:nothing", "--out", "p"]) == 2
    said = capsys.readouterr().err
    assert "--model models.py:nothing cannot be used" in said
    assert "must be an estimator with fit and predict, got 3" in said
    assert said.count("\n") == 1
    assert not Path("p").exists()


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (np.mean, TypeError, "the model 'mine' must be an estimator with fit and predict"),
        (Ridge, TypeError, "the model 'mine' must be an estimator with fit and predict"),
    ],
)
def test_models_that_cannot_be(model, error, message):
    with pytest.raises(error, match=message):
        compare(*line(), arms=["mean"], models={"mine": model}, n_splits=2)
    with pytest.raises(ValueError, match="needs a name that no arm has, got 'ridge'"):
        compare(*line(), arms=["mean"], models={"ridge": Ridge()}, n_splits=2)


def test_an_estimator_of_ones_own_gives_what_it_gives_alone():
    X, y = line(60)
    found = compare(X, y, arms=["mean"], models={"mine": Ridge(0.5)}, n_splits=3)
    for seed, value in zip(found.seeds, found.values("mine"), strict=True):
        train, test = found.rows.split(seed)
        scaled = StandardScaler().fit(X[train])
        alone = Ridge(0.5).fit(scaled.transform(X[train]), y[train])
        error = alone.predict(scaled.transform(X[test])) - y[test]
        assert value == pytest.approx(np.sqrt(np.mean(error**2)))


def test_an_estimator_on_the_raw_frame():
    """It sees the columns as they are in the table, texts among them."""
    rng = np.random.default_rng(SEED)
    X = pd.DataFrame({"city": rng.choice(["Rome", "Oslo", "Bern"], 60), "a": rng.normal(size=60)})
    y = (X["city"] == "Oslo") * 3 + X["a"]
    encode = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    mine = Raw(make_pipeline(encode, Ridge(1e-6)))
    found = compare(X, y, arms=["mean"], models={"mine": mine}, n_splits=3)
    assert found.values("mine").max() < 1e-4
