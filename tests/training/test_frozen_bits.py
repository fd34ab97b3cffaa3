"""Numbers do not drift: 40 small networks end with the weights that were stored once.

Rounding belongs to a kind of machine, so `frozen_bits.json` holds the digests of one kind or more.
On another kind every test is skipped. `python -m tests.training.test_frozen_bits` adds what the
file does not have yet, for this kind of machine. It never replaces a digest: a change of numbers
that is meant begins with deleting the digests that it changes, by hand, in the same commit.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from rlploss import (
    MAE,
    MSE,
    RLP,
    SGD,
    Adam,
    AdamW,
    BatchLoss,
    CrossEntropy,
    Huber,
    Pointwise,
    Problem,
    RegressionNet,
    Steps,
    fit,
    fit_fleet,
    seeded,
)
from rlploss.training.objectives import Objective

FILE = Path(__file__).with_name("frozen_bits.json")
STEPS, N, D = 2000, 60, 4


@dataclass(frozen=True)
class Frozen:
    """One network, or with `threads` a fleet of three, and how it is trained."""

    objective: Objective
    weights: bool = False  # of the rows
    engine: str = "kernel"
    threads: int = 0
    outputs: int = 1
    dtype: torch.dtype = torch.float32
    optimizer: Any = Adam(0.01)  # noqa: RUF009 - a frozen value
    schedule: str | None = None
    clip_grad: float | None = None


def _fourth_power(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target) ** 4


def _offset(pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
    return (pred - target).square().mean() + features[:, :1].mul(pred - target).mean().square()


_BOTH: dict[str, Frozen] = {  # with row weights and without
    "mse": Frozen(MSE(17)),
    "mse all rows": Frozen(MSE("all")),
    "mae": Frozen(MAE(17)),
    "huber": Frozen(Huber(17, delta=0.5)),
    "cross entropy": Frozen(CrossEntropy(17), outputs=3),
    "rlp": Frozen(RLP(13, 11), outputs=2),
    "rlp fresh": Frozen(RLP(13, 11, plan="each-epoch")),
    "rlp all subsets": Frozen(RLP(50, 90, subsets_per_step="all")),
    "rlp draw": Frozen(RLP(13, 11, probe="draw")),
    "rlp expected": Frozen(RLP(13, 11, probe="expected", intercept=False)),
    "rlp sum": Frozen(RLP(13, 11, probe="sum")),
    "rlp ridge": Frozen(RLP(13, 11, ridge=0.5)),
}
_ONCE: dict[str, Frozen] = {
    "mse mixup": Frozen(MSE(17, mixup=0.3)),
    "rlp mixup": Frozen(RLP(13, 11, mixup=0.3)),
    "rlp paper": Frozen(RLP.paper(13, 11, mixup=0.3)),
    "rlp small subsets": Frozen(RLP(7, 40)),
    "rlp cut off": Frozen(RLP.released(13, 11, float32_cutoff=True)),
    "pointwise": Frozen(Pointwise(_fourth_power, 17)),
    "batch": Frozen(BatchLoss(_offset, 17)),
    "rlp float64": Frozen(RLP(13, 11), dtype=torch.float64),
    "mse sgd": Frozen(MSE(17), optimizer=SGD(0.01, momentum=0.9, nesterov=True)),
    "rlp adamw": Frozen(RLP(13, 11), optimizer=AdamW(0.01), schedule="cosine", clip_grad=0.1),
    "mse threads": Frozen(MSE(17), threads=2),
    "rlp threads": Frozen(RLP(13, 11), weights=True, threads=2),
    "rlp mixup threads": Frozen(RLP(13, 11, mixup=0.3), threads=2),
    "torch mse": Frozen(MSE(17), weights=True, engine="torch"),
    "torch rlp": Frozen(RLP(13, 11), engine="torch"),
    "torch rlp mixup": Frozen(RLP(13, 11, mixup=0.3), engine="torch"),
}
JOBS = {
    **_BOTH,
    **{
        f"{name} weighted": Frozen(job.objective, weights=True, outputs=job.outputs)
        for name, job in _BOTH.items()
    },
    **_ONCE,
}


def machine() -> dict[str, str]:
    """What bits depend on: the processor's instructions, and who multiplies and factors."""
    features = llvmlite.binding.get_host_cpu_features()
    names = ",".join(sorted(name for name, usable in features.items() if usable))
    return {
        "processor": llvmlite.binding.get_host_cpu_name(),
        "instructions": hashlib.sha256(names.encode()).hexdigest()[:16],
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
    }


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def problem(job: Frozen, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, D, generator=generator, dtype=torch.float64)
    y = torch.sin(X @ torch.randn(D, job.outputs, generator=generator, dtype=torch.float64))
    y = y + 0.1 * torch.randn(N, job.outputs, generator=generator, dtype=torch.float64)
    target = y.argmax(1) if isinstance(job.objective, CrossEntropy) else y
    weight = torch.arange(N) % 5 + 1 if job.weights else None
    return Problem(X, target, seed=seed, sample_weight=weight)


def weights_digest(job: Frozen) -> str:
    """SHA-256 of the final weights."""

    def build(seed: int) -> RegressionNet:
        return seeded(lambda: RegressionNet(D, job.outputs, hidden=8), seed).to(job.dtype)

    settings: dict[str, Any] = {
        "budget": Steps(STEPS),
        "optimizer": job.optimizer,
        "engine": job.engine,
        "schedule": job.schedule,
        "clip_grad": job.clip_grad,
    }
    with threads(job.threads or 1):
        if job.threads:
            problems = [problem(job, seed) for seed in range(3)]
            histories = fit_fleet(build, problems, job.objective, **settings)
        else:
            only = problem(job, 0)
            weight = only.sample_weight
            histories = [
                fit(build(0), only.X, only.y, job.objective, sample_weight=weight, **settings)
            ]
    digest = hashlib.sha256()
    for history in histories:
        assert history.model is not None
        for parameter in history.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def frozen() -> dict[str, str]:
    """The digests of this kind of machine; none where it is not known."""
    for part in json.loads(FILE.read_text()):
        if part["machine"] == machine():
            digests: dict[str, str] = part["weights"]
            return digests
    return {}


@pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")
@pytest.mark.parametrize("name", JOBS)
def test_numbers_do_not_drift(name: str) -> None:
    digests = frozen()
    if not digests:
        pytest.skip("frozen on another kind of machine")
    assert weights_digest(JOBS[name]) == digests[name]


def test_the_file_holds_every_job_of_each_machine() -> None:
    for part in json.loads(FILE.read_text()):
        assert set(part["weights"]) == set(JOBS), part["machine"]
        assert len(set(part["weights"].values())) == len(JOBS), "two jobs that are the same"


def main() -> None:
    """Add the digests that the file does not have yet, for this kind of machine."""
    parts = json.loads(FILE.read_text()) if FILE.exists() else []
    here = next((part for part in parts if part["machine"] == machine()), None)
    if here is None:
        here = {"machine": machine(), "weights": {}}
        parts.append(here)
    known = here["weights"]
    here["weights"] = {name: known.get(name) or weights_digest(job) for name, job in JOBS.items()}
    FILE.write_text(json.dumps(parts, indent=1) + "\n")
    print(f"{len(JOBS)} digests, {len(JOBS) - len(known)} of them new")


if __name__ == "__main__":
    main()
