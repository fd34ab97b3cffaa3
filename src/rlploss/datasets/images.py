"""The image sets: MNIST, CIFAR-10, Digits. Pixels are float32 in [0, 1], divided once."""

from __future__ import annotations

from rlploss.datasets.dataset import Entry

ENTRIES: tuple[Entry, ...] = ()
