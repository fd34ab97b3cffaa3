"""Random Linear Projections (RLP) loss for PyTorch.

`_api` lists the public names. They and the modules below are loaded on first use, so `import
rlploss` takes no time, and the command prints `--help` without torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rlploss._version import __version__ as __version__

if TYPE_CHECKING:
    from rlploss import compare as compare
    from rlploss import datasets as datasets
    from rlploss import estimators as estimators
    from rlploss import theory as theory
    from rlploss._api import *  # noqa: F403 - the same names, for type checkers
    from rlploss._api import __all__ as __all__
else:  # hidden from type checkers, which would accept every name

    def __getattr__(name: str) -> object:
        """Load a public name or a module on first use."""
        public = not name.startswith("_")
        if public and find_spec(f"rlploss.{name}"):
            return import_module(f"rlploss.{name}")
        if public or name == "__all__":
            api = import_module("rlploss._api")
            if name == "__all__" or name in api.__all__:
                globals()[name] = value = getattr(api, name)
                return value
        raise AttributeError(f"module 'rlploss' has no attribute {name!r}")

    def __dir__() -> list[str]:
        modules = ["compare", "datasets", "estimators", "theory"]
        return sorted([*import_module("rlploss._api").__all__, *modules, "__version__"])
