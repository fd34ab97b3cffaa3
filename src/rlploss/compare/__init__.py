"""`compare`: does RLP help on this table?"""

from rlploss.compare.answer import Comparison, compare, load_table
from rlploss.compare.read import TableError

__all__ = ["Comparison", "TableError", "compare", "load_table"]
