"""Hostile input: text that would like to be code stays text, archives stay in their place, nothing
is unpickled.

The fuzzing here is a fixed sample of what `make torture PART=fuzz` does at length.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import pickle
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests import browser
from tests.torture import files, fuzz
from tests.torture.targets import check_csv

from rlploss import MSE, RegressionNet, Steps, cli, fit
from rlploss.compare.design import make_design
from rlploss.compare.read import TableError, read_table
from rlploss.lab.text import csv_text, markdown_text, sentence, shown
from rlploss.training import checkpoint as checkpoints

PACKAGE = Path(__file__).parents[1] / "src" / "rlploss"
SCRIPT = "<script>window.hit = 1</script>"
NAMES = {
    "script": SCRIPT,
    "image": '<img src=x onerror="window.hit = 1">',
    "closing": '</td></table></style></svg><svg onload="window.hit = 1">',
    "quotes": '"\'`" onmouseover="window.hit = 1" x=\'',
    "template": "{{ 7 * 7 }}{% raw %}",
    "formula": '=HYPERLINK("http://127.0.0.1:1/","x")',
    "plus": "+1+1",
    "at": "@SUM(A1)",
    "right to left": "שלום \u202e gnp.exe",
    "arabic": "ألف باء",
    "long": "long " + "w" * 10_000,
    "mathematics": "$\\frac{1}{0}$ and $x_{",
    "control": "bell \x07 escape \x1b[2J",
    "entity": "&lt;b&gt; &amp;amp;",
    "emoji": "👩‍👩‍👧 日本",
}
CLASSES = (SCRIPT, "$x_{$", '=1+1"', "日本")


def hostile_table(path, target):
    """A table whose names and categories are all hostile; the target too."""
    rng = np.random.default_rng(0)
    n = 64
    columns = {name: rng.normal(size=n).round(4) for name in ("first", *NAMES.values())}
    columns["categories"] = rng.choice(list(NAMES.values())[:6], n)
    columns["classes"] = [CLASSES[k % len(CLASSES)] for k in range(n)]
    frame = pd.DataFrame(columns)
    if target != "classes":
        frame = frame.drop(columns="classes")
    frame.to_csv(path, index=False)
    return frame


@pytest.fixture(
    scope="module", params=["classes", NAMES["closing"]], ids=["classification", "regression"]
)
def compared(request, tmp_path_factory):
    """A comparison of such a table through the command line; (directory, target)."""
    folder = tmp_path_factory.mktemp("hostile")
    table = folder / "=cmd <b>'t'.csv"
    hostile_table(table, request.param)
    words = ["compare", str(table), "--target", request.param, "--splits", "2", "--steps", "5"]
    arms = "rlp,prior" if request.param == "classes" else "rlp,mean"
    assert (
        cli.run([*words, "--arms", arms, "--workers", "inline", "--out", str(folder / "out")]) == 0
    )
    return folder / "out", request.param


@pytest.mark.skipif(
    browser.find() is None, reason="no Chromium found (set RLPLOSS_CHROMIUM to its path)"
)
def test_a_report_shows_hostile_text_as_text(compared, tmp_path):
    out, target = compared
    with browser.Browser(tmp_path / "profile") as chromium:
        for width in (360, 1280):
            page = chromium.open((out / "report.html").as_uri(), width=width)
            assert page.errors() == []
            assert page.requests() == [(out / "report.html").as_uri()]
            assert page.evaluate("typeof window.hit") == "undefined"
            assert page.evaluate("document.scripts.length + document.images.length") == 0
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            text = page.evaluate(
                "[...document.querySelectorAll('#columns th, #columns p')].map(e => e.textContent)"
            )
            for name in NAMES.values():
                if name != target:
                    assert any(name in cell for cell in text), name
            assert page.evaluate("[...document.querySelectorAll('*')].every(e => !e.getAttributeNames().some("
                                 "n => n.startsWith('on')))")  # fmt: skip
            assert page.evaluate("document.title") == "What to use on =cmd <b>'t'.csv"


def test_the_files_of_such_a_report_are_harmless_and_whole(compared):
    out, target = compared
    tables = sorted(out.rglob("*.csv"))
    assert len(tables) > 2
    for path in tables:
        check_csv(path.read_text())
    names = [
        row[0].lstrip("'")
        for row in csv.reader(io.StringIO((out / "tables/columns.csv").read_text()))
    ]
    assert {n.lstrip("'") for n in NAMES.values() if n != target} <= set(names)
    for path in out.rglob("*.svg"):
        ET.fromstring(path.read_text())
    found = json.loads((out / "comparison.json").read_text())
    assert found["target"] == target
    assert {column["name"] for column in found["columns"]} >= {
        n for n in NAMES.values() if n != target
    }
    for path in out.rglob("*.md"):
        lines = path.read_text().splitlines()
        assert all(line.startswith("| ") for line in lines)
        assert not any(c in path.read_text() for c in ("<script", "<img", "\x1b", "\x07", "\u202e"))


def test_a_cell_that_is_a_number_stays_one_and_every_other_is_text():
    values = [
        "=1",
        "+1",
        "-1",
        "@x",
        "\tx",
        "\rx",
        "-",
        "plain",
        -1.5,
        -2,
        float("-inf"),
        None,
        True,
    ]
    text = csv_text(("=h",), [(value,) for value in values])
    check_csv(text)
    rows = [row[0] if row else "" for row in csv.reader(io.StringIO(text))]
    assert rows == [
        "'=h",
        "'=1",
        "'+1",
        "'-1",
        "'@x",
        "'\tx",
        "' x",
        "'-",
        "plain",
        "-1.5",
        "-2",
        "-inf",
        "",
        "True",
    ]


def test_markdown_links_and_terminal_codes_are_made_harmless():
    assert (
        markdown_text(("a",), [("![x](http://h/x.png)",)]).splitlines()[2]
        == "| ![x]\\(http://h/x.png) |"
    )
    assert "\x1b" not in markdown_text(("a",), [("\x1b[2J\u202e",)])
    assert shown("a\x1b[2J\u202eb") == "a\ufffd[2J\ufffdb"
    assert len(sentence("x" * 10_000 + "; the remedy")) < 800
    assert sentence("x" * 10_000 + "; the remedy").endswith("; the remedy")
    assert sentence("two\nlines") == "two lines"


# What the sources never do

FORBIDDEN = {
    "pickle.load", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "dill.load", "joblib.load",
    "cloudpickle.load", "cloudpickle.loads", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "eval", "exec", "yaml.load", "pd.read_pickle", "pandas.read_pickle",
    "shutil.unpack_archive",
    "pty.spawn",
}  # fmt: skip
UNPACKING = {"extract", "extractall"}  # of archives to disk
WRITTEN = {"training/own.py"}  # runs source of its own making: torch's operations, one per line
WIRE = {"lab/executors.py"}  # bytes between driver and workers, as Dask itself sends them


def calls():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield (
                    name,
                    ast.unparse(node.func),
                    {k.arg: ast.unparse(k.value) for k in node.keywords},
                    node,
                )


def test_nothing_is_unpickled_and_no_shell_is_involved():
    wrong, loads = [], 0
    for module, name, options, node in calls():
        own = module in WRITTEN and name in ("exec", "eval")
        if (
            (name in FORBIDDEN and not own)
            or name.split(".")[-1] in UNPACKING
            or "shell" in options
        ):
            wrong.append(f"{module}:{node.lineno} {name}")
        if name == "pickle.loads" and module not in WIRE:
            wrong.append(f"{module}:{node.lineno} unpickles")
        if name == "torch.load":
            loads += 1
            if options.get("weights_only") != "True":
                wrong.append(f"{module}:{node.lineno} torch.load without weights_only=True")
        if name in ("np.load", "numpy.load") and options.get("allow_pickle", "False") != "False":
            wrong.append(f"{module}:{node.lineno} np.load with pickles")
    assert not wrong, wrong
    assert loads == 1


def test_a_checkpoint_with_code_in_it_does_not_run_it(tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    path = tmp_path / "run.pt"
    buffer = io.BytesIO()
    torch.save({"mark": Evil()}, buffer)
    for data in (buffer.getvalue(), pickle.dumps(Evil(), protocol=2)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="must be a whole file that fit wrote") as told:
            checkpoints.CheckpointFile(path)
        assert not any(word in str(told.value) for word in ("weights_only", "\x1b", "\n"))
        assert not (tmp_path / "ran").exists()


# What fuzzing has found


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (b"a,b\n1,2\n", "\0", "there is no encoding '\\\\x00'"),
        (b"a,b\n1,2\n", "undefined", "there is no encoding 'undefined'"),
        (b"a,b\n1,2\n", "hex", "there is no encoding 'hex'"),
        (b"a,b\n\\ud800,2\n", "unicode_escape", "is not unicode_escape text \\(halves of characters\\)"),
        (b"a,b\n1\n", "utf-8", "line 2 has 1 fields and the header has 2"),
        (b"x" * 9000 + b"," + b"x" * 9000 + b"\n1,2\n", "utf-8", "must be different, but 'x+ … x+' occurs"),
    ],
)  # fmt: skip
def test_files_that_no_reader_likes(tmp_path, data, encoding, message):
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(TableError, match=message) as told:
        read_table(path, encoding=encoding)
    assert len(str(told.value)) < 800
    assert "\n" not in str(told.value)


def test_a_quote_is_no_delimiter(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('sep="\n')
    with pytest.raises(TableError):
        read_table(path)


def test_a_target_of_bytes_is_classes():
    frame = pd.DataFrame({"a": np.arange(20) ** 2, "y": [b"\xff", b"\x00"] * 10})
    assert len(make_design(frame, "y").target.classes) == 2


def test_a_column_with_values_only_where_the_target_has_none_is_empty():
    frame = pd.DataFrame(
        {"a": np.arange(20) ** 2, "b": [None] * 18 + [1.5, 2.5], "y": [1.5, 2.5] * 9 + [None] * 2}
    )
    design = make_design(frame, "y")
    assert {c.name: c.kind for c in design.columns} == {"a": "number", "b": "empty"}
    assert design.frame.shape == (18, 1)


def trained(path):
    X = torch.linspace(-1, 1, 24).reshape(12, 2)
    model = RegressionNet(2, hidden=2)
    fit(model, X, X[:, 0], MSE(6), budget=Steps(4), checkpoint=path, checkpoint_every=Steps(2))


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("mark", "another", "something else"),
        ("format", None, "it has format None, not 3"),
        ("format", 99, "it has format 99, not 3"),
        ("digest", None, "its content does not match its digest"),
        ("spec", {}, "its content does not match its digest"),
        ("environment", None, "its content does not match its digest"),
        ("state", {}, "its content does not match its digest"),
        ("step", 2, "its content does not match its digest"),
        ("columns", {"step": ["a"]}, "its content does not match its digest"),
        ("model", {"w": torch.zeros(2)}, "its content does not match its digest"),
    ],
)
def test_checkpoints_with_strange_content_are_refused(tmp_path, part, value, message):
    path = tmp_path / "run.pt"
    trained(path)
    content = torch.load(path, weights_only=True)
    inside = content if part in content else content["state"]
    if value is None:
        del inside[part]
    else:
        inside[part] = value
    torch.save(content, path)
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=rf"must be a whole file that fit wrote, got: .*{message}.*; delete it, or"
    ) as told:
        trained(path)
    assert "\n" not in str(told.value)
    assert path.read_bytes() == before


def test_a_checkpoint_that_finds_no_room_is_one_sentence_and_keeps_the_last(tmp_path):
    """A limit on the size of files, in a process of its own: the write fails in the middle of the
    file."""
    path = tmp_path / "run.pt"
    trained(path)
    before = path.read_bytes()
    code = (
        "import resource, sys, torch\n"
        "from pathlib import Path\n"
        "from rlploss.training.checkpoint import CheckpointFile\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "file = CheckpointFile(Path(sys.argv[1]))\n"
        "file.spec = file.where = {}\n"
        "try: file.save({'w': torch.zeros(100_000)})\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        f"checkpoint {path} cannot be written (File too large); the last one, if any, is kept"
    )
    assert done.stdout.count("\n") == 1
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.pt"]


# A fixed sample of the fuzzing

SAMPLE = 1200


@pytest.mark.parametrize("target", fuzz.TARGETS, ids=lambda target: target.name)
@pytest.mark.slow
def test_a_fixed_sample_of_fuzzing(target):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # of pandas and others: a warning is no traceback
        line = fuzz.fuzz(target, round(target.share * SAMPLE), seed=0)
    assert not line.broken, "\n".join(line.broken)
    assert line.cases >= target.share * SAMPLE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(sys.platform != "linux", reason="forks and limits of Linux")
def test_a_fixed_sample_of_changed_files():
    for line in files.run(60, seed=0):
        assert not line.broken, line.broken


def test_the_fuzzer_finds_what_is_planted(monkeypatch):
    """A fuzzer that cannot fail would prove nothing."""
    planted = fuzz.Target(
        "planted", fuzz.TARGETS[0].cases, lambda case: 1 / (len(case[2]) > 200), 1.0
    )
    assert "ZeroDivisionError" in fuzz.fuzz(planted, 200, seed=0).broken[0]

    def endless(case):
        while True:
            pass

    monkeypatch.setattr("tests.torture.guard.SECONDS", 0.2)
    hanging = fuzz.Target("hanging", fuzz.TARGETS[0].cases, endless, 1.0)
    assert "Hang" in fuzz.fuzz(hanging, 1, seed=0).broken[0]


# Ways to be given text that cannot be printed


def test_a_terminal_without_unicode_gets_escapes_and_no_error(tmp_path):
    pd.DataFrame({"größe ألف": [1.5, 2.5, 3.5], "y": [1, 2.5, 3]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    code = "from rlploss.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", "t.csv", "--target", "y"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfe" in done.stdout
