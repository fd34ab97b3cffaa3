"""How a cell of the paper is trained or measured, and what it is expected to cost."""

from __future__ import annotations

from rlploss.lab.results import CellResult, Tell
from rlploss.lab.study import Cell
from rlploss.lab.train import train as train_networks
from rlploss.paper.measure import measure

ROOT = __name__  # the code behind a number is what this module imports


def train(cell: Cell, tell: Tell) -> CellResult:
    """Train the networks of a cell, or take its measurements."""
    return measure(cell, tell) if cell.task.get("measure") else train_networks(cell, tell)
