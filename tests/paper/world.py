"""Made-up results for every cell: worlds in which the paper is right, right only at equal epochs, or wrong."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np

from rlploss.lab.results import Run, StoredCell
from rlploss.paper import published
from rlploss.paper.protocols import is_rlp
from rlploss.paper.view import View

POINTS = 41
PROVENANCE = {
    "engine": "e", "versions": {"python": "3.11", "torch": "2.13"}, "threads": 1, "path": "plain", "notes": [],
    "machine": {"processor": "cpu", "cores": 2},
}  # fmt: skip


def level(cell, world):
    """Where the error of a cell ends."""
    name, arm, protocol = cell.task.name.split(" ")[0].split("-")[0], cell.arm.name, cell.arm.protocol
    ours = published.table1(name, "rlp", "mse")
    theirs = published.table1(name, "mse", "mse")
    rlp, base = (ours.mean, theirs.mean) if ours else (0.1, 0.5)
    if is_rlp(arm):
        return rlp
    at_steps = protocol in ("steps", "corrected-steps")
    if world == "wrong" or (world == "gone" and at_steps):
        return 0.5 * rlp
    return max(base, 2.0 * rlp)


def measured(cell, variant):
    """Values of the measured cells, as the theory has them."""
    values = dict(cell.task.variants[variant])
    skewed = values.get("distribution") == "skewed"
    return {
        "floor": {"value": 1.0, "error": 0.1, "exact": 1.0},
        "excess": {"bent": 0.4, "bent_error": 0.01, "at_zero": 0.0, "at_zero_error": 0.0},
        "condition": {
            "same": 1.0, "different": 2.0 * skewed, "different_error": 0.1, "threshold": 1.0, "holds": skewed,
            "curvature_rlp": 9.0, "curvature_mse": 1.0, "nearer": 1.0, "good_step": 0.1, "convergent_step": 0.11,
        },
        "empirical": {"error": 1.0 / (variant + 1)},
        "coverage": {"missing": 2.0 * (values.get("method") == "paper"), "equal": 0.0, "least": 0.0, "most": 2.0},
        "planes": {"nullity": [0.0, 1.0, 6.0][min(variant, 2)]},
    }[str(cell.task.get("measure"))]  # fmt: skip


def curves(cell, variant, seed, world):
    """One run."""
    if cell.task.get("measure"):
        return {"step": [0.0], **{k: [float(v)] for k, v in measured(cell, variant).items()}}
    ours, at_steps = is_rlp(cell.arm.name), cell.arm.protocol in ("steps", "corrected-steps")
    ahead = ours != (world == "wrong")  # the arm that this world favours learns faster and varies less
    key = zlib.crc32(f"{cell.arm.name} {at_steps} {variant}".encode())
    noise = np.random.default_rng([key, seed]).normal() * (0.0002 if ahead else 0.002)
    done = np.linspace(0.0, 1.0, POINTS)
    overfits = cell.task.name == "california" and not ahead and not ours and not (world == "gone" and at_steps)
    speed = 60.0 if ahead or overfits else 3.0
    if world == "gone" and at_steps and not ours:
        speed = 300.0
    shape = 1.0 + 5.0 * np.exp(-speed * done)
    shape = shape + (0.3 * np.maximum(0.0, done - 0.2) if overfits else -0.05 * done)
    beta = dict(cell.task.variants[variant]).get("noise", 0.0)
    rise = 1.0 + (beta**0.5 if ahead else beta**3)
    error = level(cell, world) * shape / shape[-1] * np.exp(noise) * rise
    per_epoch = float(cell.arm.get("n_subsets", 1000)) if ours else 10.0
    n = cell.budget.n
    epochs = done * n if cell.budget.unit == "epochs" else done * n / per_epoch
    steps = done * n * per_epoch if cell.budget.unit == "epochs" else done * n
    accuracy = 1.0 - np.minimum(0.9, error)
    found = {
        "step": steps, "epoch": epochs, "samples": steps * 100, "seconds": steps * 1e-3, "mse": error,
        "mae": np.sqrt(error), "rlp": 0.5 * error, "accuracy": accuracy, "f1": accuracy - 0.01,
    }  # fmt: skip
    return {k: v.tolist() for k, v in found.items()}


def artifacts(cell):
    if cell.task.get("keep") == "reconstructions":
        images = np.random.default_rng(0).uniform(size=(8, 784)).astype(np.float32)
        return {"original": images, **{f"epoch {e}": images * 0.9 for e in (5, 10, 50)}}
    if cell.task.get("keep") == "boundary":
        return {"boundary": np.random.default_rng(0).normal(size=(60, 60)).astype(np.float32)}
    return {}


@cache
def read(cell, world):
    runs = [
        Run(seed, variant, curves(cell, variant, seed, world), 1.0, artifacts(cell))
        for variant in range(len(cell.task.variants))
        for seed in cell.seeds
    ]
    return StoredCell(tuple(runs), PROVENANCE, 3.0)


def view(request, world, without=()):
    """A view on a world; datasets in `without` could not be had."""

    def reader(cell):
        return None if str(cell.task.get("dataset")) in without else read(cell, world)

    return View(request, reader, lambda cell: f"dataset {cell.task.get('dataset')} cannot be had")
