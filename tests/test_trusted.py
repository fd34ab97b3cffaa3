"""Estimators from files of others: every arm's model loads, and nothing else does."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings
import zipfile
from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import skops.io
import torch
from sklearn.linear_model import SGDRegressor

from rlploss import _trusted
from rlploss._files import read_bytes, stored_zip
from rlploss._torch import load_tensors
from rlploss._trusted import UntrustedError, attributes, load_estimator
from rlploss.compare import arms
from rlploss.compare.train import Trainer
from rlploss.estimators.table import TableEncoder, read_columns

RNG = np.random.default_rng(0)
X = RNG.normal(size=(900, 3))
OBJECTS = {"ObjectNode", "TreeNode", "LossNode", "FunctionNode"}
CLASSES = {1: "regression", 2: "classification", 3: "classification"}
CASES = [
    (arm.name, n_classes, n_rows)
    for n_classes, task in CLASSES.items()
    for n_rows in (60, 900)
    for arm in arms.arms_for(task, n_rows)
    if n_rows == 60 or arm.name == "boosting"
]
SHOPS = {"shop": [f"shop {i % 30}" for i in range(len(X))]}
TABLE = pd.DataFrame(X, columns=["x0", "x1", "x2"]).assign(**SHOPS)
COLUMNS = read_columns(TABLE)
pytestmark = pytest.mark.filterwarnings("ignore::rlploss.estimators.table.TableWarning")


@cache
def pipeline(name, n_classes, n_rows, shops=True):
    """An arm of `compare` from raw frames to predictions, and its file."""
    y = X[:n_rows, 0] + X[:n_rows, 1] ** 2
    y = y if n_classes == 1 else np.digitize(y, [0.5, 2.0][: n_classes - 1])
    known = arms.arms_for(CLASSES[n_classes], n_rows, steps=20, log=False)
    arm = next(arm for arm in known if arm.name == name)
    task = CLASSES[n_classes]
    trainer = Trainer.of_numbers(X[:n_rows], y, task, n_classes if n_classes > 1 else 0)
    if shops:
        encoder = TableEncoder(COLUMNS, task=task)
        trainer = replace(trainer, frame=TABLE[:n_rows], encoder=encoder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = trainer.fit(arm, np.arange(n_rows), 0)
    return fitted, skops.io.dumps(fitted)


@cache
def saved(name, n_classes, n_rows):
    """The model of scikit-learn in an arm, and its file."""
    model = pipeline(name, n_classes, n_rows, shops=False)[0][-1].model_
    return model, skops.io.dumps(model)


def schema_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return json.loads(archive.read("schema.json"))


def with_schema(data, schema):
    """The same file with another schema."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            text = json.dumps(schema) if name == "schema.json" else old.read(name)
            new.writestr(name, text)
    return buffer.getvalue()


def nodes(node):
    """All nodes of a schema."""
    if isinstance(node, dict):
        if "__loader__" in node:
            yield node
        for value in node.values():
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


def state_of(node):
    """The attributes of a node, or none."""
    content = node.get("content")
    state = content.get("content") if isinstance(content, dict) else None
    return state if isinstance(state, dict) else {}


@cache
def saved_types():
    """The types that saving every arm writes, with the attributes of each."""
    found = defaultdict(set)
    for case in CASES:
        for node in nodes(schema_of(pipeline(*case)[1])):
            if node["__loader__"] in OBJECTS:
                found[f"{node['__module__']}.{node['__class__']}"].update(state_of(node))
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_arm_is_loaded_and_predicts_the_same(case):
    model, data = pipeline(*case)
    again = load_estimator(data)
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(TABLE), model.predict(TABLE))
    if case[1] > 1:
        np.testing.assert_array_equal(again.predict_proba(TABLE), model.predict_proba(TABLE))


