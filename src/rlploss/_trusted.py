"""Estimators from files that somebody else may have made: nothing but what saving writes, looked at
before anything is made of it.

A file of skops is a zip of arrays and of `schema.json`: a tree that names at each node a class, a
function or a method, and so says what runs when it is loaded. Here each node is compared with
`trusted.toml`, the types and attributes that our models have. What passes is written anew, and only
that is handed to skops.
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
ESTIMATORS = frozenset({"_sklearn_version", "n_features_in_", "feature_names_in_"})  # of any
PLAIN = {
    ("ListNode", "builtins.list"),
    ("TupleNode", "builtins.tuple"),
    ("DictNode", "builtins.dict"),
    ("JsonNode", "builtins.str"),
    *(("TypeNode", f"builtins.{name}") for name in ("str", "int", "float", "bool")),  # of keys
    *(("NdArrayNode", f"numpy.{np.dtype(code).name}") for code in "?bhilqBHILQefd"),
    ("NdArrayNode", "numpy.ndarray"),
    ("NdArrayNode", "numpy.bool"),
    ("NdArrayNode", "numpy.str_"),
}
GENERATORS = {"RandomStateNode", "RandomGeneratorNode"}  # of numbers that fitting has drawn
MOST = 100_000  # of what is counted by an attribute n_…: arrays of that size are made


class UntrustedError(ValueError):
    """The file holds what no model of ours has."""


@cache
def trusted_types() -> dict[str, str]:
    """Return the types that our models have, each with what `trusted.toml` says of it."""
    return tomllib.loads(Path(__file__).with_name("trusted.toml").read_text("utf-8"))


@cache
def attributes(kind: str) -> frozenset[str]:
    """Return the attributes that objects of such a type may have."""
    module, _, name = kind.rpartition(".")
    made = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(made).parameters if hasattr(made, "get_params") else {}
    return ESTIMATORS.union(parameters, trusted_types()[kind].split())


def _loader(kind: str) -> str:
    """Return how skops makes objects of such a type."""
    if kind.startswith("sklearn._loss._loss."):
        return "LossNode"
    special = {"sklearn.tree._tree.Tree": "TreeNode"}
    plain = "FunctionNode" if trusted_types()[kind] == "function" else "ObjectNode"
    return special.get(kind, plain)


def load_estimator(data: bytes, trusted_packages: Collection[str] = ()) -> Any:
    """Return the estimator that `skops.io.dumps` has written.

    It consists of the types of `trusted.toml`, and of classes of the packages that the caller
    trusts. For anything else raise `UntrustedError`; a damaged file leads to the errors of
    zipfile, json, numpy, skops and scikit-learn.
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
    """Copies the nodes of one file that are allowed, with the arrays that they name."""

    source: zipfile.ZipFile
    target: zipfile.ZipFile
    packages: Collection[str]
    types: set[str] = field(default_factory=set)

    def copy(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return a node without its identity, by which it could stand in for another."""
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
        """Refuse an object that no model of ours has, and attributes that its type has not."""
        self.types.add(kind)
        if kind in trusted_types() and node["__loader__"] == _loader(kind):
            self._check_attributes(kind, node)
        elif kind.split(".")[0] in self.packages and node["__loader__"] == "ObjectNode":
            made = getattr(importlib.import_module(node["__module__"]), node["__class__"])
            if not isinstance(made, type) or made.__module__.split(".")[0] not in self.packages:
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
        """Copy an array of plain numbers or texts that is as long as its header says."""
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
    """Refuse trees that lead out of themselves, in a circle, or to features that are not there:
    scikit-learn follows them in C without looking.

    `widths` are the numbers of features of the estimators around it, which must be one.
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
    if (
        isinstance(part, BaseGradientBoosting) and "estimators_" in state
    ):  # one tree of each stage for each of its outputs
        (width,) = widths
        start = part._raw_predict_init(np.zeros((1, width), np.float32))
        kinds = {type(tree.tree_) for tree in part.estimators_.flat}
        if kinds != {Tree} or part.estimators_.shape[1:] != start.shape[1:]:
            raise UntrustedError("stages of other trees than they need")


def _check_nodes(nodes: Any, inner: Any, names: str, widths: frozenset[int]) -> None:
    """Refuse nodes that do not lead to later ones by one of the features."""
    left, right, feature = (nodes[name][inner] for name in names.split())
    (width,), here = widths, np.flatnonzero(inner)
    forward = (left > here) & (right > here) & (left < len(nodes)) & (right < len(nodes))
    if not len(nodes) or not (forward & (feature >= 0) & (feature < width)).all():
        raise UntrustedError("a tree that leads nowhere")
