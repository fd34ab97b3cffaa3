"""The seed of tests that must be green with any: RLPLOSS_TEST_SEED, 0 unless told."""

import os

import numpy as np

SEED = int(os.environ.get("RLPLOSS_TEST_SEED", "0"))


def paired_readings(draw=0, n=80):
    """Columns, target and truth: four quantities, each read twice; the truth is the sum of the
    differences.

    Label noise is as large as the truth. A network trained with MSE fits noise along the four
    quantities before it has found the small differences."""
    rng = np.random.default_rng([SEED, draw])
    quantity, difference = rng.normal(size=(n, 4)), 0.4 * rng.normal(size=(n, 4))
    truth = difference.sum(1)
    columns = np.hstack([quantity + difference, quantity - difference])
    return columns, truth + truth.std() * rng.normal(size=n), truth
