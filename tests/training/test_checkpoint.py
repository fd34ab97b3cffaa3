"""Killed at any moment and started again, a run ends with the same bits; a checkpoint of another run is refused."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlploss import (
    DivergenceError,
    EarlyStopping,
    Epochs,
    History,
    Problem,
    RegressionNet,
    Steps,
    fit,
    fit_fleet,
    seeded,
)
from rlploss.training import checkpoints


class Killed(BaseException):
    """Stands for a signal: nothing in the library may catch it."""


def data(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 3, generator=generator)
    return X, torch.sin(2 * X[:, 0]) + X[:, 1]


def network(seed: int = 1) -> nn.Module:
    return seeded(lambda: RegressionNet(3, hidden=5), seed)


def dropping(seed: int = 1) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)), seed)


CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "mse": (network, "mse", {"batch_size": 7, "schedule": "cosine"}),
    "mse+mixup": (network, "mse+mixup", {"batch_size": 7}),
    "dropout": (dropping, "huber", {"batch_size": 7, "optimizer": "adamw", "weight_decay": 0.1}),
    "rlp": (network, "rlp", {"subset_size": 9, "n_subsets": 8}),
    "draw": (network, "rlp", {"subset_size": 9, "n_subsets": 8, "probe": "draw", "optimizer": "sgd_nesterov"}),
    "each epoch": (network, "rlp", {"subset_size": 9, "n_subsets": 8, "plan": "each-epoch", "subsets_per_step": 3}),
    "rlp+mixup": (network, "rlp+mixup", {"subset_size": 9, "n_subsets": 8, "preset": "released"}),
    "early stopping": (network, "mse", {"batch_size": 40, "lr": 0.3, "early_stopping": EarlyStopping("mse", 4)}),
}
STEPS = 40


def run(case: str, path: Path | None = None, **more: Any) -> tuple[History, list[Tensor]]:
    make, objective, settings = CASES[case]
    X, y = data()
    model = make()
    settings = {"lr": 0.02, **settings, **more}
    if path is not None:
        settings |= {"checkpoint": path, "checkpoint_every": Steps(3)}
    history = fit(
        model, X, y, objective, budget=Steps(STEPS), validation=data(20), evaluate_every=Steps(5), seed=3, **settings
    )
    return history, [p.detach().clone() for p in model.parameters()]


def assert_same_bits(a: tuple[History, list[Tensor]], b: tuple[History, list[Tensor]]) -> None:
    for name in a[0].columns:
        if name != "seconds":
            assert repr(a[0].columns[name]) == repr(b[0].columns[name]), name  # repr: nan is nan
    assert (a[0].stopped, a[0].best_step) == (b[0].stopped, b[0].best_step)
    assert all(torch.equal(p, q) for p, q in zip(a[1], b[1], strict=True))


def kill_after(monkeypatch: pytest.MonkeyPatch, n_calls: int, target: Any, name: str) -> None:
    """Make the n-th call of target.name die before it does anything."""
    real, left = getattr(target, name), [n_calls]

    def dying(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(target, name, dying)


@pytest.mark.parametrize("case", CASES)
def test_killed_at_random_steps_and_resumed(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(case)
    lottery = random.Random(case)
    for number, at in enumerate(lottery.sample(range(int(whole[0].last("step"))), 4)):  # 32 points in all
        path = tmp_path / f"{number}.pt"
        with monkeypatch.context() as patch:
            kill_after(patch, at, Tensor, "backward")
            with pytest.raises(Killed):
                run(case, path)
        assert_same_bits(run(case, path), whole)


@pytest.mark.parametrize("moment", ["save", "fsync", "replace"])
def test_killed_while_writing(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("mse")
    for number, at in enumerate((0, 3, 7)):
        path = tmp_path / f"{number}.pt"
        target = torch if moment == "save" else os
        with monkeypatch.context() as patch:
            kill_after(patch, at, target, moment)
            with pytest.raises(Killed):
                run("mse", path)
        assert_same_bits(run("mse", path), whole)


def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("rlp")
    path = tmp_path / "run.pt"
    for _ in range(5):
        with monkeypatch.context() as patch:
            kill_after(patch, 7, Tensor, "backward")
            with pytest.raises(Killed):
                run("rlp", path)
    assert_same_bits(run("rlp", path), whole)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("early stopping", tmp_path / "run.pt")
    with monkeypatch.context() as patch:
        kill_after(patch, 0, Tensor, "backward")
        assert_same_bits(run("early stopping", tmp_path / "run.pt"), whole)


def test_checkpoints_change_nothing(tmp_path: Path) -> None:
    assert_same_bits(run("dropout", tmp_path / "a.pt"), run("dropout"))


SCRIPT = """
    import sys, torch
    from rlploss import Epochs, RegressionNet, Steps, fit, seeded
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(200, 3, generator=generator)
    model = seeded(lambda: RegressionNet(3), 1)
    history = fit(model, X, X[:, 0].sin(), "mse", budget=Epochs(200), batch_size=20, validation=(X, X[:, 0].sin()),
                  checkpoint=sys.argv[1] or None, checkpoint_every=Steps(20) if sys.argv[1] else None)
    torch.save([p.detach() for p in model.parameters()] + [torch.tensor(history["mse"])], sys.argv[2])
