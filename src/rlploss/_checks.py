"""Every check of input and its message: the rule, the value received, the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real


def one_of(name: str, value: object, options: Iterable[str]) -> str:
    """Return `value` if it is one of `options`."""
    options = tuple(options)
    if value in options:
        return str(value)
    near = difflib.get_close_matches(str(value), options, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    listed = ", ".join(f'"{o}"' for o in options)
    raise ValueError(f"{name} must be one of {listed}, got {value!r}{hint}")


def count(name: str, value: object, minimum: int = 1) -> int:
    """Return `value` as an int of at least `minimum`; bools and fractions are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {int(value)}")
    return int(value)


def number(name: str, value: object, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Return `value` as a finite float within [minimum, maximum]."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    result = float(value)
    if not math.isfinite(result) or not minimum <= result <= maximum:
        rule = "finite"
        if maximum < math.inf:
            rule = f"in [{minimum:g}, {maximum:g}]"
        elif minimum > -math.inf:
            rule = f"finite and at least {minimum:g}"
        raise ValueError(f"{name} must be {rule}, got {result!r}")
    return result
