"""Killed at any moment and started again, a run ends with the same bits; a checkpoint of another
run is refused."""

from __future__ import annotations

import copy
import importlib.util
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
from tests.training.processes import SOURCE
from torch import Tensor, nn

from rlploss import (
    MSE,
    RLP,
    SGD,
    Adam,
    AdamW,
    DivergenceError,
    EarlyStopping,
    Epochs,
    Event,
    History,
    Huber,
    Pointwise,
    Problem,
    Progress,
    RegressionNet,
    Steps,
    fit,
    fit_fleet,
    seeded,
)
from rlploss.training import checkpoint as files
from rlploss.training import kernel_engine
from rlploss.training.checkpoint import CheckpointFile
from rlploss.training.kernel_engine import KernelEngine
from rlploss.training.loop import Loop, Reporter
from rlploss.training.rows import digest


class Killed(BaseException):
    """Stands for a signal: nothing in the library may catch it."""


def data(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 3, generator=generator)
    return X, torch.sin(2 * X[:, 0]) + X[:, 1]


def network(seed: int = 1) -> nn.Module:
    return seeded(lambda: RegressionNet(3, hidden=5), seed)


def dropping(seed: int = 1) -> nn.Module:
    return seeded(
        lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)), seed
    )


def cubed(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target).abs() ** 3


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mse": (network, MSE(7), {"schedule": "cosine"}),
    "mse mixup": (network, MSE(7, mixup=0.25), {}),
    "rlp": (network, RLP(9, 8), {}),
    "draw": (
        network,
        RLP(9, 8, probe="draw"),
        {"optimizer": SGD(0.02, momentum=0.9, nesterov=True)},
    ),
    "each epoch": (
        network,
        RLP(9, 8, plan="each-epoch", subsets_per_step=3),
        {"optimizer": AdamW(0.02, 0.1)},
    ),
    "rlp mixup": (network, RLP.released(9, 8, mixup=0.25), {}),
    "pointwise": (network, Pointwise(cubed, 7), {}),
    "early stopping": (
        network,
        MSE(40),
        {"optimizer": Adam(0.3), "early_stopping": EarlyStopping("mse", 4)},
    ),
    "dropout": (dropping, Huber(7), {"optimizer": AdamW(0.02, 0.1)}),
    "momentum by torch": (dropping, MSE(7), {"optimizer": SGD(0.02, momentum=0.9)}),
    "a function": (network, MSE(7), {"optimizer": torch.optim.Adagrad}),
}
ONLY_TORCH = ("dropout", "momentum by torch", "a function")
BOTH = [
    (case, engine)
    for case in CASES
    for engine in ("torch", "kernel")
    if engine == "torch" or case not in ONLY_TORCH
]
STEPS = 40


