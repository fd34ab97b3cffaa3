"""Loggers write what a run measured where the tools themselves find it, and never stop it."""

import csv
import json
import subprocess
import sys
from collections import Counter

import pytest
import torch
from tests.lab import stub

from rlploss import (
    MSE,
    CSVLogger,
    MLflowLogger,
    Problem,
    RegressionNet,
    Steps,
    TensorBoardLogger,
    fit,
    fit_fleet,
    seeded,
)
from rlploss._extras import missing
from rlploss.lab.run import note, tracking
from rlploss.lab.study import CellResult, TrainedNetwork

needs_mlflow = pytest.mark.skipif(bool(missing("mlflow", "sqlalchemy")), reason="pip install 'rlploss[track]'")
needs_tensorboard = pytest.mark.skipif(bool(missing("tensorboard")), reason="pip install 'rlploss[track]'")
# MLflow, its database and protobuf warn about themselves.
others_warnings = pytest.mark.filterwarnings("ignore:::(?!rlploss)")

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1)


def train(*callbacks, steps=4):
    net = seeded(lambda: RegressionNet(3), 0)
    return fit(net, X, Y, MSE(), budget=Steps(steps), evaluate_every=Steps(2), validation=(X, Y), callbacks=callbacks,
               engine="torch")  # fmt: skip


def two(*callbacks):
    problems = [Problem(X, Y, seed=seed, validation=(X, Y)) for seed in range(2)]
    return fit_fleet(lambda seed: seeded(lambda: RegressionNet(3), seed), problems, MSE(), budget=Steps(4),
                     evaluate_every=Steps(2), callbacks=callbacks, engine="torch")  # fmt: skip


def scalars(folder):
    """What TensorBoard's own reader finds: {name: [(step, value)]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}


def runs(uri):
    """What MLflow's own client finds: {run name: (status, {metric: [(step, value)]}, params)}."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    where = client.get_experiment_by_name("rlploss").experiment_id
    return {
        run.info.run_name: (
            run.info.status,
            {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
             for name in run.data.metrics},
            run.data.params,
        )
        for run in client.search_runs([where])
    }  # fmt: skip


def test_a_csv_file_has_a_line_per_evaluation_and_is_continued(tmp_path):
    path = tmp_path / "curves.csv"
    history = train(CSVLogger(path))
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["step"]) for line in lines] == [0, 2, 4]
    assert [float(line["mse"]) for line in lines] == history["mse"].tolist()
    assert {*lines[0]} == {"run", *history.columns}
    two(CSVLogger(path, run="fleet"))
    with path.open() as file:
        assert Counter(line["run"] for line in csv.DictReader(file)) == {"fit": 3, "fleet": 3, "fleet-1": 3}


@needs_tensorboard
@others_warnings
def test_tensorboard_reads_what_was_measured(tmp_path):
    with TensorBoardLogger(tmp_path, run="a/b c") as logger:
        history = train(logger)
    found = scalars(tmp_path / "a-b-c")
    assert found["mse"] == [(s, pytest.approx(v)) for s, v in zip((0, 2, 4), history["mse"].tolist(), strict=True)]
    assert {*found} == {*history.columns} - {"step"}
    with TensorBoardLogger(tmp_path) as logger:
        fleet = two(logger)
    for name, one in zip(("fit", "fit-1"), fleet, strict=True):
        assert [value for _, value in scalars(tmp_path / name)["mse"]] == pytest.approx(one["mse"].tolist())


@pytest.mark.slow
@needs_mlflow
@others_warnings
def test_mlflow_reads_what_was_measured(tmp_path):
    uri = f"sqlite:///{tmp_path}/ml.db"
    logger = MLflowLogger(uri)
    history = train(logger)
    assert runs(uri)["fit"][0] == "RUNNING"
    logger.close()
    status, metrics, _ = runs(uri)["fit"]
    assert status == "FINISHED"
    assert metrics["mse"] == list(zip((0, 2, 4), history["mse"].tolist(), strict=True))
    assert [step for step, _ in metrics["loss"]] == [2, 4], "no training loss at step 0"
    with tracking(f"mlflow:{uri}"):  # the same store, and what `--track` writes there
        cell = stub.cell()
        curve = {"step": [float(i) for i in range(700)], "mse": [1.0] * 700, "loss": [2.0] * 700}
        note(cell, CellResult((TrainedNetwork(3, 0, curve, 0.1, {"score": 0.5}),), "torch", 1, 0.1), print)
    status, metrics, params = runs(uri)[f"{cell} · seed 3"]
    assert (status, len(metrics["mse"]), len(metrics["loss"])) == ("FINISHED", 700, 700)
    assert metrics["score"] == [(699, 0.5)]
    assert {*params} == {*cell.spec()}


@pytest.mark.slow
@needs_tensorboard
@others_warnings
def test_track_of_the_command_line(tmp_path, monkeypatch, capsys):
    from rlploss.cli import run

    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "table1", "--scale", "smoke", "--datasets", "linear", "--arms", "mse", "--budget", "steps",
             "--seeds", "1", "--workers", "inline", "--out", "out"]  # fmt: skip
    assert run([*words, "--track", "tensorboard:runs"]) == 0
    folders = sorted((tmp_path / "runs").iterdir())
    assert folders
    assert all("seed-0" in folder.name and scalars(folder)["mse"] for folder in folders)
    capsys.readouterr()
    (tmp_path / "file").write_text("in the way")
    assert run([*words[:-1], "again", "--track", f"tensorboard:{tmp_path}/file"]) == 0
    assert capsys.readouterr().out.count("TensorBoardLogger failed") == 1


