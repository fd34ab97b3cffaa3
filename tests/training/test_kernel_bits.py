"""The kernel gives the same bits however it is called, is compiled once for each type, and keeps
that on disk."""

from __future__ import annotations

import copy
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.fleets import bits, build, data, replicas
from tests.training.processes import SOURCE, in_a_process
from torch import nn

from rlploss import MSE, RLP, SGD, Adam, Pointwise, Steps, fit, fit_fleet
from rlploss.training import kernel_engine
from rlploss.training.objectives import Objective

BITS: dict[str, Objective] = {
    "mse": MSE(17),
    "mse mixup": MSE(17, mixup=0.3),
    "rlp": RLP(13, 11),
    "fresh": RLP(13, 11, plan="each-epoch"),
    "mixup": RLP(13, 11, mixup=0.3),
    "form": RLP(50, 90, subsets_per_step="all"),
    "pointwise": Pointwise(lambda a, b: (a - b) ** 4, 17),
}


def run_of(
    objective: Objective, evaluate: int = 100, steps: int = 300, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    X, y = data(0)
    model = build()(0).to(dtype)
    history = fit(
        model, X.to(dtype), y.to(dtype), objective, budget=Steps(steps), evaluate_every=Steps(evaluate),
        optimizer=Adam(0.01), seed=2, engine="kernel",
    )  # fmt: skip
    return bits(history)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_bits_again_and_however_a_run_is_cut(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_of(BITS[name], dtype=dtype)
    assert run_of(BITS[name], dtype=dtype) == whole
    for evaluate in (1, 7, 300):  # calls of other lengths, and losses added up in other groups
        assert run_of(BITS[name], evaluate, dtype=dtype)["weights"] == whole["weights"]
    for seconds in (0.0, 1e-5, 10.0):
        with monkeypatch.context() as patch:
            patch.setattr(kernel_engine, "CALL_SECONDS", seconds)
            assert run_of(BITS[name], dtype=dtype) == whole


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["mse", "rlp", "mixup", "pointwise"])
def test_the_same_bits_with_any_number_of_threads(
    name: str, threads: Callable[[int], None]
) -> None:
    found = []
    for n in (1, 2, 8):
        threads(n)
        fleet = fit_fleet(
            build(),
            replicas(7),
            BITS[name],
            budget=Steps(200),
            optimizer=Adam(0.01),
            engine="kernel",
        )
        found.append([bits(h) for h in fleet])
        assert torch.get_num_threads() == n
    assert found[0] == found[1] == found[2]


WIDE = """
    import hashlib, torch
    from rlploss import MSE, RLP, Adam, RegressionNet, Steps, fit, seeded
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(900, 64, generator=generator)
    found = hashlib.sha256()
    for objective in (MSE(700), MSE(700, mixup=0.3), RLP(300, 5, plan="each-epoch"), RLP(300, 5)):
        model = seeded(lambda: RegressionNet(64, hidden=256), 0)
        history = fit(model, X, X.sum(1).sin(), objective, budget=Steps(20), optimizer=Adam(0.01), engine="kernel")
        for p in model.parameters():
            found.update(p.detach().numpy().tobytes())
    print(found.hexdigest())
"""


@pytest.mark.slow
def test_the_same_bits_where_blas_would_take_several_threads() -> None:
    found = {
        in_a_process(WIDE, OMP_NUM_THREADS=n, OPENBLAS_NUM_THREADS=n, MKL_NUM_THREADS=n)
        for n in ("1", "4")
    }
    assert len(found) == 1


def test_the_same_bits_while_torch_is_busy_in_another_thread(
    threads: Callable[[int], None],
) -> None:
    """Torch's OpenMP and the kernel's threads at once."""
    whole = [
        bits(h)
        for h in fit_fleet(build(), replicas(5), RLP(13, 11), budget=Steps(2000), engine="kernel")
    ]
    threads(2)
    stop = threading.Event()

    def work() -> None:
        a = torch.ones(
            300, 300
        )  # nothing random: networks are built meanwhile, and torch has one generator
        while not stop.is_set():
            a = torch.tanh(a @ a)

    busy = threading.Thread(target=work)
    busy.start()
    try:
        fleet = fit_fleet(build(), replicas(5), RLP(13, 11), budget=Steps(2000), engine="kernel")
    finally:
        stop.set()
        busy.join()
    assert [bits(h) for h in fleet] == whole


def test_two_runs_at_once_in_threads_of_the_callers_own() -> None:
    """The kernel releases Python's lock; the run of one thread is not disturbed by that of the
    other."""
    models = [build()(number) for number in range(2)]  # torch has one generator for all threads
    found: dict[int, Any] = {}

    def train(number: int) -> None:
        X, y = data(number)
        model = copy.deepcopy(models[number])
        found[number] = bits(
            fit(model, X, y, MSE(17), budget=Steps(3000), seed=number, engine="kernel")
        )

    workers = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for number in range(2):
        at_once = found[number]
        train(number)
        assert found[number] == at_once


def _runs() -> dict[str, Any]:
    apart = {"fresh": RLP(13, 11, plan="each-epoch"), "own": Pointwise(lambda a, b: (a - b) ** 4)}
    return run_of(MSE(17)) | {name: run_of(objective) for name, objective in apart.items()}


def _child(queue: Any) -> None:
    queue.put(_runs())


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # of forks beside threads: that is what is tested
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_the_same_bits_in_a_process_of_its_own(how: str) -> None:
    whole = _runs()
    context = multiprocessing.get_context(how)
    queue = context.Queue()
    process = context.Process(target=_child, args=(queue,))
    process.start()
    try:
        assert queue.get(timeout=120) == whole
    finally:
        process.join(30)
        assert process.exitcode == 0


# Compiling


def test_nothing_is_compiled_again(tmp_path: Path) -> None:
    """One function for each floating type, whatever memory rows and weights lie in."""
    from rlploss.training import kernel

    X, y = data(0)
    wide = torch.randn(60, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    np.save(tmp_path / "x.npy", X.numpy())
    frozen = X.numpy().copy()
    frozen.flags.writeable = False
    tables: list[Any] = [
        X, X.numpy(), frozen, np.load(tmp_path / "x.npy", mmap_mode="r"), np.asfortranarray(X.numpy()), wide[:, 1:8:2],
        wide.mT[:4].mT, X.flip(0), X.numpy()[::-1], X.tolist(), X[:1].expand(60, 4) + 0 * X, X.long(), X.int().numpy(),
        X.half(), np.float16(X.numpy()), X.bool(),
    ]  # fmt: skip
    for dtype in (torch.float32, torch.float64):
        for table in tables:
            for objective in (
                MSE(17),
                RLP(13, 11, mixup=0.3),
                RLP(13, 11),
                Pointwise(lambda a, b: (a - b) ** 2),
            ):
                with warnings.catch_warnings():
                    warnings.simplefilter(
                        "ignore"
                    )  # of tables of whole numbers that are degenerate
                    fit(build()(0).to(dtype), table, y, objective, budget=Steps(2), engine="kernel")
    transposed = build()(0)
    transposed.fc1.weight = nn.Parameter(torch.randn(4, 8, dtype=torch.float64).mT)
    fit(
        transposed,
        X,
        y,
        MSE(17),
        budget=Steps(2),
        engine="kernel",
        sample_weight=np.arange(1, 61),
        clip_grad=1,
    )
    fit(
        build()(0),
        X,
        y,
        MSE(17),
        budget=Steps(2),
        engine="kernel",
        schedule=lambda step, total: 1,
        optimizer=SGD(1),
    )
    assert len(kernel.run.signatures) <= 2


TRAIN = """
    import sys, torch
    sys.stderr = sys.stdout
    from rlploss import MSE, RegressionNet, Steps, fit, seeded
    X = torch.linspace(-1, 1, 60).view(20, 3)
    history = fit(seeded(lambda: RegressionNet(3), 0), X, X.sum(1), MSE(), budget=Steps(20))
    from rlploss.training import kernel
    print(history.settings["engine"], sum(kernel.run.stats.cache_hits.values()), repr(history.last("loss")))
"""
TOLD = "rlploss: compiling the training kernel takes about five seconds, once on this machine"


def test_what_older_sources_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlploss.training import compiling

    monkeypatch.setenv("RLPLOSS_CACHE", str(tmp_path))
    now = time.time()
    for name, days in {"kernel-old": 31, "kernel-recent": 29, "other": 31}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.nbc").touch()
        os.utime(tmp_path / name, (now, now - days * 24 * 3600))
    own = compiling._folder()
    own.mkdir()
    os.utime(own, (0, 0))  # old too, but it is used now
    compiling.cached(build)
    assert {path.name for path in tmp_path.iterdir()} == {"kernel-recent", "other", own.name}
    assert own.stat().st_mtime >= now - 1


@pytest.mark.slow
def test_the_cache_is_made_and_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    told, first = in_a_process(TRAIN, RLPLOSS_CACHE=str(folder)).splitlines()
    assert told == TOLD
    assert first.startswith("kernel 0 ")
    assert list(folder.rglob("*.nbc")), "compiled code is kept"
    (second,) = in_a_process(TRAIN, RLPLOSS_CACHE=str(folder)).splitlines()
    assert second == first.replace("kernel 0", "kernel 1")
    for path in folder.rglob("*.nbc"):  # cut short by a broken disk
        path.write_bytes(path.read_bytes()[:1000])
    *_, third = in_a_process(TRAIN, RLPLOSS_CACHE=str(folder)).splitlines()
    assert third == first


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a folder that not even root can write to"
)
@pytest.mark.slow
def test_a_cache_that_cannot_be_written_to_is_done_without() -> None:
    """Nor is another place used, which would not know when the sources change."""
    beside = {path: path.stat().st_mtime_ns for path in Path(SOURCE).rglob("*.nb[ic]")}
    told, found = in_a_process(TRAIN, RLPLOSS_CACHE="/proc/self/rlploss").splitlines()
    assert told == TOLD
    assert found.startswith("kernel 0 ")
    assert {path: path.stat().st_mtime_ns for path in Path(SOURCE).rglob("*.nb[ic]")} == beside
