"""`compare`: does RLP help on this table?"""

from rlploss._extras import need

need(
    "lab",
    "rlploss.compare",
    "pandas",
    "sklearn",
    "scipy",
    "rich",
    "matplotlib",
    "jinja2",
    "safetensors",
    "skops",
)

# The guard above comes before every import that needs these packages.
from rlploss.compare.answer import Comparison  # noqa: E402 - after the guard
from rlploss.compare.arms import Raw  # noqa: E402 - after the guard
from rlploss.compare.comparison import compare  # noqa: E402 - after the guard
from rlploss.compare.model import load  # noqa: E402 - after the guard
from rlploss.compare.read import TableError  # noqa: E402 - after the guard

__all__ = ["Comparison", "Raw", "TableError", "compare", "load"]
