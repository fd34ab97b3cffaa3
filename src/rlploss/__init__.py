"""Random Linear Projections (RLP) loss for PyTorch."""

from rlploss._version import __version__

__all__ = ["__version__"]
