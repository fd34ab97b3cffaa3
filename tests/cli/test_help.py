"""Help: -h and --help, an example that its own command would take, 80 columns, completion."""

import re
import shlex

import pytest

from rlploss import cli

COMMANDS = [*([name] for name in cli.EXAMPLES), ["data", "list"], ["data", "get"], ["data", "verify"]]


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
    examples = re.findall(r"rlploss ([a-z].*)", shown[0].partition("For example:")[2])
    assert examples
    assert all(shlex.split(line)[: len(words)] == words for line in examples)


@pytest.mark.parametrize(("name", "words"), [(n, w) for n, several in cli.EXAMPLES.items() for w in several])
def test_examples_have_only_options_that_exist(name, words, capsys):
    cli.run([name, "--help"])
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


def test_shells_complete_commands(monkeypatch, capsys):
    monkeypatch.setenv("_RLPLOSS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "rlploss re")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        cli.run([])
    assert {"reproduce", "report"} <= {*capsys.readouterr().out.split()}
