"""Estimate how many seconds a cell takes, before it is trained; every room uses this one formula.

A plan corrects the estimate by the seconds that stored cells of the same family took
(`lab.run.plan`).
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PRICES: dict[str, list[float]] = tomllib.loads(
    Path(__file__).with_name("prices.toml").read_text("utf-8")
)
BEGINNING = 0.05  # seconds that every cell takes


def expected_seconds(
    family: str, networks: float, *, evaluations: float = 0.0, steps: float = 1.0, rows: float = 0.0
) -> float:
    """Return the seconds that a cell takes on one core.

    beginning + networks · (start + evaluations · evaluation + steps · (step + rows · row)),
    with the prices of the family.
    """
    start, evaluation, step, row = PRICES[family]
    return BEGINNING + networks * (start + evaluations * evaluation + steps * (step + rows * row))
