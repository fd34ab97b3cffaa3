"""What is fuzzed: for each reader of something that others wrote, a way to make input and a way to judge the outcome.

A target returns True if the input was accepted, False if it was refused as promised, and raises otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import gzip
import io
import json
import os
import shutil
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import strategies as st
from tests.torture.guard import one_sentence
from tests.torture.summary import demand

Draw = Callable[[st.SearchStrategy[Any]], Any]
_MEMORY = Path("/dev/shm")  # where there is such a thing, waiting for the disk is not what is tested
SCRATCH = Path(tempfile.mkdtemp(prefix="rlploss-fuzz-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)

CELLS = (
    "", " ", "0", "1", "-1", "2.5", "1e9", "1e308", "1e309", "-1e309", "1e-320", "nan", "inf", "-inf", "NA",
    "?", "٣", "²", "½", "1,5", "1.234,5", "1,234", "1 234", "1'234", "$5", "5 %", "€", "+", "-", "--", ".",
    "1_000", "0x10", "1e", "True", "no", "yes", "2020-01-01", "01.02.2020", "2020-13-45", "9999-12-31",
    "0001-01-01", "2020-01-01T00:00:00+14:00", "1/2/3", "12:30", "Jan 5, 2020", "2020-W01", "292277-01-01",
    "<script>alert(1)</script>", "=1+1", "@x", "\t=1", "[1, 2]", "{}", '"', '""', "'", "a\nb", "a\rb",
    "a\r\nb", "\x00", "\x1b[2J", "\u202eabc", "\ufeff", "\ud7ff", "é", "日本", "🙂", "x" * 300, ",", ";", "|",
    "\\", "$x$", "$\\frac", "99999999999999999999999999", "-0", "1" * 400, "e" * 50, "1e" + "9" * 60,
)  # fmt: skip
texts = st.one_of(st.sampled_from(CELLS), st.text(max_size=12))
ENCODINGS = (
    "latin-1", "utf-16", "cp1252", "ascii", "utf-7", "unicode_escape", "hex", "idna", "undefined", "klingon", "", "\0",
)  # fmt: skip
MEMBERS = (
    "data",
    "data",
    "a/../data",
    "../x",
    "/etc/passwd",
    "C:\\x",
    "..\\x",
    "a/b",
    ".",
    "",
    "a" * 120,
    "\u202edata",
)
LABELS = (
    "[1, 2, 3]", "[-1]", "[256]", "{}", "7", "[[1], [2, 3]]", '["a"]', "[1.5]", "null", "[null]", "[NaN]", "[1e999]",
    "[" * 5000, "[" + "1" * 5000 + "]",
)  # fmt: skip
words = st.sampled_from(["red", "green", "yes", "no", "<b>", "=1", "ألف"])
dates = st.dates().map(str)
mutations = st.lists(
    st.tuples(
        st.integers(0, 2**31), st.sampled_from(["set", "cut", "insert", "repeat", "truncate"]), st.binary(max_size=8)
    ),
    max_size=6,
)


def mutated(data: bytes, changes: list[tuple[int, str, bytes]]) -> bytes:
    """Bytes with a few places changed."""
    found = bytearray(data)
    for place, kind, extra in changes:
        at = place % (len(found) + 1)
        if kind == "set":
            found[at : at + len(extra)] = extra
        elif kind == "cut":
            del found[at : at + 1 + len(extra)]
        elif kind == "insert":
            found[at:at] = extra
        elif kind == "repeat":
            found[at:at] = found[at : at + 64]
        else:
            del found[at:]
    return bytes(found)


# Tables


@st.composite
def table_bytes(draw: Draw) -> tuple[str, str, bytes]:
    """(file name, encoding, bytes): delimited text of hostile cells, or mutated, or plain noise."""
    name = draw(st.sampled_from(["t.csv", "t.tsv", "t.txt", "t.tab", "t.CSV"]))
    encoding = draw(st.sampled_from(["utf-8"] * 8 + [*ENCODINGS]))
    if draw(st.integers(0, 9)) == 0:
        return name, encoding, draw(st.binary(max_size=400))
    n_columns, n_rows = draw(st.integers(1, 5)), draw(st.integers(0, 40))
    delimiter = draw(st.sampled_from(",;\t|"))
    # A few values repeated: then columns have kinds (numbers, dates, categories), and are not all free text.
    kinds = st.sampled_from([texts, st.floats(-9, 9).map(str), st.integers(-99, 99).map(str), dates, words])
    pools = [draw(st.lists(draw(kinds), min_size=1, max_size=12)) for _ in range(n_columns)]
    picks = draw(st.lists(st.integers(0, 11), min_size=n_rows, max_size=n_rows))
    header = draw(st.lists(texts, min_size=n_columns, max_size=n_columns))
    rows = [header] + [[pool[(pick + k) % len(pool)] for k, pool in enumerate(pools)] for pick in picks]
    style = draw(st.sampled_from(["quoted", "bare"]))
    lines = [delimiter.join('"' + c.replace('"', '""') + '"' if style == "quoted" else c for c in row) for row in rows]
    text = draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines)
    with contextlib.suppress(UnicodeError, LookupError, ValueError):
        return (name, encoding, mutated(text.encode(encoding), draw(mutations) if draw(st.integers(0, 3)) == 0 else []))
    return name, encoding, text.encode("utf-8", "surrogatepass")


def check_table(case: tuple[str, str, bytes]) -> bool:
    """The table reader of compare: a design of finite numbers and gaps, or one sentence."""
    name, encoding, data = case
    path = SCRATCH / name
    path.write_bytes(data)
    return _design(path, encoding)


def _design(path: Path, encoding: str = "utf-8") -> bool:
    from rlploss.compare.design import make_design
    from rlploss.compare.read import TableError, read_table
    from rlploss.compare.report import columns_table
    from rlploss.lab.report import Report, Section, html

    try:
        frame = read_table(path, encoding=encoding)
    except TableError as error:
        one_sentence(error)
        return False
    accepted = False
    for target in list(frame.columns)[-2:]:
        for task in ("auto", "classification", "regression"):
            try:
                design = make_design(frame, target, task=task)
            except TableError as error:
                one_sentence(error)
                continue
            accepted = True
            n, d = design.X.shape
            demand(
                n == len(design.target.y) and d == sum(len(c.names) for c in design.columns) > 0,
                f"shapes {design.X.shape}",
            )
            demand(not np.isinf(design.X).any(), "an infinite feature")
            demand(bool(np.isfinite(design.target.y.astype(np.float64)).all()), "a target that is not finite")
            demand(not np.isnan(design.X).all(axis=0).any(), "a column without values")
            shown = columns_table(design.columns)
            check_csv(shown.csv())
            demand(len(shown.markdown().splitlines()) == 2 + len(design.columns), "a line too many in Markdown")
    if accepted:
        page = html(Report("t", ("s",), (Section("c", "C", tables=(shown,)),)))
        page.encode()
        demand("<script" not in page, "a script in the page")
    return accepted


def check_csv(text: str) -> None:
    """No cell begins like a formula unless it is a number."""
    import csv

    for row in csv.reader(io.StringIO(text, newline="")):
        for cell in row:
            if cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
                try:
                    float(cell)
                except ValueError:
                    demand(False, f"a cell that a spreadsheet would run: {cell[:60]!r}")


@st.composite
def parquet_bytes(draw: Draw) -> bytes:
    """A Parquet file of strange types, sometimes mutated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    n = draw(st.integers(1, 30))
    kinds = draw(st.lists(st.sampled_from(sorted(_arrow_columns())), min_size=1, max_size=4))
    names = draw(st.lists(texts, min_size=len(kinds), max_size=len(kinds)))
    arrays = []
    for kind in kinds:
        arrow, values = _arrow_columns()[kind]
        picks = draw(st.lists(st.integers(0, len(values)), min_size=n, max_size=n))
        arrays.append(pa.array([None if k == len(values) else values[k] for k in picks], arrow))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, names=[n.encode(errors="replace").decode() for n in names]), buffer)
    return mutated(buffer.getvalue(), draw(mutations) if draw(st.integers(0, 3)) == 0 else [])


