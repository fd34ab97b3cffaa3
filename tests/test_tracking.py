"""The callbacks of docs/tracking.md, run as they are printed: MLflow's and TensorBoard's own readers
find the curves."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "tracking.md"
MLFLOW, TENSORBOARD = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
# MLflow, its database and protobuf warn about themselves.
pytestmark = pytest.mark.filterwarnings("ignore:::(?!rlploss)")


def history_of(block):
    """Run a block of the page here; what its `fit` returned."""
    names = {}
    exec(compile(block.replace("    fit(", "    history = fit("), str(PAGE), "exec"), names)
    return names["history"]


@pytest.mark.slow
def test_mlflow_reads_what_was_measured(tmp_path, monkeypatch):
    client = pytest.importorskip("mlflow").MlflowClient(f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.chdir(tmp_path)
    history = history_of(MLFLOW)
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("RLP", "FINISHED")
    assert {*run.data.metrics} == {"loss"}
    curve = client.get_metric_history(run.info.run_id, "loss")
    steps, losses = history["step"].tolist(), history["loss"].tolist()
    assert [(m.step, m.value) for m in curve] == list(zip(steps, losses, strict=True))[1:]


def test_tensorboard_reads_what_was_measured(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    history = history_of(TENSORBOARD)
    found = EventAccumulator("runs/rlp").Reload().Scalars("loss")
    assert [event.step for event in found] == history["step"].tolist()
    assert [event.value for event in found][1:] == pytest.approx(history["loss"].tolist()[1:])
