"""One tolerance helper that knows dtypes."""

import numpy as np
import torch

RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4}


def assert_close(actual, expected, rtol=None, *, dtype=torch.float64):
    """Relative to the largest entry: a gradient is compared as a vector, not entry by entry."""
    actual = np.asarray(
        actual.detach() if isinstance(actual, torch.Tensor) else actual, dtype=np.float64
    )
    expected = np.asarray(
        expected.detach() if isinstance(expected, torch.Tensor) else expected, dtype=np.float64
    )
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert np.isfinite(actual).all()
    scale = np.abs(expected).max(initial=0.0)
    error = np.abs(actual - expected).max(initial=0.0)
    tolerance = RELATIVE[dtype] if rtol is None else rtol
    assert error <= tolerance * scale, (
        f"off by {error:.3g}, {error / max(scale, 1e-300):.3g} relative"
    )