@cache
def _arrow_columns() -> dict[str, tuple[Any, list[Any]]]:
    import datetime as dt
    import decimal

    import pyarrow as pa

    day = dt.date(2020, 2, 29)
    moments = [dt.datetime(2020, 1, 1), dt.datetime(1600, 1, 1), dt.datetime(9999, 12, 31, 23)]
    return {
        "int64": (pa.int64(), [0, 1, -(2**63), 2**63 - 1]),
        "uint64": (pa.uint64(), [0, 2**64 - 1]),
        "int8": (pa.int8(), [0, 1, -128]),
        "float": (pa.float64(), [0.0, -0.0, 1e308, -1e308, float("inf"), float("nan"), 5e-324]),
        "half": (pa.float32(), [0.5, 1e38, float("-inf")]),
        "bool": (pa.bool_(), [True, False]),
        "text": (pa.string(), ["a", "b", "=1", "1", "x" * 200, "\u202e", "2020-01-01"]),
        "large": (pa.large_string(), ["1", "2", ""]),
        "bytes": (pa.binary(), [b"", b"\xff\x00", b"1"]),
        "date": (pa.date32(), [day, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "time": (pa.time64("us"), [dt.time(1, 2), dt.time(23, 59, 59, 999999)]),
        "us": (pa.timestamp("us"), moments),
        "zone": (pa.timestamp("us", tz="Europe/Rome"), moments[:2]),
        "s": (pa.timestamp("s"), moments),
        "duration": (pa.duration("us"), [dt.timedelta(1), dt.timedelta(-1), dt.timedelta(100_000)]),
        "decimal": (pa.decimal128(38, 2), [decimal.Decimal("1.50"), decimal.Decimal("-9" * 1 + "9" * 30)]),
        "list": (pa.list_(pa.int64()), [[], [1, 2]]),
        "struct": (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": None}]),
        "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []]),
        "null": (pa.null(), [None]),
        "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["u", "v"]),
        "numbers by name": (pa.dictionary(pa.int8(), pa.int64()), [1, 2, 3]),
    }  # fmt: skip


def check_parquet(data: bytes) -> bool:
    """The same promise for Parquet."""
    path = SCRATCH / "t.parquet"
    path.write_bytes(data)
    return _design(path)


# Archives


@st.composite
def archive_bytes(draw: Draw) -> tuple[str, bytes]:
    """(kind, bytes): an archive with hostile members, mutated before or after it is compressed."""
    kind = draw(st.sampled_from(["zip", "tar", "gz"]))
    names = st.one_of(
        st.sampled_from(MEMBERS),
        st.text(max_size=8),
    )  # fmt: skip
    members = draw(st.lists(st.tuples(names, st.binary(max_size=40), st.integers(0, 9)), max_size=4))
    changes = draw(mutations)
    inside = draw(st.booleans())
    buffer = io.BytesIO()
    if kind == "gz":
        return kind, mutated(gzip.compress(b"0123456789" * 4, mtime=0), changes)
    if kind == "zip":
        with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", draw(st.sampled_from([0, 8]))) as archive:
            warnings.simplefilter("ignore")  # of members that are there twice
            for name, data, special in members:
                info = zipfile.ZipInfo(name.replace("\0", "") or "x")
                if special == 0:
                    info.create_system, info.external_attr = 3, 0o120777 << 16
                with contextlib.suppress(UnicodeEncodeError):
                    archive.writestr(info, data)
        return kind, mutated(buffer.getvalue(), changes)
    pax = draw(
        st.dictionaries(
            st.sampled_from(["size", "path", "GNU.sparse.major", "GNU.sparse.map", "mtime"]), texts, max_size=2
        )
    )
    with tarfile.open(fileobj=buffer, mode="w", format=draw(st.sampled_from([0, 1, 2]))) as tar:
        for name, data, special in members:
            entry = tarfile.TarInfo(name.replace("\0", "").encode(errors="replace").decode())
            entry.size = len(data)
            if pax and tar.format == tarfile.PAX_FORMAT:
                entry.pax_headers = {k: v.replace("\0", "").encode(errors="replace").decode() for k, v in pax.items()}
            if special < 4:
                entry.type, entry.linkname = (b"1", b"2", b"3", b"S")[special], "/etc/passwd"
            with contextlib.suppress(ValueError):
                tar.addfile(entry, io.BytesIO(data))
    raw = mutated(buffer.getvalue(), changes) if inside else buffer.getvalue()
    packed = gzip.compress(raw, 1, mtime=0)
    return kind, packed if inside else mutated(packed, changes)


def check_archive(case: tuple[str, bytes]) -> bool:
    """Members of the size asked for, or FormatError; and nothing is ever written."""
    from rlploss.datasets import readers
    from rlploss.datasets.readers import FormatError, read_archive, read_gz

    kind, data = case
    folder = SCRATCH / "archive"
    folder.mkdir(exist_ok=True)
    path = folder / "a"
    path.write_bytes(data)
    try:
        with path.open("rb") as file, mock.patch.object(readers, "MAX_UNPACKED", 1 << 20):
            if kind == "gz":
                demand(len(read_gz(file, "a", 40)) == 40, "another size")
            else:
                found = read_archive(file, {"data": 7})
                demand({name: len(content) for name, content in found.items()} == {"data": 7}, f"{found}")
        return True
    except FormatError as error:
        one_sentence(error)
        return False
    finally:
        demand(os.listdir(folder) == ["a"], f"something was written: {os.listdir(folder)}")


@st.composite
def format_bytes(draw: Draw) -> tuple[str, bytes]:
    """(format, bytes) of what the archives hold: IDX, CIFAR batches, PNG, tables, labels."""
    kind = draw(st.sampled_from(["idx", "cifar", "png", "csv", "labels"]))
    changes = draw(mutations)
    if kind == "idx":
        sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 2**16, 2**32 - 1]), max_size=70))
        return kind, mutated(struct.pack(f">4B{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + bytes(12), changes)
    if kind == "cifar":
        return kind, mutated(bytes([draw(st.integers(0, 12))]) + bytes(3072), changes)
    if kind == "png":
        rows = b"".join(bytes([draw(st.integers(0, 5))]) + draw(st.binary(min_size=6, max_size=6)) for _ in range(2))
        header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)

        def chunk(name: bytes, body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

        parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(mutated(rows, changes[:2]))), chunk(b"IEND", b"")]
        return kind, mutated(b"\x89PNG\r\n\x1a\n" + b"".join(parts), changes[2:])
    if kind == "csv":
        return kind, mutated(b"a,b\n1,2\n3,4\n", changes) if draw(st.booleans()) else draw(texts).encode(
            errors="replace"
        )
    return kind, mutated(draw(st.sampled_from(LABELS)).encode(), changes)


