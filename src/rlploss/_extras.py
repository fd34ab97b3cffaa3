"""Check for optional packages, and say how to install the missing ones."""

from __future__ import annotations

import importlib.util


class MissingExtra(ImportError):
    """Raised when a package of an extra is not installed; the message says how to install it."""


def missing(*modules: str) -> list[str]:
    """Return those of the packages that are not installed.

    >>> missing("math", "no_such_package")
    ['no_such_package']
    """
    return [module for module in modules if not _installed(module)]


def need(extra: str, what: str, *modules: str) -> None:
    """Raise MissingExtra if a package that `what` needs is missing. Call it before importing one.

    >>> need("lab", "this example", "math")
    """
    for module in missing(*modules):
        raise MissingExtra(
            f"{what} needs {module}, which is not installed: pip install 'rlploss[{extra}]'"
        )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # an import hook refused the module
        return False
