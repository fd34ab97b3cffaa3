"""Run the command `rlploss`: assemble its subcommands, and turn errors into one sentence and an
exit code.

Exit codes: 0 success, 1 the work failed or found something wrong, 2 bad input, 130 Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rlploss._extras import MissingExtra, need
from rlploss._version import __version__
from rlploss.lab.text import LabError, Stopped, sentence, shown

if TYPE_CHECKING:
    import typer

STOPPED = 130  # the exit code that a shell reports after Ctrl-C
# After Ctrl-C the same command continues where it stopped.
RESUMING = (["reproduce"], ["compare"], ["survey"], ["data", "get"])
PARAMETERS = {"n_splits": "splits", "random_state": "seed"}  # options with another name

DIABETES = "examples/diabetes.csv --target progression"
EXAMPLES = {  # for each command, shown by its --help
    "": (f"compare {DIABETES}", "reproduce table1", "data list"),
    "reproduce": ("table1 fig-curves --datasets wine,linear", "--list"),
    "report": ("rlploss-results",),
    "compare": (DIABETES, f"{DIABETES} --quick --loss mylosses.py:log_cosh"),
    "predict": (
        "diabetes-progression examples/diabetes.csv",
        "diabetes-progression new.csv --out predictions.csv",
    ),
    "inspect": (DIABETES,),
    "survey": (
        "--quick --half development",
        "--tables quake,laser --loss mylosses.py:log_cosh",
        "--list",
    ),
    "data": ("list", "get wine california", "verify"),
    "data list": ("",),
    "data get": ("wine california", "all"),
    "data verify": ("", "wine"),
}


def examples(command: str) -> str:
    """Return the epilog of a command's help."""
    lines = (f"rlploss {command} {words}".split() for words in EXAMPLES[command])
    return "\n\n".join(["For example:", *map(" ".join, lines)])


def make_app() -> typer.Typer:
    """Return the command with all subcommands."""
    import typer

    from rlploss.cli import compare, data, predict, reproduce, shell, survey

    app = typer.Typer(
        cls=shell.Group,
        epilog=examples(""),
        help=(
            "The Random Linear Projections (RLP) loss: does it help on your table, does its paper"
            " hold?"
        ),
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    group = typer.Typer(
        cls=shell.Group, epilog=examples("data"), help=data.HELP, no_args_is_help=True
    )
    app.add_typer(group, name="data")
    commands: dict[str, Callable[..., None]] = {
        "reproduce": reproduce.reproduce,
        "report": reproduce.report,
        "compare": compare.compare,
        "predict": predict.predict,
        "inspect": compare.inspect,
        "survey": survey.survey,
        "data list": data.list_,
        "data get": data.get,
        "data verify": data.verify,
    }
    for name, command in commands.items():
        parent, last = (group if name.startswith("data ") else app), name.split()[-1]
        parent.command(last, cls=shell.Command, epilog=examples(name))(command)
    option = typer.Option(False, "--version", help="Show the version and stop.", is_eager=True)

    @app.callback(invoke_without_command=True)
    def _version(version: bool = option) -> None:
        if version:
            print(__version__)
            raise typer.Exit

    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` if None) and return its exit code."""
    need("lab", "the command", "typer", "rich")
    import typer

    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = make_app()(args=arguments, prog_name="rlploss", standalone_mode=False)
        sys.stdout.flush()
        if code == STOPPED:  # newer versions of typer turn Ctrl-C into this
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (Stopped, KeyboardInterrupt, typer.Abort) as stopped:
        resumes = any(words[: len(start)] == start for start in RESUMING)
        goes_on = f"this goes on: {shlex.join(['rlploss', *words])}" if resumes else ""
        return _fail("; ".join(filter(None, ["stopped", str(stopped), goes_on])), STOPPED)
    except BrokenPipeError:  # the reader closed the pipe, as in `rlploss data list | head -1`
        _forget_output()
        return 0
    except (ValueError, LabError, MissingExtra) as error:
        return _fail(sentence(_with_option(str(error), words)))
    except OSError as error:
        if hasattr(error, "exit_code"):  # the datasets' own errors are complete
            return _fail("\n".join(map(shown, str(error).splitlines())), error.exit_code)
        _forget_output()  # the output itself may be what cannot be written
        where = f"cannot use {error.filename}" if error.filename else "cannot write what is shown"
        remedy = "check that it is there, that you may write there, and that the disk has room"
        return _fail(sentence(f"{where} ({error.strerror or error}); {remedy}"))
    except MemoryError:
        return _fail("not enough memory for this; ask for fewer rows, splits or seeds", 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own errors have this method
            raise
        text = sentence(error.format_message())  # empty: help was shown
        return _fail(f"{text} (rlploss --help shows the commands)") if text else 2


def _with_option(message: str, words: list[str]) -> str:
    """Replace the parameter's name at the start of a message by the option that the user gave."""
    name, space, rest = message.partition(" ")
    option = f"--{PARAMETERS.get(name, name).replace('_', '-')}"
    given = {word.partition("=")[0] for word in words}
    return option + space + rest if option in given else message


def _fail(message: str, code: int = 2) -> int:
    print(f"rlploss: {message}", file=sys.stderr)
    return code


def _forget_output() -> None:
    """Discard the rest of stdout, so that Python does not try to write it again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are printed as escapes instead of raising an
        # error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's: a result that is NaN shows as a gap
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {sentence(str(message))}\n"
    try:
        code = run()
    except MissingExtra as error:
        code = _fail(str(error), 1)
    except Exception as error:
        if os.environ.get("RLPLOSS_TRACEBACK"):
            raise
        code = _fail(
            f"a mistake in rlploss itself ({sentence(f'{type(error).__name__}: {error}', 300)});"
            " report it with what RLPLOSS_TRACEBACK=1 shows",
            1,
        )
    # Python takes a moment to end, and would swallow Ctrl-C meanwhile.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))
    sys.exit(code)
