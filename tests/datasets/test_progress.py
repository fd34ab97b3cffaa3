from __future__ import annotations

import io

import pytest

from rlploss import _progress
from rlploss.datasets import DataWarning
from rlploss.datasets.transfers import Reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_when_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(_progress.time, "perf_counter", lambda: now[0])
    stream = io.StringIO()
    progress = Reporter(stream)
    progress.note("asking")
    progress.warn("wrong file")
    with progress.transfer("big.bin", 8_000_000, 2_000_000) as show:
        for position in range(2_000_000, 8_000_001, 500_000):
            now[0] += 2.5
            show(position)
    assert stream.getvalue().splitlines() == [
        "asking",
        "warning: wrong file",
        "big.bin: 8.0 MB, resumed at 2.0 MB",
        " 44% big.bin: 3.5 MB, 30 s left",
        " 69% big.bin: 5.5 MB, 14 s left",
        " 94% big.bin: 7.5 MB, 3 s left",
        "100% big.bin: 8.0 MB, done",
    ]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_an_unknown_size(kind: type[io.StringIO]) -> None:
    stream = kind()
    with Reporter(stream).transfer("x", None) as show:
        show(5)
    assert stream.getvalue() == "x: size unknown\n"


def test_one_line_that_is_rewritten_on_a_terminal() -> None:
    stream = Terminal()
    with Reporter(stream).transfer("big.bin", 1_000_000) as show:
        show(500_000)
        show(1_000_000)
    first, *shown = stream.getvalue().split("\r")
    assert first == "big.bin: 1.0 MB\n"
    assert shown[-1].startswith("100% big.bin: 1.0 MB, done")
    assert stream.getvalue().count("\n") == 2


def test_without_a_stream_only_what_must_be_known_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Reporter(None)
    progress.note("nothing")
    with progress.transfer("x", 5) as show:
        show(5)
    with pytest.warns(DataWarning, match="wrong file"):
        progress.warn("wrong file")
    assert capsys.readouterr() == ("", "")