def test_the_list_is_what_saving_writes():
    """`trusted.toml` names these types and no others; to extend it, add what fails here."""
    assert set(saved_types()) == set(_trusted.trusted_types())
    unknown = {kind: names - attributes(kind) for kind, names in saved_types().items()}
    assert not any(unknown.values()), unknown
    for kind, added in _trusted.trusted_types().items():
        assert set(added.split()) <= saved_types()[kind], f"{kind} has more in trusted.toml"


# What could be run


def ridge():
    return saved("ridge", 1, 60)[1]


def text(value):
    return {"__loader__": "JsonNode", "__module__": "builtins", "__class__": "str",
            "content": json.dumps(value), "is_json": True}  # fmt: skip


def call(loader, module, name, *arguments):
    """A node by which skops would call a function."""
    plain = {"__module__": "builtins", "__class__": "tuple", "__loader__": "TupleNode"}
    values = plain | {"content": [text(value) for value in arguments]}
    node = {"__loader__": loader, "__module__": module, "__class__": name, "content": values}
    return node | {"__reduce__": {"args": values}}


def calls(path):
    code = f"import pathlib; pathlib.Path({str(path)!r}).touch()"
    for loader in ("ConstructorFromReduceNode", "ObjectNode", "LossNode", "TreeNode", "TypeNode"):
        yield call(loader, "numpy.testing._private.utils", "measure", code)
        yield call(loader, "numpy", "load", str(path), None, True)
        yield call(loader, "numpy", "savetxt", str(path), [1.0])
        yield call(loader, "numpy", "memmap", str(path), "uint8", "w+", 0, 10)
        yield call(loader, "scipy.io", "savemat", str(path), {})
        yield call(loader, "sklearn.datasets", "fetch_file", "http://127.0.0.1:1/", str(path))
        yield call(loader, "builtins", "eval", code)
        yield call(loader, "os", "system", f"touch {path}")
    for loader in ("FunctionNode", "MethodNode", "PartialNode", "OperatorFuncNode", "BytesNode"):
        yield call(loader, "os", "system", f"touch {path}")
        yield call(loader, "numpy.testing._private.utils", "measure", code)


@pytest.mark.parametrize("packages", [(), ("numpy", "scipy", "sklearn")])
def test_nothing_is_called(tmp_path, packages):
    path = tmp_path / "ran"
    honest = schema_of(ridge())
    n_cases = 0
    for node in calls(path):
        extra = json.loads(json.dumps(honest))
        extra["content"]["content"]["extra_"] = node
        instead = json.loads(json.dumps(honest))
        instead["content"]["content"]["alpha"] = node
        for schema in (node | {"protocol": honest["protocol"]}, extra, instead):
            with pytest.raises((UntrustedError, AttributeError, KeyError, TypeError)):
                load_estimator(with_schema(ridge(), schema), packages).predict(X)
            n_cases += 1
            assert not path.exists(), node
    assert n_cases > 140


def test_an_attribute_more_is_refused():
    for name in ("extra_", "predict", "__class__", "n_jobs"):
        schema = schema_of(ridge())
        schema["content"]["content"][name] = text(1)
        with pytest.raises(UntrustedError, match=f"an attribute {name} of sklearn"):
            load_estimator(with_schema(ridge(), schema))


def test_an_identity_does_not_let_one_node_stand_for_another():
    schema = schema_of(ridge())
    for node in nodes(schema):
        node["__id__"] = 7
    again = load_estimator(with_schema(ridge(), schema))
    np.testing.assert_array_equal(again.predict(X), saved("ridge", 1, 60)[0].predict(X))


def test_other_types_need_a_package_that_is_trusted():
    data = skops.io.dumps(SGDRegressor().fit(X, X[:, 0]))
    with pytest.raises(UntrustedError, match=r"sklearn.linear_model._stochastic_gradient.SGDReg"):
        load_estimator(data)
    assert load_estimator(data, ("sklearn",)).predict(X).shape == (900,)
    class_of_another = schema_of(ridge())
    class_of_another["__module__"], class_of_another["__class__"] = "sklearn.base", "defaultdict"
    with pytest.raises(UntrustedError, match=r"sklearn.base.defaultdict"):
        load_estimator(with_schema(ridge(), class_of_another), ("sklearn",))


