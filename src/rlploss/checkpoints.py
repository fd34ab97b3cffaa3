"""Checkpoints: written whole or not at all, read only if they are whole and belong to the same run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FORMAT = 1
MARK = "rlploss checkpoint"


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
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
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
    remedy = "delete it, or pass another checkpoint path"
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for damaged files
        reason = str(error).split("\n")[0] or type(error).__name__
        raise ValueError(
            f"checkpoint {path} must be a whole file that fit wrote, got: {reason}; {remedy}"
        ) from error
    if not isinstance(content, dict) or content.get("mark") != MARK:
        raise ValueError(f"checkpoint {path} must be a file that fit wrote, got something else; {remedy}")
    if content["format"] != FORMAT:
        raise ValueError(
            f"checkpoint {path} must have format {FORMAT}, got format {content['format']}; {remedy}"
        )
    if _digest(content["state"]) != content["digest"]:
        raise ValueError(
            f"checkpoint {path} must be whole, got one whose content does not match its digest; {remedy}"
        )
    differences = _differences(content["spec"], _plain(spec))
    if differences:
        raise ValueError(
            f"checkpoint {path} must belong to this run, but it differs: {differences}; {remedy}"
        )
    drift = _differences(content["environment"], where)
    if drift:
        warnings.warn(
            f"checkpoint {path} was written elsewhere: {drift}; the run continues, but not bit for bit",
            RuntimeWarning,
            stacklevel=3,
        )
    state: dict[str, Any] = content["state"]
    return state


def _plain(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec as it comes back from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(spec, sort_keys=True, default=str))
    return plain


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    parts = []
    for key in sorted(set(theirs) | set(ours)):
        if theirs.get(key) != ours.get(key):
            parts.append(f"{key} is {theirs.get(key)!r} in the file and {ours.get(key)!r} here")
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
