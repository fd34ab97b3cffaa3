"""Help: -h and --help, an example that its own command would take, 80 columns, completion."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlploss import cli
from rlploss.datasets import names
from rlploss.paper.studies import ARMS, CATALOG
from rlploss.survey import tables as survey

COMMANDS = [name.split() for name in cli.EXAMPLES]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = []
    for option in ("-h", "--help"):
        assert cli.run([*words, option]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert max(map(len, shown[0].splitlines())) <= 80
    examples = re.findall(r"^ *rlploss ([a-z].*)", shown[0].partition("For example:")[2], re.M)
    assert len(examples) == len(cli.EXAMPLES[" ".join(words)])
    assert all(shlex.split(line)[: len(words)] == words for line in examples)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_flags_are_shown_without_a_value(words, capsys):
    assert cli.run([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"--help +-h +Show", shown)
    assert not re.search(r"<bool>|BOOLEAN", shown)


def test_the_first_example_of_a_table_runs_in_the_repository(monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert cli.EXAMPLES["compare"][0] == cli.EXAMPLES["inspect"][0]
    assert cli.run(["inspect", *shlex.split(cli.EXAMPLES["inspect"][0])]) == 0
    assert capsys.readouterr().out.startswith("diabetes.csv: 442 rows; target 'progression'")


@pytest.mark.parametrize(
    ("name", "words"), [(n, w) for n, several in cli.EXAMPLES.items() for w in several]
)
def test_examples_have_only_options_that_exist(name, words, capsys):
    cli.run([*name.split(), "--help"])
    known = capsys.readouterr().out
    assert all(word in known for word in shlex.split(words) if word.startswith("--"))


def test_defaults_that_only_words_can_tell_are_shown(capsys):
    """Brackets inside a help text are markup, and vanish."""
    cli.run(["compare", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "[default: (named after table and target)]" in shown
    assert "[default: (10; 5 with --quick)]" in shown
    assert shown.count("[default: (the table tells)]") == 2
    cli.run(["survey", "--help"])
    assert "[default: (100,1000)]" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_list_of_data_fits_into_80_columns(capsys):
    assert cli.run(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Cache: ")) <= 80


def completed(*words):
    """What a shell offers for the last of the words, asked as bash does, and the seconds that it
    waits."""
    asked = {
        "_RLPLOSS_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["rlploss", *words]),
        "COMP_CWORD": str(len(words)),
    }
    code = (
        "import sys; from rlploss.cli import main\ntry: main()\nfinally: print({'torch', 'pandas'}"
        " & {*sys.modules})"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    *found, heavy = done.stdout.splitlines()
    assert heavy == "set()"
    return found, time.perf_counter() - began


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["re"], ["reproduce", "report"]),
        (["data", "get", ""], [*names(), "all"]),
        (["data", "verify", "cifar"], ["cifar10", "cifar10-released"]),
        (["reproduce", "table"], [name for name in CATALOG if name.startswith("table")]),
        (["reproduce", "--scale", ""], ["smoke", "quick", "paper"]),
        (["reproduce", "--budget", "s"], ["steps"]),
        (["reproduce", "--arms", ""], [*ARMS]),
        (["reproduce", "--datasets", "wine,li"], ["wine,linear"]),
        (["compare", "--task", "r"], ["regression"]),
        (["compare", "--arms", "mse,rlp+"], ["mse,rlp+l2", "mse,rlp+mixup"]),
        (["inspect", "--encoding", "l"], ["latin-1"]),
        (["survey", "--half", ""], list(survey.HALVES)),
        (["survey", "--workers", "in"], ["inline"]),
    ],
    ids=" ".join,
)
def test_shells_complete_commands_and_values(words, expected):
    assert completed(*words)[0] == expected


def test_shells_complete_the_tables_of_the_survey():
    assert {*completed("survey", "--tables", "")[0]} == {
        *survey.table_names(),
        *survey.table_names("classification"),
        *survey.table_names(half="second"),
    }


def test_completion_does_not_keep_a_shell_waiting():
    assert min(completed("data", "get", "")[1] for _ in range(5)) < 0.3