@pytest.mark.slow
@needs_tensorboard
@needs_mlflow
@others_warnings
def test_track_of_compare(tmp_path, monkeypatch):
    """Every split of every arm is a run: its curve where it is a network, and its numbers as the report has them."""
    from rlploss.cli import run

    monkeypatch.chdir(tmp_path)
    rows = [f"{a},{b},{2 * a - b + 0.01 * c}" for a, b, c in torch.randn(40, 3, generator=torch.Generator()).tolist()]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,price", *rows]))
    words = ["compare", "t.csv", "--target", "price", "--arms", "mse,ridge", "--splits", "2", "--steps", "16",
             "--workers", "inline"]  # fmt: skip
    uri = f"sqlite:///{tmp_path}/ml.db"
    assert run([*words, "--out", "a", "--track", "tensorboard:runs"]) == 0
    assert run([*words, "--out", "b", "--track", f"mlflow:{uri}"]) == 0
    results = {row["arm"]: row for row in json.loads((tmp_path / "a" / "comparison.json").read_text())["results"]}
    found = runs(uri)
    for arm, budget in (("MSE", " · 16 steps"), ("ridge regression", "")):
        names = [f"the table · {arm}{budget} · seed {seed}" for seed in (0, 1)]
        folders = [scalars(tmp_path / "runs" / name.replace(" · ", "-").replace(" ", "-")) for name in names]
        both = [[folder["rmse"][0][1] for folder in folders], [found[name][1]["rmse"][0][1] for name in names]]
        for values in both:
            assert sum(values) / 2 == pytest.approx(results[arm]["rmse"])
        assert all(found[name][0] == "FINISHED" for name in names)
        curves = [*folders, *(found[name][1] for name in names)]
        assert all(("validation" in curve) == bool(budget) for curve in curves)
    assert len(found) == 4


@pytest.mark.slow
@needs_tensorboard
@others_warnings
def test_track_of_survey(tmp_path, monkeypatch):
    from rlploss.cli import run
    from rlploss.compare import survey

    table = survey.SurveyRows(X.double().numpy(), Y.double().numpy(), "regression")
    for name in ("load_rows", "drawn_rows"):
        monkeypatch.setattr(survey, name, lambda *options: table)
    monkeypatch.setattr(survey, "ARMS", {"regression": ["ridge", "mse", "rlp"]})
    monkeypatch.setattr("rlploss.cli.survey.render", lambda *_: None)  # which wants the arms of a whole survey
    monkeypatch.chdir(tmp_path)
    words = ["survey", "--tables", "wine", "--rows", "20", "--splits", "2", "--quick", "--workers", "inline"]
    assert run([*words, "--track", "tensorboard:runs"]) == 0
    for name, measured in (("ridge-regression", "rmse"), ("RLP-1-000-steps", "validation"), ("traits", "noise")):
        folders = [folder for folder in (tmp_path / "runs").iterdir() if name in folder.name]
        assert len(folders) == 3, "two random splits, one outside"
        assert all(scalars(folder)[measured] for folder in folders)


@pytest.mark.parametrize("where", ["mlflow", "mlflow:", "wandb:x", ""])
def test_track_takes_one_of_two(where, capsys):
    from rlploss.cli import run

    assert run(["reproduce", "table1", "--track", where]) == 2
    assert "--track takes mlflow:URI or tensorboard:DIR" in capsys.readouterr().err


def broken(tmp_path):
    (tmp_path / "file").write_text("a,b\n1,2\n")
    yield CSVLogger(tmp_path / "file"), "has the columns a, b; give another path"
    yield CSVLogger(tmp_path / "none" / "x.csv"), "No such file"
    if not missing("tensorboard"):
        yield TensorBoardLogger(tmp_path / "file"), "file"
    if not missing("mlflow"):
        yield MLflowLogger("http://127.0.0.1:9"), "127.0.0.1"
        yield MLflowLogger("no-such://x"), "no-such"


@others_warnings
def test_a_logger_that_fails_is_told_once_and_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    alone = train()
    for logger, why in broken(tmp_path):
        with pytest.warns(RuntimeWarning, match="training goes on without it") as told:
            history = train(logger, steps=4)
        said = [str(w.message) for w in told if "goes on without" in str(w.message)]
        assert len(said) == 1
        assert why in said[0]
        assert history["mse"].tolist() == alone["mse"].tolist()
        logger.close()
    assert (tmp_path / "file").read_text() == "a,b\n1,2\n"


def test_what_is_not_installed_is_told_before_training():
    code = "import sys; sys.modules['mlflow'] = None; sys.modules['tensorboard'] = None; import rlploss\n"
    for name in ("MLflowLogger", "TensorBoardLogger"):
        code += f"try: rlploss.{name}('x')\nexcept ImportError as e: print(e)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.count("pip install 'rlploss[track]'") == 2, done.stderr


def test_nothing_heavy_is_imported_until_it_is_needed():
    code = "import rlploss, sys; rlploss.CSVLogger; print({'mlflow', 'tensorboard'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