def run(case: str, path: Path | None = None, **more: Any) -> tuple[History, list[Tensor]]:
    make, objective, settings = CASES[case]
    X, y = data()
    model = make()
    settings = {"optimizer": Adam(0.02), "seed": 3, **settings, **more}
    if path is not None:
        settings |= {"checkpoint": path, "checkpoint_every": Steps(3)}
    history = fit(
        model,
        X,
        y,
        objective,
        budget=Steps(STEPS),
        validation=data(20),
        evaluate_every=Steps(5),
        **settings,
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


def one_step_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """Calls of the kernel with a single step, so that a run can be killed after any."""
    real = KernelEngine.run

    def run(self: KernelEngine, block: Any, spans: Any, factors: Any, deadline: float) -> Any:
        return real(self, block, spans[:1], factors, deadline)

    patch.setattr(KernelEngine, "run", run)


def kill_after_steps(patch: pytest.MonkeyPatch, n_steps: int, engine: str) -> None:
    """Make a run die before its step number `n_steps`."""
    if engine == "kernel":
        one_step_at_a_time(patch)
        kill_after(patch, n_steps, KernelEngine, "run")
    else:
        kill_after(patch, n_steps, torch.autograd, "backward")


@pytest.mark.parametrize(("case", "engine"), BOTH)
def test_killed_at_random_steps_and_resumed(
    case: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(case, engine=engine)
    assert whole[0].settings["engine"] == engine
    lottery = random.Random(case)
    for number, at in enumerate(
        lottery.sample(range(int(whole[0].last("step"))), 4)
    ):  # 76 points in all
        path = tmp_path / f"{number}.pt"
        with monkeypatch.context() as patch:
            kill_after_steps(patch, at, engine)
            with pytest.raises(Killed):
                run(case, path, engine=engine)
        if at >= 3:  # there is a file, which "auto" follows
            assert torch.load(path, weights_only=True)["state"]["step"] == at // 3 * 3
        assert_same_bits(run(case, path, engine="auto" if at >= 3 else engine), whole)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize("moment", ["save", "fsync", "replace"])
def test_killed_while_writing(
    moment: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("mse", engine=engine)
    for number, at in enumerate((0, 3, 7)):
        path = tmp_path / f"{number}.pt"
        target = torch if moment == "save" else os
        with monkeypatch.context() as patch:
            kill_after(patch, at, target, moment)
            with pytest.raises(Killed):
                run("mse", path, engine=engine)
        assert_same_bits(run("mse", path, engine=engine), whole)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_killed_again_and_again(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("rlp", engine=engine)
    path = tmp_path / "run.pt"
    for _ in range(5):
        with monkeypatch.context() as patch:
            kill_after_steps(patch, 7, engine)
            with pytest.raises(Killed):
                run("rlp", path, engine=engine)
    assert_same_bits(run("rlp", path), whole)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_a_finished_run_is_not_trained_again(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("early stopping", tmp_path / "run.pt", engine=engine)
    with monkeypatch.context() as patch:
        kill_after(patch, 0, torch.autograd, "backward")
        kill_after(patch, 0, KernelEngine, "run")
        assert_same_bits(run("early stopping", tmp_path / "run.pt", engine=engine), whole)


@pytest.mark.parametrize(
    ("case", "engine"), [("dropout", "torch"), ("rlp mixup", "kernel"), ("pointwise", "kernel")]
)
def test_checkpoints_change_nothing(case: str, engine: str, tmp_path: Path) -> None:
    assert_same_bits(run(case, tmp_path / "a.pt", engine=engine), run(case, engine=engine))


@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_checkpoints_by_the_clock_change_nothing(
    engine: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock cuts a run into other calls each time: with no patience it is cut, and saved, after
    every step."""
    from rlploss.training import loop

    whole = run("rlp", engine=engine, seed=seed)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    saves = []
    real = CheckpointFile.save
    monkeypatch.setattr(
        CheckpointFile,
        "save",
        lambda self, state: (saves.append(state["step"]), real(self, state))[1],
    )
    monkeypatch.setattr(kernel_engine, "CALL_SECONDS", 0.0)
    path = tmp_path / "run.pt"
    assert_same_bits(run("rlp", engine=engine, seed=seed, checkpoint=path), whole)
    assert saves == list(range(1, STEPS + 1))


# Which engine a checkpoint belongs to


@pytest.mark.parametrize(("engine", "other"), [("torch", "kernel"), ("kernel", "torch")])
def test_a_checkpoint_names_its_engine(
    engine: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.pt"
    with monkeypatch.context() as patch:
        kill_after_steps(patch, 20, engine)
        with pytest.raises(Killed):
            run("mse", path, engine=engine)
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=f"engine is '{engine}' in the file and '{other}' here; delete it, or pass"
    ):
        run("mse", path, engine=other)
    assert path.read_bytes() == before
    history, _ = run("mse", path)
    assert history.settings["engine"] == engine
    assert history.settings["engine_reason"] == "its earlier training used it"


def test_a_missing_engine_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the kernel is not continued by torch in silence where there is no numba."""
    path = tmp_path / "run.pt"
    with monkeypatch.context() as patch:
        kill_after_steps(patch, 20, "kernel")
        with pytest.raises(Killed):
            run("mse", path, engine="kernel")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "numba" else real(name)
    )
    with pytest.raises(
        ImportError, match=r"needs numba, which is not installed: pip install 'rlploss\[kernel\]'"
    ):
        run("mse", path)


SCRIPT = """
    import sys, torch
    from rlploss import MSE, Epochs, RegressionNet, Steps, fit, seeded
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(200, 3, generator=generator)
    model = seeded(lambda: RegressionNet(3), 1)
    history = fit(model, X, X[:, 0].sin(), MSE(20), budget=Epochs(200), validation=(X, X[:, 0].sin()),
                  checkpoint=sys.argv[1] or None, checkpoint_every=Steps(20) if sys.argv[1] else None,
                  engine=sys.argv[3])
    torch.save([p.detach() for p in model.parameters()] + [torch.tensor(history["mse"])], sys.argv[2])
"""


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.slow
def test_a_real_kill_at_any_moment(engine: str, tmp_path: Path) -> None:
    def start(checkpoint: str, out: Path) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-W",
            "error",
            "-c",
            textwrap.dedent(SCRIPT),
            checkpoint,
            str(out),
            engine,
        ]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE})

    whole, path, out = tmp_path / "whole.pt", tmp_path / "run.pt", tmp_path / "out.pt"
    assert start("", whole).wait() == 0
    for pause in (0.0, 0.07):
        process = start(str(path), out)
        before = path.stat().st_mtime_ns if path.exists() else None
        while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(0.005)  # until it has come at least one checkpoint further
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (
            "it ended before it was killed: make the run longer"
        )
    assert start(str(path), out).wait() == 0
    for a, b in zip(torch.load(whole), torch.load(out), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize("last", [5, 10, 15])
def test_divergence_leaves_the_last_good_checkpoint(last: int, engine: str, tmp_path: Path) -> None:
    X, y = data()
    path = tmp_path / "run.pt"

    def poisoned(step: int, total: int) -> float:
        return 1e30 if step >= last + 2 else 1.0

    settings: dict[str, Any] = {
        "budget": Steps(40),
        "optimizer": SGD(0.001),
        "schedule": poisoned,
        "checkpoint": path,
        "checkpoint_every": Steps(5),
        "engine": engine,
    }
    for _ in range(2):  # a run that goes on from it does not change it either
        with pytest.raises(DivergenceError):
            fit(network(), X, y, MSE(), **settings)
        history = fit(network(), X, y, MSE(), on_divergence="record", **settings)
        assert history.stopped == "diverged"
        kept = torch.load(path, weights_only=True)["state"]
        assert kept["step"] == last
        assert kept["stopped"] == ""
        assert all(torch.isfinite(p).all() for p in kept["model"].values())


# What is refused


def test_a_checkpoint_of_another_run_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    run("mse", path)
    X, y = data()
    with pytest.raises(
        ValueError,
        match=r"must belong to this run.*optimizer\.lr is 0\.02 in the file and 0\.03 here",
    ):
        run("mse", path, optimizer=Adam(0.03))
    with pytest.raises(ValueError, match=r"objective\.mixup is None in the file and 0\.25 here"):
        run("mse mixup", path)
    with pytest.raises(ValueError, match=r"objective\.kind is 'MSE' in the file and 'RLP' here"):
        run("rlp", path)
    with pytest.raises(ValueError, match=r"data is '[0-9a-f]+' in the file"):
        fit(network(), X + 1, y, MSE(7), budget=Steps(STEPS), checkpoint=path)
    with pytest.raises(ValueError, match=r"model is .*RegressionNet.*in the file and .*Sequential"):
        fit(dropping(), X, y, MSE(7), budget=Steps(STEPS), checkpoint=path)
    with pytest.raises(ValueError, match="schedule is 'cosine' in the file and 'linear' here"):
        run("mse", path, schedule="linear")
    with pytest.raises(ValueError, match=r"budget\.n is 40 in the file and 41 here"):
        fit(network(), X, y, MSE(7), budget=Steps(STEPS + 1), checkpoint=path)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_what_only_one_of_two_runs_has_is_a_difference(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of the library may describe runs by more, or by less, than another."""
    path, real = tmp_path / "run.pt", Loop._spec
    run("mse", path, seed=seed)
    monkeypatch.setattr(Loop, "_spec", lambda self: {**real(self), "more": seed})
    with pytest.raises(ValueError, match=f"differs: more is None in the file and {seed} here;"):
        run("mse", path, seed=seed)
    path.unlink()
    run("mse", path, seed=seed)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"differs: more is {seed} in the file and None here;"):
        run("mse", path, seed=seed)


def changed(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target).abs()


def test_a_function_is_known_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pt"
    run("pointwise", path)
    monkeypatch.setitem(CASES, "pointwise", (network, Pointwise(changed, 7), {}))
    with pytest.raises(
        ValueError, match=r"objective\.function\.function is 'cubed' in the file and 'changed' here"
    ):
        run("pointwise", path)


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
    with pytest.raises(
        ValueError, match=r"checkpoint .*run\.pt must be .*delete it, or pass another"
    ):
        run("mse", path)


@pytest.mark.parametrize("seed", range(3))
def test_a_digest_tells_numbers_shapes_types_and_places_apart(seed: int) -> None:
    x = torch.randint(1, 9, (2, 6), generator=torch.Generator().manual_seed(seed))
    values: list[Any] = [x, x + 1, x.T, x.view(3, 4), x.flatten(), x.int(), x.double(), x.tolist()]
    values += [[x, 1], (x, 1), [1, x], [[x], 1], {"a": x}, {"b": x}, {"a": [x]}, {"a": x, "b": x}]
    assert len({digest(value) for value in values}) == len(values)
    for value in values:
        assert digest(value) == digest(copy.deepcopy(value))
    assert digest(x.T) == digest(x.T.contiguous())  # however it lies in memory


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_another_environment_is_told_and_goes_on(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.pt"
    with monkeypatch.context() as patch:
        kill_after_steps(patch, 20, engine)
        with pytest.raises(Killed):
            run("mse", path, engine=engine)
    real = files.environment
    monkeypatch.setattr(files, "environment", lambda *a: {**real(*a), "torch": "9.9"})
    with pytest.warns(
        RuntimeWarning, match=r"written elsewhere: torch is .* in the file and '9\.9' here"
    ):
        history, _ = run("mse", path)
    assert history.stopped == "budget"


def test_the_number_of_threads_matters_to_torch_and_not_to_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in ("torch", "kernel"):
        path = tmp_path / f"{engine}.pt"
        with monkeypatch.context() as patch:
            kill_after_steps(patch, 20, engine)
            with pytest.raises(Killed):
                run("mse", path, engine=engine)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
        if engine == "kernel":
            run("mse", path)
        else:
            with pytest.warns(RuntimeWarning, match=r"threads is '\d+' in the file and '5' here"):
                run("mse", path)
        monkeypatch.undo()


NO_MEMORY = [
    MemoryError(),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory:"
        " you tried ..."
    ),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("moment", ["reading", "restoring"])
def test_no_memory_on_resuming_does_not_blame_the_file(
    error: Exception, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.pt"
    whole = run("rlp", path)

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(*((torch, "load", fail) if moment == "reading" else (Loop, "_restore", fail)))
        with pytest.raises(type(error)) as told:
            run("rlp", path)
        assert "delete" not in str(told.value)
    assert_same_bits(run("rlp", path), whole)


def test_checkpoint_every_needs_a_file() -> None:
    with pytest.raises(ValueError, match="checkpoint_every needs a place to write to"):
        run("mse", checkpoint_every=Steps(2))


# Fleets


def fleet(case: str, folder: Path | None, **more: Any) -> list[tuple[History, list[Tensor]]]:
    make, objective, settings = CASES[case]
    X, y = data()
    problems = [
        Problem(X + i, y, seed=i, validation=data(20), budget=Steps(STEPS - 9 * i))
        for i in range(3)
    ]
    files = {} if folder is None else {"checkpoint": folder, "checkpoint_every": Steps(4)}
    histories = fit_fleet(
        make,
        problems,
        objective,
        budget=Steps(STEPS),
        evaluate_every=Steps(5),
        **{**settings, **files, **more},
    )
    return [
        (h, [p.detach().clone() for p in h.model.parameters()])
        for h in histories
        if h.model is not None
    ]


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize("case", ["mse", "draw", "rlp mixup", "pointwise", "early stopping"])
def test_fleets_resume_too(
    case: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fleet(case, None, engine=engine)
    for at in (1, 4, 8):
        folder = tmp_path / str(at)
        with monkeypatch.context() as patch:
            kill_after(patch, at, CheckpointFile, "save")
            try:
                fleet(case, folder, engine=engine)
            except Killed:
                pass
            else:
                assert case == "early stopping"  # which ends before it saves so often
        for again in (engine, "auto"):  # goes on where it was; then there is nothing left to do
            for ours, theirs in zip(fleet(case, folder, engine=again), whole, strict=True):
                assert_same_bits(ours, theirs)
        assert sorted(p.name for p in folder.iterdir()) == [f"replica-{i:04}.pt" for i in range(3)]


def test_a_fleet_of_networks_with_dropout_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replica's generator is its own, however many were trained before it in this process."""
    whole = fleet("dropout", None)
    with monkeypatch.context() as patch:
        kill_after(patch, 14, CheckpointFile, "save")
        with pytest.raises(Killed):
            fleet("dropout", tmp_path)
    for ours, theirs in zip(fleet("dropout", tmp_path), whole, strict=True):
        assert_same_bits(ours, theirs)


def test_the_time_left_of_a_resumed_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of an earlier sitting are done, but say nothing about the pace of this one."""
    with monkeypatch.context() as patch:
        kill_after(patch, 14, CheckpointFile, "save")
        with pytest.raises(Killed):
            fleet("mse", tmp_path, engine="torch")
    done = sum(torch.load(path, weights_only=True)["state"]["step"] for path in tmp_path.iterdir())
    told: list[Progress] = []
    always = property(lambda self: 0.0, lambda self, value: None)
    monkeypatch.setattr(Reporter, "due", always, raising=False)  # tell at every step
    fleet("mse", tmp_path, progress=told.append)
    total = STEPS + STEPS - 9 + STEPS - 18
    assert (told[-1].step, told[-1].total_steps, told[-1].remaining) == (total, total, 0)
    for progress in told[:-1]:
        fresh = progress.step - done
        if fresh > 0 and progress.step < total:
            assert progress.remaining == pytest.approx(
                progress.elapsed / fresh * (total - progress.step)
            )
    assert any(0 < p.step - done < total - done for p in told), "the test must have seen some"
    steps = [p.step for p in told]
    assert steps == sorted(steps)


def test_a_reporter_knows_what_was_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    now = [100.0]
    monkeypatch.setattr("rlploss.training.loop.time.perf_counter", lambda: now[0])
    reporter = Reporter(told.append, 1000)
    reporter.add(600, resumed=True)
    now[0] += 10
    reporter.add(100)
    now[0] += 10
    reporter.add(100)
    reporter.end()
    assert [(p.step, p.total_steps) for p in told] == [
        (600, 1000),
        (700, 1000),
        (800, 1000),
        (800, 1000),
    ]
    assert told[0].remaining == float("inf")
    assert told[1].remaining == pytest.approx(30)  # 300 steps at 10 a second
    assert told[2].remaining == pytest.approx(20)


def test_a_callback_that_stops_is_remembered(tmp_path: Path) -> None:
    def stop(event: Event) -> bool:
        return event.step == 10

    first = run("mse", tmp_path / "run.pt", callbacks=[stop])
    again = run("mse", tmp_path / "run.pt")
    assert again[0].stopped == "callback"
    assert_same_bits(first, again)


def test_epochs_can_be_the_unit_of_checkpoints(tmp_path: Path) -> None:
    X, y = data()
    for _ in range(2):
        history = fit(
            network(),
            X,
            y,
            MSE(),
            budget=Epochs(2),
            checkpoint=tmp_path / "a" / "b.pt",
            checkpoint_every=Epochs(1),
        )
    assert history.last("epoch") == 2
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["b.pt"]
