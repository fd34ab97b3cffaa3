"""What a run is given to spend: `Epochs(n)` or `Steps(n)`, so that a comparison always says which."""

from __future__ import annotations

from dataclasses import dataclass

from rlploss._checks import count, one_of
from rlploss._values import Value


@dataclass(frozen=True, repr=False)
class Epochs(Value):
    """`n` passes: over the rows for pointwise objectives, over the K subsets for RLP, as the paper counts."""

    n: int

    def __post_init__(self) -> None:
        count("Epochs(n)", self.n)

    def steps(self, steps_per_epoch: int) -> int:
        """Optimiser steps in this many epochs."""
        return self.n * steps_per_epoch


@dataclass(frozen=True, repr=False)
class Steps(Value):
    """`n` optimiser steps, whatever an epoch is for the objective."""

    n: int

    def __post_init__(self) -> None:
        count("Steps(n)", self.n)

    def steps(self, steps_per_epoch: int) -> int:
        """Optimiser steps: `n` itself."""
        return self.n


Budget = Epochs | Steps


def as_budget(name: str, value: object) -> Budget:
    """Read `Epochs(n)`, `Steps(n)`, `(n, "epochs")` or `(n, "steps")`."""
    if isinstance(value, Epochs | Steps):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        n, unit = value
        return Epochs(n) if one_of(f"the unit of {name}", unit, ("epochs", "steps")) == "epochs" else Steps(n)
    raise TypeError(f"{name} must be Epochs(n) or Steps(n), so that a comparison always states which, got {value!r}")