def check_format(case: tuple[str, bytes]) -> bool:
    """An array, or FormatError."""
    from rlploss.datasets.readers import FormatError, read_cifar_batch, read_csv, read_idx, read_labels, read_png

    kind, data = case
    readers: dict[str, Callable[[bytes], Any]] = {
        "idx": read_idx,
        "cifar": read_cifar_batch,
        "png": lambda d: read_png(d, width=2, height=2),
        "csv": lambda d: read_csv(d, header=True),
        "labels": read_labels,
    }
    try:
        readers[kind](data)
        return True
    except FormatError as error:
        one_sentence(error)
        return False


# Specs and rows of a store

plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
SPEC: dict[str, Any] = {
    "arm": {"kind": "Arm", "objective": {"kind": "MSE", "batch_size": 20}, "optimizer": {"kind": "Adam", "lr": 0.1}},
    "task": {"kind": "Task", "dataset": "linear", "model": "regression", "variants": [{"kind": "Variant"}]},
    "budget": {"kind": "Epochs", "n": 2}, "evaluate_every": 1, "seeds": [0, 1],
}  # fmt: skip
OPTIONS: dict[str, Any] = {"scale": "smoke", "budget": "both", "seeds": 2, "datasets": ["linear"], "arms": None}


@st.composite
def stored_rows(draw: Draw) -> tuple[str, str, str]:
    """(spec, options, curve) as they may stand in a store that somebody else has written."""
    made = []
    for original in (SPEC, OPTIONS, {"step": [1], "mse": [0.5]}):
        value: Any = copy.deepcopy(original)
        for _ in range(draw(st.integers(0, 2))):
            inside = draw(st.sampled_from([value, *(part for part in value.values() if isinstance(part, dict))]))
            place = draw(st.sampled_from([*inside, "other"])) if inside else "other"
            if draw(st.booleans()):
                inside[place] = draw(plain)
            else:
                inside.pop(place, None)
        text = json.dumps(draw(plain) if draw(st.integers(0, 9)) == 0 else value)
        broken = mutated(text.encode(), draw(mutations)) if draw(st.integers(0, 5)) == 0 else text.encode()
        made.append(broken.decode(errors="replace").replace("\0", ""))
    return made[0], made[1], made[2]


