"""One guard for packages that only some rooms need."""

from __future__ import annotations

import importlib.util


class MissingExtra(ImportError):
    """A package of an extra is not installed; the message says how to install it."""


def missing(*modules: str) -> list[str]:
    """Which of these packages are not installed.

    >>> missing("math", "no_such_package")
    ['no_such_package']
    """
    return [module for module in modules if not _installed(module)]


def need(extra: str, what: str, *modules: str) -> None:
    """Refuse with the remedy where a package that `what` needs is missing. Call it before the first import of one.

    >>> need("lab", "this example", "math")
    """
    for module in missing(*modules):
        raise MissingExtra(f"{what} needs {module}, which is not installed: pip install 'rlploss[{extra}]'")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # an import hook that refuses it
        return False
