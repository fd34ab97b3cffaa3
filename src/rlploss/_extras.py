"""One guard for packages that only some rooms need."""

from __future__ import annotations

import importlib.util


class MissingExtra(ImportError):
    """A package of an extra is not installed; the message says how to install it."""


def need(extra: str, what: str, *modules: str) -> None:
    """Refuse with the remedy where a package that `what` needs is missing. Call it before the first import of one.

    >>> need("lab", "this example", "math")
    """
    for module in modules:
        try:
            found = importlib.util.find_spec(module) is not None
        except ImportError:  # an import hook that refuses it
            found = False
        if not found:
            raise MissingExtra(f"{what} needs {module}, which is not installed: pip install 'rlploss[{extra}]'")
