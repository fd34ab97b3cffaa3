from __future__ import annotations

import io

import pytest

from rlploss.datasets._progress import Bars, DataWarning, Lines, Quiet, reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_when_piped() -> None:
    stream = io.StringIO()
    progress = reporter(stream)
    assert type(progress) is Lines
    progress.note("asking")
    progress.warn("wrong file")
    with progress.transfer("big.bin", 8_000_000, 2_000_000) as advance:
        for _ in range(60):
            advance(100_000)
    assert stream.getvalue().splitlines() == [
        "asking",
        "warning: wrong file",
        "big.bin: 8.0 MB, resumed at 2.0 MB",
        "big.bin: 50 %",
        "big.bin: 75 %",
        "big.bin: 100 %",
    ]


def test_an_unknown_size() -> None:
    stream = io.StringIO()
    with Lines(stream).transfer("x", None) as advance:
        advance(5)
    assert stream.getvalue() == "x: size unknown\n"


def test_bars_on_a_terminal() -> None:
    stream = Terminal()
    progress = reporter(stream)
    assert type(progress) is Bars
    with progress.transfer("big.bin", 1_000_000) as advance:
        advance(1_000_000)
    assert "big.bin" in stream.getvalue()
    assert "1.0/1.0 MB" in stream.getvalue()


def test_lines_on_a_terminal_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert type(reporter(Terminal())) is Lines


def test_quiet_says_only_what_must_be_known() -> None:
    progress = Quiet()
    progress.note("nothing")
    with progress.transfer("x", 5) as advance:
        advance(5)
    with pytest.warns(DataWarning, match="wrong file"):
        progress.warn("wrong file")
