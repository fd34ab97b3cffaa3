"""Load estimators from untrusted files: check every object in a file before any of them is
created.

A file of skops is a zip of arrays and of `schema.json`, a tree. Each of its nodes names a class, a
function or a method, which loading would run. This module compares each node with `trusted.toml`,
the types and attributes of our models. It writes a new file with the nodes that pass, and skops
loads only that file.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import math
import tomllib
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlploss._files import stored_zip

SCHEMA = "schema.json"
# Attributes of every estimator.
ESTIMATORS = frozenset({"_sklearn_version", "n_features_in_", "feature_names_in_"})
PLAIN = {
    ("ListNode", "builtins.list"),
    ("TupleNode", "builtins.tuple"),
    ("DictNode", "builtins.dict"),
    ("JsonNode", "builtins.str"),
    *(("TypeNode", f"builtins.{name}") for name in ("str", "int", "float", "bool")),  # keys
    *(("NdArrayNode", f"numpy.{np.dtype(code).name}") for code in "?bhilqBHILQefd"),
    ("NdArrayNode", "numpy.ndarray"),
    ("NdArrayNode", "numpy.bool"),
    ("NdArrayNode", "numpy.str_"),
}
# Loaded as None: fitting is over, so they are not needed.
GENERATORS = {"RandomStateNode", "RandomGeneratorNode"}
MOST = 100_000  # the largest allowed attribute n_…, because loading creates arrays of that size


class UntrustedError(ValueError):
    """The file contains an object that none of our models has."""


@cache
def trusted_types() -> dict[str, str]:
    """Return the types of our models, each with its entry of `trusted.toml`."""
    return tomllib.loads(Path(__file__).with_name("trusted.toml").read_text("utf-8"))


@cache
def attributes(kind: str) -> frozenset[str]:
    """Return the attributes that objects of this type may have."""
    module, _, name = kind.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(cls).parameters if hasattr(cls, "get_params") else {}
    return ESTIMATORS.union(parameters, trusted_types()[kind].split())


def _loader(kind: str) -> str:
    """Return the name of the node by which skops loads objects of this type."""
    if kind.startswith("sklearn._loss._loss."):
        return "LossNode"
    special = {"sklearn.tree._tree.Tree": "TreeNode"}
    plain = "FunctionNode" if trusted_types()[kind] == "function" else "ObjectNode"
    return special.get(kind, plain)


def load_estimator(data: bytes, trusted_packages: Collection[str] = ()) -> Any:
    """Return the estimator that `skops.io.dumps` wrote.

    It may contain the types of `trusted.toml`, and classes of the packages that the caller trusts.
    Raise `UntrustedError` for anything else; a damaged file raises errors of zipfile, json, numpy,
    skops and scikit-learn.
    """
    import skops.io

    written = io.BytesIO()
    with stored_zip(io.BytesIO(data)) as source, zipfile.ZipFile(written, "w") as target:
        schema = json.loads(source.read(SCHEMA))
        copier = _Copier(source, target, trusted_packages)
        tree = copier.copy(schema) | {"protocol": schema["protocol"]}
        target.writestr(SCHEMA, json.dumps(tree))
    estimator = skops.io.loads(written.getvalue(), trusted=sorted(copier.types))
    _check_trees(estimator, frozenset())
    return estimator


@dataclass
class _Copier:
    """Copies the allowed nodes of one file, with the arrays that they name."""

    source: zipfile.ZipFile
    target: zipfile.ZipFile
    packages: Collection[str]
    types: set[str] = field(default_factory=set)

    def copy(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a node without its identity, under which another node could reuse it."""
        loader, kind = node["__loader__"], f"{node['__module__']}.{node['__class__']}"
        copy = {name: node[name] for name in ("__loader__", "__module__", "__class__")}
        content: Any = node.get("content")
        if loader in GENERATORS:
            copy.update(__loader__="JsonNode", __module__="builtins", __class__="str")
            loader, kind, content = "JsonNode", "builtins.str", "null"
        if (loader, kind) not in PLAIN:
            self._check_object(kind, node)
        if "__reduce__" in node:
            copy["__reduce__"] = {"args": self.copy(node["__reduce__"]["args"])}
        if loader == "JsonNode":
            if not isinstance(json.loads(content), str | int | float | None):
                raise UntrustedError("a text that is not one value")
            return copy | {"content": content, "is_json": True}
        if loader == "NdArrayNode" and node["type"] == "numpy":
            return copy | {"type": "numpy", "file": self._array(node["file"])}
        if loader == "NdArrayNode":
            copy.update(type="json", shape=self.copy(node["shape"]))
        if loader == "DictNode":
            values = {name: self.copy(value) for name, value in content.items()}
            return copy | {"content": values, "key_types": self.copy(node["key_types"])}
        if isinstance(content, list):
            return copy | {"content": [self.copy(item) for item in content]}
        return copy if content is None else copy | {"content": self.copy(content)}

    def _check_object(self, kind: str, node: Mapping[str, Any]) -> None:
        """Refuse an object that none of our models has, and an attribute that its type does not
        have.
        """
        self.types.add(kind)
        if kind in trusted_types() and node["__loader__"] == _loader(kind):
            self._check_attributes(kind, node)
        elif kind.split(".")[0] in self.packages and node["__loader__"] == "ObjectNode":
            cls = getattr(importlib.import_module(node["__module__"]), node["__class__"])
            if not isinstance(cls, type) or cls.__module__.split(".")[0] not in self.packages:
                raise UntrustedError(kind)
        else:
            raise UntrustedError(f"{kind} as {node['__loader__']}")

    def _check_attributes(self, kind: str, node: Mapping[str, Any]) -> None:
        state = (node.get("content") or {}).get("content")
        for name, value in state.items() if isinstance(state, dict) else ():
            count = json.loads(value["content"]) if value["__loader__"] == "JsonNode" else 0
            if name not in attributes(kind):
                raise UntrustedError(f"an attribute {name} of {kind}")
            if name.lstrip("_").startswith("n_") and isinstance(count, int) and count > MOST:
                raise UntrustedError(f"{name} = {count:,} of {kind}")
        if node["__loader__"] == "TreeNode":
            n_outputs = node["__reduce__"]["args"]["content"][2]
            if n_outputs["__loader__"] != "JsonNode" or n_outputs["content"] != "1":
                raise UntrustedError("a tree of several outputs")

    def _array(self, name: str) -> str:
        """Copy an array of plain numbers or texts; refuse one of another length than its header
        says.
        """
        file = io.BytesIO(self.source.read(name))
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, kind = read_header(file)
        n_bytes = len(file.getvalue()) - file.tell()
        n_items = math.prod(shape)
        if kind.hasobject or n_items * kind.itemsize != n_bytes or n_items > n_bytes:
            raise UntrustedError(f"an array {shape} of {kind} in {n_bytes:,} bytes")
        copied = f"{len(self.target.namelist())}.npy"
        self.target.writestr(copied, file.getvalue())
        return copied


