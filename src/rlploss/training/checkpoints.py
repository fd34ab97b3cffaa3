"""Checkpoints: written whole or not at all, read only if they are whole and belong to the same run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FORMAT = 1
MARK = "rlploss checkpoint"
REMEDY = "delete it, or pass another checkpoint path"


def fingerprint(*tensors: Tensor | None) -> str:
    """A short digest of the bytes, shapes and types of tensors."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        _feed(digest, tensor)
    return digest.hexdigest()


def describe_model(model: nn.Module) -> str:
    """Class and parameter shapes: what must be the same for weights to be put back."""
    shapes = ", ".join(f"{name} {list(p.shape)} {p.dtype}" for name, p in model.named_parameters())
    return f"{type(model).__qualname__}({shapes})"


def environment(device: torch.device, n_threads: int) -> dict[str, str]:
    """What bit-for-bit equality depends on beyond the run itself."""
    return {
        "torch": str(torch.__version__),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": str(device),
        "threads": str(n_threads),
    }


def save(path: Path, spec: dict[str, Any], where: dict[str, str], state: dict[str, Any]) -> None:
    """Write a checkpoint so that at every moment `path` holds either the old one or the new one, whole."""
    content = {
        "mark": MARK,
        "format": FORMAT,
        "spec": _plain(spec),
        "environment": where,
        "digest": _digest(state),
        "state": state,
    }
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch hides an error of the disk in one of its own
        cause = error if isinstance(error, OSError) else error.__context__
        reason = (cause.strerror if isinstance(cause, OSError) else None) or _first_line(error)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(
            f"checkpoint {path} cannot be written ({reason}); the last one, if any, is kept: free some space or pass "
            "another checkpoint path"
        ) from error
    if os.name == "posix":  # make the new name itself durable
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load(path: Path, spec: dict[str, Any], where: dict[str, str]) -> dict[str, Any] | None:
    """Return the state in a checkpoint of this very run, or None if there is none yet."""
    if not path.exists():
        return None
    remedy = REMEDY
    with refusing(path):  # torch raises half a dozen kinds for damaged files
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not isinstance(mark := content.get("mark"), str) or mark != MARK:
        raise ValueError(f"checkpoint {path} must be a file that fit wrote, got something else; {remedy}")
    with refusing(path):
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {str(content['format'])[:40]!r}, not {FORMAT}")
        if _digest(content["state"]) != content["digest"]:
            raise ValueError("its content does not match its digest")
        for part in ("spec", "environment", "state"):
            if not isinstance(content[part], dict) or not all(isinstance(key, str) for key in content[part]):
                raise ValueError(f"its {part} is not one")
        _check_state(content["state"])
    differences = _differences(content["spec"], _plain(spec))
    if differences:
        raise ValueError(f"checkpoint {path} must belong to this run, but it differs: {differences}; {remedy}")
    drift = _differences(content["environment"], where)
    if drift:
        warnings.warn(
            f"checkpoint {path} was written elsewhere: {drift}; the run continues, but not bit for bit",
            RuntimeWarning,
            stacklevel=3,
        )
    state: dict[str, Any] = content["state"]
    return state


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn whatever the content of a file leads to, and that may be anything, into one sentence."""
    try:
        yield
    except Warning:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(f"checkpoint {path} "):
            raise
        raise ValueError(
            f"checkpoint {path} must be a whole file that fit wrote, got: {_first_line(error)}; {REMEDY}"
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__} {text}" if isinstance(error, KeyError) else _short(text) or type(error).__name__


def _short(text: str) -> str:
    line = text.split("\n")[0]
    return line if len(line) <= 200 else f"{line[:200]}…"


def _check_state(state: dict[str, Any]) -> None:
    """What the loop counts with must be numbers, and curves lists of numbers."""
    for name, kind in {"step": int, "loss_count": int, "seconds": float, "loss_sum": float, "stopped": str}.items():
        if name in state and type(state[name]) is not kind:
            raise ValueError(f"{name} is not of type {kind.__name__}")
    if "columns" in state:
        lengths = {len(values) for values in state["columns"].values()}
        numbers = all(isinstance(v, int | float) for values in state["columns"].values() for v in values)
        if len(lengths) > 1 or not numbers:
            raise ValueError("its columns are not numbers")


def _plain(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec as it comes back from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(spec, sort_keys=True, default=str))
    return plain


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    parts = []
    for key in sorted(set(theirs) | set(ours)):
        if theirs.get(key) != ours.get(key):
            parts.append(f"{key} is {_short(repr(theirs.get(key)))} in the file and {_short(repr(ours.get(key)))} here")
    return ", ".join(parts)


def _digest(state: object) -> str:
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, state)
    return digest.hexdigest()


def _feed(digest: hashlib.blake2b, value: object) -> None:
    """Hash nested plain values and tensors in a fixed order."""
    if isinstance(value, Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().flatten()
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)  # without a copy
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)}".encode())
        for key, item in value.items():
            digest.update(repr(key).encode())
            _feed(digest, item)
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)}".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())
