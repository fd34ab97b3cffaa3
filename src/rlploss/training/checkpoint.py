"""Checkpoints: written whole or not at all, read only if they are whole and belong to the same
run.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rlploss._checks import warn
from rlploss._files import replacing
from rlploss.training.rows import digest

FORMAT = 2
MARK = "rlploss checkpoint"
REMEDY = "delete it, or pass another checkpoint path"


def environment(device: torch.device, n_threads: int) -> dict[str, str]:
    """What bit-for-bit equality depends on beyond the run itself."""
    return {
        "torch": str(torch.__version__),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": str(device),
        "threads": str(n_threads),
    }


class CheckpointFile:
    """The checkpoint of one run, read once if there is one; `engine` is the one that wrote it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = read(path) if path.exists() else None
        self.engine = None if self._content is None else self._content["spec"].get("engine")

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint so that at every moment there is either the old one or the new one,
        whole.
        """
        head = {
            "mark": MARK,
            "format": FORMAT,
            "spec": self.spec,
            "environment": self.where,
            "digest": digest(state),
        }
        try:
            with replacing(self.path) as file:
                torch.save({**head, "state": state}, file)
        except (
            OSError,
            RuntimeError,
        ) as error:  # torch hides an error of the disk in one of its own
            cause = error if isinstance(error, OSError) else error.__context__
            reason = (cause.strerror if isinstance(cause, OSError) else None) or _first_line(error)
            wrong = (
                f"checkpoint {self.path} cannot be written ({reason}); the last one, if any, is"
                " kept"
            )
            raise OSError(f"{wrong}: free some space or pass another checkpoint path") from error

    def load(self, spec: dict[str, Any], where: dict[str, str]) -> dict[str, Any] | None:
        """Return the state of this very run, or None if there is none yet.

        `spec` says what the run is, `where` what bit-for-bit equality depends on beyond it.
        """
        content, self._content = self._content, None
        self.spec = json.loads(json.dumps(spec, sort_keys=True, default=str))  # as it comes back
        self.where = where
        if content is None:
            return None
        if other := ", ".join(_differences(content["spec"], self.spec)):
            raise ValueError(
                f"checkpoint {self.path} must belong to this run, but it differs: {other}; {REMEDY}"
            )
        if drift := ", ".join(_differences(content["environment"], where)):
            said = (
                f"checkpoint {self.path} was written elsewhere: {drift}; the run continues, but not"
                " bit for bit"
            )
            warn(RuntimeWarning, said)
        state: dict[str, Any] = content["state"]
        return state


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, whole and undamaged."""
    with refusing(path):  # torch raises half a dozen kinds for damaged files
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or content.get("mark") != MARK:
            raise ValueError(
                f"checkpoint {path} must be a file that fit wrote, got something else; {REMEDY}"
            )
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {str(content['format'])[:40]!r}, not {FORMAT}")
        if digest(content["state"]) != content["digest"]:
            raise ValueError("its content does not match its digest")
        for part in ("spec", "environment", "state"):
            if not isinstance(content[part], dict) or not all(
                isinstance(key, str) for key in content[part]
            ):
                raise ValueError(f"its {part} is not one")
        state = content[
            "state"
        ]  # what the loop counts with must be numbers, and curves lists of numbers
        for name, kind in {
            "step": int,
            "loss_count": int,
            "seconds": float,
            "loss_sum": float,
            "stopped": str,
        }.items():
            if type(state[name]) is not kind:
                raise ValueError(f"{name} is not of type {kind.__name__}")
        columns = state["columns"].values()
        numbers = all(isinstance(number, int | float) for column in columns for number in column)
        if len({len(column) for column in columns}) > 1 or not numbers:
            raise ValueError("its columns are not numbers")
    return content


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn whatever the content of a file leads to, and that may be anything, into one sentence."""
    try:
        yield
    except (Warning, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if "allocate memory" in str(error) or str(error).startswith(f"checkpoint {path} "):
            raise  # the file is not to blame, or it is said already
        wrong = f"checkpoint {path} must be a whole file that fit wrote, got: {_first_line(error)}"
        raise ValueError(f"{wrong}; {REMEDY}") from error


def _first_line(error: BaseException) -> str:
    kind, text = type(error).__name__, str(error).strip()
    return f"{kind} {text}" if isinstance(error, KeyError) else _short(text) or kind


def _short(text: str) -> str:
    line = text.split("\n")[0]
    return line if len(line) <= 200 else f"{line[:200]}…"


def _differences(theirs: dict[str, Any], ours: dict[str, Any], within: str = "") -> Iterator[str]:
    for key in sorted(set(theirs) | set(ours)):
        a, b = theirs.get(key), ours.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differences(a, b, f"{within}{key}.")
        elif a != b:
            yield f"{within}{key} is {_short(repr(a))} in the file and {_short(repr(b))} here"