def check_store(case: tuple[str, str, str]) -> bool:
    """A store with strange rows: it is planned and rendered around them, or one sentence says what cannot be read."""
    from rich.console import Console

    from rlploss.lab.run import plan
    from rlploss.lab.store import Store
    from rlploss.lab.study import Cell
    from rlploss.lab.text import LabError
    from rlploss.lab.workers import Inline
    from rlploss.paper.request import Request
    from rlploss.paper.studies import expected_seconds

    spec, options, curve = case
    cell = Cell.from_spec(SPEC)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder, Store(folder, code_version="e") as store:
        origin = '{"engine":"torch","threads":1,"versions":{},"machine":{}}'
        insert = (
            "INSERT INTO cell (spec_hash, code_version, spec, provenance, created, seconds) VALUES (?, ?, ?, ?, '', 1)"
        )
        store._connection.execute(insert, ("other", "e", spec, origin))
        row = store._connection.execute(insert, (cell.hash, "e", json.dumps(SPEC), origin)).lastrowid
        for seed in (0, 1):
            store._connection.execute(
                'INSERT INTO network (cell, variant, seed, seconds, curve, "values") VALUES (?, 0, ?, 1, ?, ?)',
                (row, seed, curve, '{"size": 7}'),
            )
        store._connection.execute("INSERT INTO request VALUES ('table1', ?, '')", (options,))
        plan([cell], store, cost=expected_seconds, workers=Inline())
        Console(file=io.StringIO())
        accepted = True
        for read in (lambda: store.read(cell), lambda: Request.from_options(store.requests()["table1"])):
            try:
                read()
            except (LabError, ValueError, TypeError) as error:
                demand(not isinstance(error, UnicodeError), f"{error!r}")
                one_sentence(error)
                accepted = False
    return accepted