# Trees are followed in C


def trees_with(model, change):
    """The file of a model of trees, in which each array of nodes is changed."""
    buffer, data = io.BytesIO(), skops.io.dumps(model)
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith(".npy"):
                array = np.load(io.BytesIO(content))
                if array.dtype.names:
                    change(array)
                    file = io.BytesIO()
                    np.save(file, array)
                    content = file.getvalue()
            new.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("case", [("trees", 1, 60), ("boosting", 3, 60), ("boosting", 1, 900)])
@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("left_child", "left"), 0), (("right_child", "right"), 0), (("left_child", "left"), 10**6),
        (("right_child", "right"), 2**31), (("feature", "feature_idx"), 3),
        (("feature", "feature_idx"), -5), (("is_categorical", "right_child"), 200),
    ],
)  # fmt: skip
def test_trees_that_lead_astray_are_refused(case, names, value):
    def change(nodes):
        (name,) = [name for name in names if name in nodes.dtype.names] or ["left_child"]
        nodes[name][0] = value if name in names else 0

    with pytest.raises(UntrustedError, match="a tree"):
        load_estimator(trees_with(saved(*case)[0], change))


@pytest.mark.parametrize("name", ["node_count", "n_features_in_", "tree_", "n_outputs"])
def test_trees_that_do_not_fit_are_refused(name):
    schema = schema_of(saved("boosting", 3, 60)[1])
    for node in nodes(schema):
        state = state_of(node)
        if node["__loader__"] == "TreeNode" and name == "node_count":
            state["node_count"] = text(1)
        if node["__loader__"] == "TreeNode" and name == "n_outputs":
            node["__reduce__"]["args"]["content"][2] = text(10**9)
        if node["__class__"] == "DecisionTreeRegressor" and name == "n_features_in_":
            del state[name]
        if node["__class__"] == "DecisionTreeRegressor" and name == "tree_":
            state[name] = text(None)
    with pytest.raises((UntrustedError, AttributeError)):
        load_estimator(with_schema(saved("boosting", 3, 60)[1], schema))


def test_stages_with_more_trees_than_outputs_are_refused():
    """In C they would be added to memory of others."""
    schema = schema_of(saved("boosting", 1, 60)[1])
    stages = schema["content"]["content"]["estimators_"]
    for stage in stages["content"]:
        stage["content"] *= 3
    stages["shape"]["content"][1] = text(3)
    with pytest.raises(UntrustedError, match="stages of other trees than they need"):
        load_estimator(with_schema(saved("boosting", 1, 60)[1], schema))


# Sizes


def test_arrays_are_as_long_as_they_say_and_plain():
    def file(shape, kind="'<f8'"):
        head = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + bytes(24)

    for content in (file((10**12,)), file((10**12,), "'<U0'"), file((3,), "'|O'"), file((2,))):
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(ridge())) as old, zipfile.ZipFile(buffer, "w") as new:
            for name in old.namelist():
                new.writestr(name, content if name.endswith(".npy") else old.read(name))
        with pytest.raises(UntrustedError, match="an array"):
            load_estimator(buffer.getvalue())


