"""The command `rlploss`."""

from rlploss.cli.app import main, run

__all__ = ["main", "run"]
