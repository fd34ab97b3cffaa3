"""`compare`: does RLP help on this table?"""

from rlploss.compare.answer import Comparison, TableError, compare, load_table

__all__ = ["Comparison", "TableError", "compare", "load_table"]
