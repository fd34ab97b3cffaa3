"""Define values: small frozen settings that check themselves, print as code, and turn into JSON and
back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

from rlploss._checks import Checked, one_of

put = object.__setattr__  # sets a field of a frozen value while it is created

LOADED = "rlploss_file_"  # prefix of the names of modules that `load_file` loads

_KINDS: dict[str, type[Value]] = {}


class Value(Checked):
    """A frozen dataclass that checks its fields, prints as the code that creates it, and turns into
    JSON and back.
    """

    def __init_subclass__(cls) -> None:
        """Register the class under its name, so that `from_json` finds it."""
        super().__init_subclass__()
        _KINDS[cls.__name__] = cls

    def __repr__(self) -> str:
        """Return the code that creates this value, without arguments at their defaults."""
        parts: list[str] = []
        for place, field in enumerate(dataclasses.fields(self)):  # type: ignore[arg-type]  # all are dataclasses
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING or value != field.default:
                text = (
                    function_name(value)
                    if isinstance(value, type | FunctionType | partial)
                    else repr(value)
                )
                parts.append(f"{field.name}={text}" if place or field.kw_only else text)
        return f"{type(self).__name__}({', '.join(parts)})"

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain data, the class as "kind", and functions as descriptions."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # as above
        return {"kind": type(self).__name__} | {
            field.name: plain(getattr(self, field.name)) for field in fields
        }


def plain(value: Any) -> Any:
    """Return a value, or a tuple of values, as JSON data; anything else is returned as it is."""
    if isinstance(value, Value):
        return value.to_json()
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return function_to_json(value) if callable(value) else value


def from_json(data: Any, *, functions: bool = True) -> Any:
    """Return the value that `to_json` described; a function must still exist, unchanged.

    Loading a function runs the module that defines it. `functions=False` refuses functions; use it
    for data that somebody else wrote.
    """
    if isinstance(data, list):
        return tuple(from_json(item, functions=functions) for item in data)
    if not isinstance(data, dict):
        return data
    if "where" in data:
        if not functions:
            raise ValueError(
                f"{data.get('function')} is not loaded: functions are refused here; make the value"
                " anew"
            )
        return function_from_json(data)
    known = {
        name: kind
        for name, kind in _KINDS.items()
        if "__dataclass_fields__" in vars(kind) and name[0] != "_"
    }
    kind = known[one_of("kind", data.get("kind"), known)]
    return kind(
        **{
            name: from_json(item, functions=functions)
            for name, item in data.items()
            if name != "kind"
        }
    )


# Functions inside values


def function_name(function: Callable[..., Any]) -> str:
    """Return the name under which a callable is shown."""
    if isinstance(function, partial):
        return f"partial of {function_name(function.func)}"
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def loaded_by_path(function: Callable[..., Any]) -> bool:
    """Return whether `load_file` loaded the function; such a function cannot be imported."""
    return str(getattr(function, "__module__", "")).startswith(LOADED)


def function_to_json(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the name of a function, where it is defined, and a digest of its source.

    "where" is None if the function could not be found again. A callable object is described as
    `Class()` if calling its class without arguments makes an equal object.
    """
    name = function_name(function)
    shown: Any = function
    if (
        not _has_source(function)
        and not isinstance(function, partial)
        and _is_made_by(type(function), function)
    ):
        shown, name = type(function), f"{name}()"
    where: str | None = None
    if (
        _has_source(shown) or inspect.isbuiltin(shown)
    ) and "<" not in name:  # <lambda>, or f.<locals>.g
        where = shown.__module__
        spec = getattr(sys.modules.get(where), "__spec__", None)
        lost = spec is None or spec.origin is None or loaded_by_path(shown)
        if lost or importlib.util.find_spec(where.partition(".")[0]) is None:
            where = inspect.getsourcefile(shown)  # a script, or a file loaded by its path
    return {"function": name, "where": where, "source": _digest(function)}


def _has_source(function: object) -> bool:
    return inspect.isfunction(function) or inspect.isclass(function)


def _is_made_by(kind: type, function: Callable[..., Any]) -> bool:
    """Return whether calling the class without arguments makes an equal object."""
    try:
        return _digest(kind()) == _digest(function)
    except Exception:  # a user's class may raise anything
        return False


def function_from_json(data: dict[str, Any]) -> Callable[..., Any]:
    """Return the function that `function_to_json` described."""
    name, where = data["function"], data["where"]
    if where is None:
        raise ValueError(
            f"{name} cannot be loaded: only functions at the top of a module or file can; name it"
            " there"
        )
    function: Any = (
        load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    )
    for part in name.removesuffix("()").split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise ValueError(
            f"{name} must be a function in {where}, got none; put it back, or make the value anew"
        )
    function = function() if name.endswith("()") else function
    if _digest(function) != data["source"]:
        raise ValueError(
            f"{name} in {where} must be as it was when the value was made, but its source has"
            " changed"
        )
    return function  # type: ignore[no-any-return]  # callable, as checked


def load_file(path: Path) -> Any:
    """Return the module in a Python file. It is loaded once, under a name made from its path."""
    name = LOADED + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ValueError(f"{path} must be a Python file, got none that can be loaded")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _digest(function: Callable[..., Any]) -> str:
    """Return a digest of the source, or of the printed form of an object without source."""
    shown: Any = function.func if isinstance(function, partial) else function
    described = _has_source(shown)
    try:
        text = textwrap.dedent(inspect.getsource(shown if described else type(shown)))
    except (OSError, TypeError):
        text = ""
    if inspect.isfunction(shown):  # its closure and its defaults are part of the digest
        # An empty cell has no contents.
        cells = [cell.cell_contents for cell in shown.__closure__ or () if cell != CellType()]
        simple = [
            value
            for value in (*cells, *(shown.__defaults__ or ()))
            if isinstance(value, int | float | str)
        ]
        text += repr(simple) if simple else ""
    if not described or isinstance(function, partial):
        held = getattr(function, "__dict__", {}).items()
        text += re.sub(r" at 0x[0-9a-f]+", "", repr(function))
        text += repr(sorted(item for item in held if isinstance(item[1], int | float | str)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
