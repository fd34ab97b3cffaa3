"""What a cell costs: one formula for every room, for plans.

A plan corrects it by the seconds that stored cells of the same family have taken (`lab.run.plan`).
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PRICES: dict[str, list[float]] = tomllib.loads(
    Path(__file__).with_name("prices.toml").read_text("utf-8")
)
BEGINNING = 0.05  # seconds, of a cell


def expected_seconds(
    family: str, networks: float, *, evaluations: float = 0.0, steps: float = 1.0, rows: float = 0.0
) -> float:
    """Return the seconds of a cell on one core:
    beginning + networks · (start + evaluations · evaluation + steps · (step + rows · row)).
    """
    start, evaluation, step, row = PRICES[family]
    return BEGINNING + networks * (start + evaluations * evaluation + steps * (step + rows * row))
