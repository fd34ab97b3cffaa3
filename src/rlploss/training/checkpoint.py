"""Write checkpoints atomically, and read one only if it is whole and belongs to the same run."""

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
from rlploss._torch import load_tensors
from rlploss.training.rows import digest

FORMAT = 3
MARK = "rlploss checkpoint"
REMEDY = "delete it, or pass another checkpoint path"


def environment(device: torch.device, n_threads: int) -> dict[str, str]:
    """Describe what bit-for-bit equality depends on beyond the run itself."""
    return {
        "torch": str(torch.__version__),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": str(device),
        "threads": str(n_threads),
    }


class CheckpointFile:
    """The checkpoint of one run, read once if it exists; `engine` names the engine that wrote
    it.
    """

    def __init__(self, path: Path, most: int = 2**31) -> None:
        self.path = path
        self._content = read(path, most) if path.is_symlink() or path.exists() else None
        self.engine = None if self._content is None else self._content["spec"].get("engine")

    def load(self, spec: dict[str, Any], where: dict[str, str]) -> dict[str, Any] | None:
        """Return the stored state of this run, or None without a checkpoint.

        `spec` identifies the run; `where` describes what else bit-for-bit equality depends
        on.
        """
        content, self._content = self._content, None
        # As JSON reads it back.
        self.spec = json.loads(json.dumps(spec, sort_keys=True, default=str))
        self.where = where
        if content is None:
            return None
        if other := ", ".join(_differences(content["spec"], self.spec)):
            raise ValueError(
                f"checkpoint {self.path} must belong to this run, but it differs: {other}; {REMEDY}"
            )
        if drift := ", ".join(_differences(content["environment"], where)):
            warn(
                RuntimeWarning,
                f"checkpoint {self.path} was written elsewhere: {drift}; the run continues, but not"
                " bit for bit",
            )
        return content["state"]  # type: ignore[no-any-return]  # as `save` was given it

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint; at every moment the file holds either the whole old one or the whole
        new one.
        """
        content = {"spec": self.spec, "environment": self.where, "state": state}
        head = {"mark": MARK, "format": FORMAT, "digest": digest(content)}
        try:
            with replacing(self.path) as file:
                torch.save(head | content, file)
        except (OSError, RuntimeError) as error:
            # torch wraps an error of the disk in an error of its own
            cause = error if isinstance(error, OSError) else error.__context__
            reason = (cause.strerror if isinstance(cause, OSError) else None) or _short(str(error))
            raise OSError(
                f"checkpoint {self.path} cannot be written ({reason}); the last one, if any, is"
                " kept: free some space or pass another checkpoint path"
            ) from error


def read(path: Path, most: int = 2**31) -> dict[str, Any]:
    """Return the content of a whole, undamaged checkpoint of at most `most` bytes."""
    with refusing(path):
        content = load_tensors(path, most)
        if not isinstance(content, dict) or content.pop("mark", None) != MARK:
            raise ValueError("something else")
        if (version := content.pop("format", None)) != FORMAT:
            raise ValueError(f"it has format {_short(repr(version))}, not {FORMAT}")
        if content.pop("digest", None) != digest(content):
            raise ValueError("its content does not match its digest")
    return content


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn any error that the content of a file causes into one sentence."""
    try:
        yield
    except (Warning, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch raises half a dozen kinds for damaged files
        if "allocate memory" in str(error):
            raise  # not the file's fault
        reason = _short(str(error)) or type(error).__name__
        raise ValueError(
            f"checkpoint {path} must be a whole file that fit wrote, got: {reason}; {REMEDY}"
        ) from error


def _short(text: str) -> str:
    return f"{text.strip():.200}".partition("\n")[0] + "…" * (len(text.strip()) > 200)


def _differences(theirs: dict[str, Any], ours: dict[str, Any], within: str = "") -> Iterator[str]:
    for key in sorted(set(theirs) | set(ours)):
        a, b = theirs.get(key), ours.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differences(a, b, f"{within}{key}.")
        elif a != b:
            yield f"{within}{key} is {_short(repr(a))} in the file and {_short(repr(b))} here"
