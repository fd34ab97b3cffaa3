"""The command `rlploss`: puts the groups of commands together, and turns errors into one sentence and a code.

Exit codes: 0 done, 1 the work failed or found something wrong, 2 bad input, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

try:
    import typer
except ImportError:
    raise SystemExit("rlploss: the command line needs more packages: pip install 'rlploss[lab]'") from None

from rlploss import __version__, _cli_bench, _cli_compare, _cli_data
from rlploss.datasets import CacheError, DatasetUnavailable
from rlploss.lab.errors import LabError
from rlploss.paper import command

STOPPED = 130  # what a shell reports of a command that Ctrl-C ended

app = typer.Typer(
    help="Random Linear Projections loss: data, reproduction, comparison.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(_cli_data.app, name="data")
command.register(app)
_cli_compare.register(app)
_cli_bench.register(app)


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Show the version and stop.", is_eager=True),
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` if None) and return its exit code."""
    try:
        code = app(args=arguments, prog_name="rlploss", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", STOPPED)
    except BrokenPipeError:  # the reader has gone, as in `rlploss data list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except DatasetUnavailable as error:
        return _fail(str(error), 1)
    except (ValueError, CacheError, LabError) as error:
        return _fail(str(error), 2)
    except Exception as error:
        message = getattr(
            error, "format_message", None
        )  # typer's own errors: unknown option, missing argument
        if message is None:
            raise
        text = message().strip()
        return _fail(f"{text} (rlploss --help shows the commands)", 2) if text else 2  # empty: help was shown
    if code == STOPPED:  # newer versions of typer turn Ctrl-C into this
        return _fail("stopped", STOPPED)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"rlploss: {message}", file=sys.stderr)
    return code


def main() -> None:
    """Entry point of the command."""
    sys.exit(run())