def packed(n_bytes, name="data"):
    """A zip file of a thousandth of the size of what is in it."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(name, "w", force_zip64=True) as member,
    ):
        for _ in range(n_bytes // 10**6):
            member.write(bytes(10**6))
    return buffer.getvalue()


def test_a_zip_is_not_unpacked_and_its_parts_do_not_overlap():
    with pytest.raises(ValueError, match="unpacked they are larger"):
        load_estimator(packed(10**7, "schema.json"))
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("a", "x")
        archive.writestr("a", "y")
    with pytest.raises(ValueError, match="two of its parts have one name"):
        stored_zip(buffer)


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "directory", "long"])
def test_only_plain_files_of_a_size_are_read(tmp_path, kind):
    path, target = tmp_path / "model.json", tmp_path / "target"
    target.write_text("{}")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "long":
        path.write_bytes(bytes(101))
    else:
        path.symlink_to("/dev/zero")
    rule = "at most 100 bytes, got 101" if kind == "long" else "be a plain file, got a link"
    with pytest.raises(ValueError, match=f"model.json must (have )?{rule}"):
        read_bytes(path, 100)
    assert read_bytes(target, 100) == b"{}"


CHEAP = """
import resource, sys, time
from pathlib import Path
from rlploss.compare import TableError, load
from rlploss.training.checkpoint import read
from sklearn.ensemble import _gb
import skops.io
for path in map(Path, sys.argv[1:]):
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    try:
        load(path) if path.is_dir() else read(path)
    except ValueError as error:
        seconds = time.perf_counter() - start
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(path.name, seconds, grown / 1024, str(error).replace("\\n", "<newline>"), sep="|")
"""


def test_what_would_fill_the_memory_is_refused_at_once(tmp_path):
    """6 MB that become 6 GB, devices, pipes and links, each in place of each file of a model and
    of a checkpoint."""
    bomb, sparse = packed(6 * 10**9, "schema.json"), 6 * 10**9
    assert len(bomb) < 7e6
    cases = []
    for file in ("model.json", "model.skops", "run.pt"):
        for kind in ("bomb", "device", "pipe", "link", "sparse"):
            place = tmp_path / f"{file}-{kind}"
            path = place / file if file != "run.pt" else place
            path.parent.mkdir(exist_ok=True)
            if file == "model.skops":
                (place / "model.json").write_text("{}")
            if kind == "bomb":
                path.write_bytes(bomb)
            elif kind == "pipe":
                os.mkfifo(path)
            elif kind == "sparse":
                with path.open("wb") as empty:
                    empty.truncate(sparse)
            else:
                path.symlink_to("/dev/zero" if kind == "device" else tmp_path / "elsewhere")
            cases.append(place)
    (tmp_path / "elsewhere").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", CHEAP, *cases], capture_output=True, text=True, timeout=100
    )
    told = [line.split("|") for line in done.stdout.splitlines()]
    assert [name for name, *_ in told] == [case.name for case in cases], done.stderr[-2000:]
    for name, seconds, grown, sentence in told:
        assert float(seconds) < 1, (name, seconds)
        assert float(grown) < 200, (name, grown)
        assert "must be" in sentence or "must have" in sentence or "cannot be read" in sentence
        assert "<newline>" not in sentence


def checkpoint_of(pickled):
    """A file as torch writes it, around a pickle of ours."""
    buffer, again = io.BytesIO(), io.BytesIO()
    torch.save({}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(again, "w") as new:
        for name in old.namelist():
            new.writestr(name, pickled if name.endswith(".pkl") else old.read(name))
    return again.getvalue()


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "no tensor, text or number"),
        (b"\x80\x02ctorch\nFloatTensor\nJ\xff\xff\xff\x7f\x85R.", "no tensor, text or number"),
        (b"\x80\x02}.", None),
    ],
)
def test_a_checkpoint_cannot_grow_in_memory(tmp_path, pickled, message):
    path = tmp_path / "run.pt"
    path.write_bytes(checkpoint_of(pickled))
    if message is None:
        assert load_tensors(path, 2**31) == {}
        return
    with pytest.raises(ValueError, match=message):
        load_tensors(path, 2**31)


def test_shared_parts_count_each_time(tmp_path):
    path = tmp_path / "run.pt"
    part: list = []
    for _ in range(40):
        part = [part, part]
    torch.save(part, path)
    with pytest.raises(ValueError, match="its content is larger than it"):
        load_tensors(path, 2**31)
    torch.save(torch.zeros(1).expand(10**12), path)
    with pytest.raises(ValueError, match="its content is larger than it"):
        load_tensors(path, 2**31)