"""


def test_a_real_kill_at_any_moment(tmp_path: Path) -> None:
    def start(checkpoint: str, out: Path) -> subprocess.Popen[bytes]:
        code = textwrap.dedent(SCRIPT)
        return subprocess.Popen([sys.executable, "-W", "error", "-c", code, checkpoint, str(out)])

    whole, path, out = tmp_path / "whole.pt", tmp_path / "run.pt", tmp_path / "out.pt"
    assert start("", whole).wait() == 0
    for pause in (0.0, 0.07):
        process = start(str(path), out)
        before = path.stat().st_mtime_ns if path.exists() else None
        while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(0.005)  # until it has come at least one checkpoint further
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed: make the run longer"
    assert start(str(path), out).wait() == 0
    for a, b in zip(torch.load(whole), torch.load(out), strict=True):
        assert torch.equal(a, b)


def test_divergence_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    X, y = data()
    path = tmp_path / "run.pt"

    def poisoned(step: int, total: int) -> float:
        return 1e30 if step >= 12 else 1.0

    settings: dict[str, Any] = {"budget": Steps(40), "optimizer": "sgd", "schedule": poisoned, "checkpoint": path}
    with pytest.raises(DivergenceError):
        fit(network(), X, y, "mse", checkpoint_every=Steps(5), **settings)
    kept = torch.load(path, weights_only=True)["state"]
    assert kept["step"] == 10
    assert all(torch.isfinite(p).all() for p in kept["model"].values())


# What is refused


def test_a_checkpoint_of_another_run_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    run("mse", path)
    X, y = data()
    with pytest.raises(ValueError, match=r"must belong to this run.*lr is 0\.02 in the file and 0\.03 here"):
        run("mse", path, lr=0.03)
    with pytest.raises(ValueError, match=r"objective is 'mse' in the file and 'mse\+mixup' here"):
        run("mse+mixup", path)
    with pytest.raises(ValueError, match=r"data is '[0-9a-f]+' in the file"):
        fit(network(), X + 1, y, "mse", budget=Steps(STEPS), checkpoint=path)
    with pytest.raises(ValueError, match=r"model is .*RegressionNet.*in the file and .*Sequential"):
        fit(dropping(), X, y, "mse", budget=Steps(STEPS), checkpoint=path)


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "foreign", "other torch file"])
def test_a_damaged_checkpoint_is_an_error(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    run("mse", path)
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        path.write_bytes(b"not a checkpoint at all")
    elif damage == "other torch file":
        torch.save({"weights": torch.zeros(3)}, path)
    else:
        state = torch.load(path, weights_only=True)
        state["state"]["model"]["fc1.weight"][0, 0] += 1e-7
        torch.save(state, path)
    with pytest.raises(ValueError, match=r"checkpoint .*run\.pt must be .*delete it, or pass another"):
        run("mse", path)


def test_another_environment_is_told_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pt"
    with monkeypatch.context() as patch:
        kill_after(patch, 20, Tensor, "backward")
        with pytest.raises(Killed):
            run("mse", path)
    real = checkpoints.environment
    monkeypatch.setattr(checkpoints, "environment", lambda *a: {**real(*a), "torch": "9.9"})
    with pytest.warns(RuntimeWarning, match=r"written elsewhere: torch is .* in the file and '9\.9' here"):
        history, _ = run("mse", path)
    assert history.stopped == "budget"


def test_checkpoint_every_needs_a_file() -> None:
    with pytest.raises(ValueError, match="checkpoint_every needs a file"):
        run("mse", checkpoint_every=Steps(2))


# Fleets


def fleet(case: str, folder: Path | None, compile: bool = False) -> list[tuple[History, list[Tensor]]]:
    _, objective, settings = CASES[case]
    X, y = data()
    problems = [Problem(X + i, y, seed=i, validation=data(20), budget=Steps(STEPS - 9 * i)) for i in range(3)]
    more = {} if folder is None else {"checkpoint": folder, "checkpoint_every": Steps(4)}
    histories = fit_fleet(
        network, problems, objective, budget=Steps(STEPS), evaluate_every=Steps(5), compile=compile, **settings, **more
    )
    return [(h, [p.detach().clone() for p in h.model.parameters()]) for h in histories if h.model is not None]


@pytest.mark.parametrize("case", ["mse", "draw", "rlp+mixup", "early stopping"])
def test_fleets_resume_too(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fleet(case, None)
    for at in (1, 4, 8):
        folder = tmp_path / str(at)
        with monkeypatch.context() as patch:
            kill_after(patch, at, checkpoints, "save")
            try:
                fleet(case, folder)
            except Killed:
                pass
            else:
                assert case == "early stopping"  # which ends before it saves so often
        for _ in range(2):  # goes on where it was; then there is nothing left to do
            for ours, theirs in zip(fleet(case, folder), whole, strict=True):
                assert_same_bits(ours, theirs)


def test_compiled_fleets_resume_between_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fleet("mse", None, compile=True)
    with monkeypatch.context() as patch:
        kill_after(patch, 3, checkpoints, "save")
        with pytest.raises(Killed):
            fleet("mse", tmp_path, compile=True)
    for ours, theirs in zip(fleet("mse", tmp_path, compile=True), whole, strict=True):
        assert_same_bits(ours, theirs)


def test_epochs_can_be_the_unit_of_checkpoints(tmp_path: Path) -> None:
    X, y = data()
    for _ in range(2):
        history = fit(
            network(), X, y, "mse", budget=Epochs(2), checkpoint=tmp_path / "a" / "b.pt", checkpoint_every=(1, "epochs")
        )
    assert history.last("epoch") == 2
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["b.pt"]
