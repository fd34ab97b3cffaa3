"""What is fuzzed: for each reader of something that others wrote, a way to make input and a way to
judge the outcome.

A target returns True if the input was accepted, False if it was refused as promised, and raises
otherwise."""

from __future__ import annotations

import atexit
import contextlib
import copy
import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tests.torture.guard import one_sentence
from tests.torture.summary import demand

Draw = Callable[[st.SearchStrategy[Any]], Any]
_MEMORY = Path(
    "/dev/shm"
)  # where there is such a thing, waiting for the disk is not what is tested
SCRATCH = Path(
    tempfile.mkdtemp(prefix="rlploss-fuzz-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
)
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
words = st.sampled_from(["red", "green", "yes", "no", "<b>", "=1", "ألف"])
dates = st.dates().map(str)
mutations = st.lists(
    st.tuples(
        st.integers(0, 2**31),
        st.sampled_from(["set", "cut", "insert", "repeat", "truncate"]),
        st.binary(max_size=8),
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
    # A few values repeated: then columns have kinds (numbers, dates, categories), and are not all
    # free text.
    kinds = st.sampled_from(
        [texts, st.floats(-9, 9).map(str), st.integers(-99, 99).map(str), dates, words]
    )
    pools = [draw(st.lists(draw(kinds), min_size=1, max_size=12)) for _ in range(n_columns)]
    picks = draw(st.lists(st.integers(0, 11), min_size=n_rows, max_size=n_rows))
    header = draw(st.lists(texts, min_size=n_columns, max_size=n_columns))
    rows = [header] + [
        [pool[(pick + k) % len(pool)] for k, pool in enumerate(pools)] for pick in picks
    ]
    style = draw(st.sampled_from(["quoted", "bare"]))
    lines = [
        delimiter.join('"' + c.replace('"', '""') + '"' if style == "quoted" else c for c in row)
        for row in rows
    ]
    text = draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines)
    with contextlib.suppress(UnicodeError, LookupError, ValueError):
        return (
            name,
            encoding,
            mutated(text.encode(encoding), draw(mutations) if draw(st.integers(0, 3)) == 0 else []),
        )
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
            X = design.encoder.fit_transform(design.frame, design.target.y)
            n, d = X.shape
            demand(
                n == len(design.target.y) and d >= sum(c.used for c in design.columns) > 0,
                f"shapes {X.shape}",
            )
            demand(bool(np.isfinite(X).all()), "a feature that is not finite")
            demand(
                bool(np.isfinite(design.target.y.astype(np.float64)).all()),
                "a target that is not finite",
            )
            shown = columns_table(design.columns)
            check_csv(shown.csv())
            demand(
                len(shown.markdown().splitlines()) == 2 + len(design.columns),
                "a line too many in Markdown",
            )
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
    pq.write_table(
        pa.Table.from_arrays(arrays, names=[n.encode(errors="replace").decode() for n in names]),
        buffer,
    )
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
OPTIONS: dict[str, Any] = {
    "scale": "smoke",
    "budget": "both",
    "seeds": 2,
    "datasets": ["linear"],
    "arms": None,
}


@st.composite
def stored_rows(draw: Draw) -> tuple[str, str, str]:
    """(spec, options, curve) as they may stand in a store that somebody else has written."""
    made = []
    for original in (SPEC, OPTIONS, {"step": [1], "mse": [0.5]}):
        value: Any = copy.deepcopy(original)
        for _ in range(draw(st.integers(0, 2))):
            inside = draw(
                st.sampled_from(
                    [value, *(part for part in value.values() if isinstance(part, dict))]
                )
            )
            place = draw(st.sampled_from([*inside, "other"])) if inside else "other"
            if draw(st.booleans()):
                inside[place] = draw(plain)
            else:
                inside.pop(place, None)
        text = json.dumps(draw(plain) if draw(st.integers(0, 9)) == 0 else value)
        broken = (
            mutated(text.encode(), draw(mutations))
            if draw(st.integers(0, 5)) == 0
            else text.encode()
        )
        made.append(broken.decode(errors="replace").replace("\0", ""))
    return made[0], made[1], made[2]


def check_store(case: tuple[str, str, str]) -> bool:
    """A store with strange rows: it is planned and rendered around them, or one sentence says what
    cannot be read."""
    from rich.console import Console

    from rlploss.lab.executors import parse_workers
    from rlploss.lab.run import plan
    from rlploss.lab.store import Store
    from rlploss.lab.study import Cell
    from rlploss.lab.text import LabError
    from rlploss.paper.reproduce import stored_results
    from rlploss.paper.studies import expected_seconds

    spec, options, curve = case
    cell = Cell.from_spec(SPEC)
    with (
        tempfile.TemporaryDirectory(dir=SCRATCH) as folder,
        Store(folder, code_version="e") as store,
    ):
        origin = '{"engine":"torch","threads":1,"versions":{},"machine":{}}'
        insert = (
            "INSERT INTO cell (spec_hash, code_version, spec, networks, provenance, created,"
            " seconds) VALUES (?, 'e', ?, ?, ?, '', 1)"
        )
        network = f'"variant":0,"seconds":1,"curve":{curve},"values":{{"size":7}},"arrays":{{}}'
        networks = ",".join(f'{{"seed":{seed},{network}}}' for seed in (0, 1))
        store._connection.execute(insert, ("other", spec, "[]", origin))
        store._connection.execute(insert, (cell.hash, json.dumps(SPEC), f"[{networks}]", origin))
        store._connection.execute("INSERT INTO request VALUES ('table1', ?, '')", (options,))
        plan([cell], store, cost=expected_seconds, workers=parse_workers("inline"))
        Console(file=io.StringIO())
        accepted = True
        for read in (lambda: store.read(cell), lambda: stored_results(store)):
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
    """A checkpoint with mutated bytes; or one with other content; or another file."""
    data, content = _checkpoint(draw(st.sampled_from(["kernel", "torch"])))
    how = draw(st.sampled_from(["bytes", "content", "state", "engine", "other"]))
    if how == "bytes":
        return mutated(data, draw(mutations))
    made = copy.deepcopy(content)
    strange = st.one_of(
        plain, st.just(torch.zeros(3)), st.just({}), st.just(torch.zeros((0, 2), dtype=torch.int8))
    )
    if how == "other":
        made = draw(strange)
    else:
        inside = {"content": made, "state": made["state"], "engine": made["state"]["engine"]}[how]
        for _ in range(draw(st.integers(1, 2))):
            place = draw(st.sampled_from(sorted(inside))) if inside else "x"
            if draw(st.booleans()):
                inside[place] = draw(strange)
            else:
                inside.pop(place, None)
    buffer = io.BytesIO()
    torch.save(made, buffer)
    return buffer.getvalue()


def check_checkpoint(data: bytes) -> bool:
    """`fit` goes on from it, or refuses it with ValueError; and it stays as it is if it is
    refused."""
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