def _check_trees(part: Any, widths: frozenset[int]) -> None:
    """Refuse trees with links out of the tree, in a circle, or to features that do not exist;
    scikit-learn follows them in C without a check.

    `widths` are the numbers of features of the enclosing estimators, which must agree.
    """
    from sklearn.ensemble._gb import BaseGradientBoosting
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
    from sklearn.tree._tree import Tree

    state = getattr(part, "__dict__", {})
    if "n_features_in_" in state:
        widths |= {state["n_features_in_"]}
    elif "tree_" in state:
        raise UntrustedError("a tree that does not say how many features it has")
    if isinstance(part, Tree) and part.node_count == part.capacity:
        nodes = part.__getstate__()["nodes"]
        _check_nodes(nodes, nodes["left_child"] != -1, "left_child right_child feature", widths)
    elif isinstance(part, TreePredictor):
        nodes = part.nodes
        inner = (nodes["is_leaf"] == 0) | (nodes["is_categorical"] != 0)
        _check_nodes(nodes, inner, "left right feature_idx", widths)
        if nodes["is_categorical"].any():
            raise UntrustedError("a tree of categories")
    elif isinstance(part, Tree):
        raise UntrustedError("a tree with fewer nodes than it says")
    items = [*state.values(), *(part.values() if isinstance(part, dict) else ())]
    if isinstance(part, list | tuple) or (isinstance(part, np.ndarray) and part.dtype == object):
        items += list(np.ravel(part)) if isinstance(part, np.ndarray) else part
    for item in items:
        _check_trees(item, widths)
    # Each stage has one tree for each output.
    if isinstance(part, BaseGradientBoosting) and "estimators_" in state:
        (width,) = widths
        start = part._raw_predict_init(np.zeros((1, width), np.float32))
        kinds = {type(tree.tree_) for tree in part.estimators_.flat}
        if kinds != {Tree} or part.estimators_.shape[1:] != start.shape[1:]:
            raise UntrustedError("stages of other trees than they need")


def _check_nodes(nodes: Any, inner: Any, names: str, widths: frozenset[int]) -> None:
    """Refuse an inner node unless it splits by a valid feature and leads to later nodes."""
    left, right, feature = (nodes[name][inner] for name in names.split())
    (width,), here = widths, np.flatnonzero(inner)
    forward = (left > here) & (right > here) & (left < len(nodes)) & (right < len(nodes))
    if not len(nodes) or not (forward & (feature >= 0) & (feature < width)).all():
        raise UntrustedError("a tree that leads nowhere")
