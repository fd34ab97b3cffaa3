"""Several processes train what one process would: real processes, started by torchrun, talking over gloo."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import ddp_worker
import pytest
import torch

from rlploss import MSE, RLP, Epochs, Problem, RegressionNet, Steps, distributed, fit, fit_fleet, seeded

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow  # processes that find each other


def torchrun(world, *command, check=True):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(HERE), *sys.path))}
    started = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={world}",
            *map(str, command),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done, time.monotonic() - started


@pytest.fixture(scope="module", params=[2, 3])
def both(request, tmp_path_factory):
    """What W processes found, and what one process finds that does all of it."""
    out = tmp_path_factory.mktemp("ddp") / "found.pt"
    torchrun(request.param, HERE / "ddp_worker.py", out)
    found = torch.load(out, weights_only=True)
    return request.param, found, ddp_worker.scenarios(None, request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_after_50_steps_are_those_of_one_process(both, dtype):
    _, found, alone = both
    names = [name for name in alone if name.endswith(str(dtype))]
    assert len(names) == len(ddp_worker.FITS) + 4
    for name in names:
        gap = (found[name]["weights"] - alone[name]["weights"]).norm() / alone[name]["weights"].norm()
        assert gap < (1e-5 if dtype == torch.float32 else 1e-12), name
        if "loss" in alone[name]:
            tolerance = 1e-4 if dtype == torch.float32 else 1e-10
            torch.testing.assert_close(found[name]["loss"], alone[name]["loss"], rtol=tolerance, atol=tolerance)


def test_training_has_moved_the_weights(both):
    for name, result in both[1].items():
        if name.startswith(("fit", "sampler")):
            outputs = 3 if "cross entropy" in name else 1
            start = ddp_worker.flat(seeded(lambda n=outputs: RegressionNet(ddp_worker.D, n), 0))
            assert (result["weights"] - start).norm() > 1e-3, name


def test_moments_are_those_of_all_rows(both):
    X = ddp_worker.table(torch.float64)[0]
    found = both[1]["moments"]
    torch.testing.assert_close(found["mean"], X.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(found["std"], X.std(0, correction=0), rtol=1e-12, atol=0)
    points = found["points"]
    torch.testing.assert_close(points.mT @ points / len(points), X.mT @ X / len(X), rtol=1e-12, atol=0)


def test_what_cannot_work_is_refused_by_every_process(both):
    world, found, _ = both
    messages, stopped, step, reason = found["refusals"]
    assert len(messages) == 8
    assert "data is" in messages[0]
    assert "on rank 0 and" in messages[0]
    assert "seed is 0 on rank 0 and 1 on rank 1" in messages[1]
    assert "BatchNorm1d sees the rows of one process only" in messages[2]
    assert "pass its .module" in messages[3]
    assert "needs all rows in one process" in messages[4]
    assert f"BatchLoss, which is no sum over rows cannot be split among {world} processes" in messages[5]
    assert 'engine="kernel" is not possible here: several processes train together' in messages[6]
    assert re.search("batch_size.* 7.* on rank 0 and .*batch_size.* 8.* on rank 1", messages[7])
    assert reason == "several processes train together"
    assert stopped == "callback"  # asked for by the last rank alone
    assert 3 < step < 9 * 8 / world


def test_an_update_that_overflows_ends_every_process_at_the_same_step(both):
    stopped, message = both[1]["overflow"]
    assert (stopped, "at step 0" in message) == ("diverged", True), message


def test_a_rank_that_dies_ends_the_job_and_any_number_of_ranks_resume(tmp_path):
    path = tmp_path / "run.pt"
    done, seconds = torchrun(2, HERE / "ddp_worker.py", path, "--die", 60, check=False)
    assert done.returncode != 0
    assert seconds < 30 + 30  # thirty to notice, and what starting takes on a busy machine
    assert "SIGKILL" in done.stderr or "-9" in done.stderr or "exitcode" in done.stderr
    X, y = ddp_worker.table(torch.float64)
    objective = RLP(10, 24, subsets_per_step=4)
    left = seeded(lambda: RegressionNet(ddp_worker.D), 0).double()
    with pytest.warns(RuntimeWarning, match="processes is '2' in the file and '1' here"):
        history = fit(left, X, y, objective, budget=Epochs(20), checkpoint=path, checkpoint_every=Steps(10))
    whole = seeded(lambda: RegressionNet(ddp_worker.D), 0).double()
    fit(whole, X, y, objective, budget=Epochs(20), engine="torch")
    assert history.stopped == "budget"
    assert history.settings["engine"] == "torch", "the engine of the checkpoint"
    gap = (ddp_worker.flat(left) - ddp_worker.flat(whole)).norm() / ddp_worker.flat(whole).norm()
    assert gap < 1e-12


def test_the_example_runs(tmp_path):
    example = HERE.parent / "examples" / "ddp.py"
    done, _ = torchrun(2, example, "--epochs", 1, "--save", tmp_path / "two.pt")
    assert "2 process(es): test MSE" in done.stdout
    alone = subprocess.run(
        [sys.executable, str(example), "--epochs", "1", "--save", str(tmp_path / "one.pt")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 process(es): test MSE" in alone.stdout
    two, one = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("two", "one"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-4, atol=1e-6)


def test_shares_differ_by_at_most_one_and_miss_nothing():
    for world in range(1, 7):
        for n in range(20):
            parts = [distributed.Share(rank, world).of(n) for rank in range(world)]
            assert [i for part in parts for i in range(n)[part]] == list(range(n))
            sizes = [part.stop - part.start for part in parts]
            assert max(sizes) - min(sizes) <= 1


def test_alone_everything_is_as_if_nothing_were_distributed():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 1] = 2.0
    mean, std = distributed.mean_and_std(x)
    torch.testing.assert_close(mean, x.mean(0))
    assert std[1] == 1
    assert distributed.loss_scale(3) == 1
    assert distributed.loss_scale(3, reduction="sum") == 1
    assert distributed.current() == distributed.Share(0, 1)
    with distributed.start() as share:
        assert share.world == 1
    with pytest.raises(ValueError, match="n_mine must be above 0 in some process"):
        distributed.loss_scale(0)
    with pytest.raises(ValueError, match=r"x must have shape \(n, d\), got \(3,\)"):
        distributed.mean_and_std(torch.zeros(3))
    with pytest.raises(ValueError, match="at least one row in some process"):
        distributed.moment_points(torch.zeros(0, 3))


def test_what_nccl_exchanges_lies_on_the_gpu(monkeypatch):
    """NCCL takes no other tensors. The second process of this world has no rows: it adds nothing."""
    moved = []

    def cuda(tensor):
        moved.append(tensor.clone())
        return moved[-1]

    def exchange(*tensors):
        assert any(tensors[-1] is there for there in moved), "a tensor on the CPU"

    monkeypatch.setattr(distributed, "current", lambda: distributed.Share(0, 2))
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.distributed, "all_reduce", exchange)
    monkeypatch.setattr(torch.distributed, "all_gather", exchange)
    monkeypatch.setattr(torch.Tensor, "cuda", cuda)
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = distributed.moment_points(x)
    torch.testing.assert_close(points.mean(0), x.mean(0))
    torch.testing.assert_close(points.mT @ points / len(points), x.mT @ x / len(x))
    torch.testing.assert_close(distributed.mean_and_std(x)[1], x.std(0, correction=0))
    assert distributed.loss_scale(3) == 2


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(RuntimeError, match="torchrun started 2 processes that do not know of each other"):
        fit(RegressionNet(3), torch.randn(9, 3), torch.randn(9), budget=Steps(1))


def test_a_fleet_trains_in_one_process(monkeypatch):
    monkeypatch.setattr(distributed, "current", lambda: distributed.Share(0, 2))
    problem = Problem(torch.randn(9, 3), torch.randn(9))
    with pytest.raises(ValueError, match="fit_fleet trains in one process; under torchrun call fit, or"):
        fit_fleet(lambda seed: RegressionNet(3), [problem], MSE(), budget=Steps(1))