# Checkpoints


@cache
def _checkpoint(engine: str) -> tuple[bytes, dict[str, Any]]:
    path = SCRATCH / f"{engine}.pt"
    _fit(path, engine)
    return path.read_bytes(), torch.load(path, weights_only=True)


def _fit(path: Path, engine: str = "auto") -> None:
    from rlploss import MSE, RegressionNet, Steps, fit, seeded

    X = torch.linspace(-1, 1, 24).reshape(12, 2)
    fit(seeded(lambda: RegressionNet(2, hidden=2), 0), X, X[:, 0], MSE(6), budget=Steps(4), seed=0,
        checkpoint=path, checkpoint_every=Steps(2), engine=engine)  # fmt: skip


@st.composite
def checkpoint_bytes(draw: Draw) -> bytes:
    """A checkpoint with mutated bytes; or one with a right digest over wrong content; or another file."""
    from rlploss.training import checkpoint as checkpoints

    data, content = _checkpoint(draw(st.sampled_from(["kernel", "torch"])))
    how = draw(st.sampled_from(["bytes", "content", "state", "engine", "other"]))
    if how == "bytes":
        return mutated(data, draw(mutations))
    made = copy.deepcopy(content)
    strange = st.one_of(plain, st.just(torch.zeros(3)), st.just({}), st.just(torch.zeros((0, 2), dtype=torch.int8)))
    if how == "other":
        made = draw(strange)
    else:
        inside = {"content": made, "state": made["state"], "engine": made["state"]["engine"]}[how]
        if how != "content" and draw(st.booleans()):
            made["state"] |= {"stopped": "", "step": 2}  # so that the rest is read
        for _ in range(draw(st.integers(1, 2))):
            place = draw(st.sampled_from(sorted(inside))) if inside else "x"
            if draw(st.booleans()):
                inside[place] = draw(strange)
            else:
                inside.pop(place, None)
        if how != "content":
            made["digest"] = checkpoints.digest(made["state"])
    buffer = io.BytesIO()
    torch.save(made, buffer)
    return buffer.getvalue()


def check_checkpoint(data: bytes) -> bool:
    """`fit` goes on from it, or refuses it with ValueError; and it stays as it is if it is refused."""
    from rlploss import DivergenceError

    path = SCRATCH / "run.pt"
    path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of another environment
            _fit(path)
        return True
    except DivergenceError:  # from weights that are not numbers
        return True
    except ValueError as error:
        one_sentence(error)
        demand(path.read_bytes() == data, "a refused checkpoint was changed")
        return False
    finally:
        demand(not Path(f"{path}.tmp").exists(), "a temporary file is left")
