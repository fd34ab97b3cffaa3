from __future__ import annotations

import io
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from rlploss._extras import MissingExtra
from rlploss.datasets import CacheError, cache_dir
from rlploss.datasets.sources import WORKSPACE, cached, locked

from .builders import data_file


def with_lock(directory: Path) -> None:
    with locked(directory, progress=io.StringIO()):
        pass


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLPLOSS_DATA", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv("RLPLOSS_DATA", "~/somewhere")
    assert cache_dir() == Path.home() / "somewhere"
    monkeypatch.setenv("RLPLOSS_DATA", " ")
    assert cache_dir().name == "rlploss"  # blank is not set
    monkeypatch.delenv("RLPLOSS_DATA")
    assert cache_dir().name == "rlploss"


def test_without_platformdirs_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLPLOSS_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(
        MissingExtra, match=r"unless RLPLOSS_DATA names one, needs platformdirs.*rlploss\[lab\]"
    ):
        cache_dir()


def test_read_file(tmp_path: Path) -> None:
    file = data_file("file", b"0123456789")
    assert file.read(tmp_path) == (b"", "not there")
    (tmp_path / "file").write_bytes(b"0123456789")
    assert file.read(tmp_path) == (b"0123456789", "ok")
    assert cached(tmp_path, [file, data_file("other", b"")]) == {"file": b"0123456789"}
    (tmp_path / "file").write_bytes(b"0123456789" * 2)
    assert file.read(tmp_path)[1].startswith("its SHA-256 is ")


@pytest.mark.parametrize("wrong", [b"", b"012345678", b"0123456789x", b"0123456780"])
def test_a_wrong_file_is_named_and_kept(tmp_path: Path, wrong: bytes) -> None:
    (tmp_path / "file").write_bytes(wrong)
    sentence = r"wrong file, .*file: its SHA-256 is .*, not .*; move it away, or put the right file"
    with pytest.raises(CacheError, match=sentence):
        cached(tmp_path, [data_file("file", b"0123456789")])
    assert (tmp_path / "file").read_bytes() == wrong


def test_a_cache_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    rule = (
        r"the cache .*file.* cannot be used \(.*\): make it a directory that you can read and"
        r" write, or set"
    )
    with pytest.raises(CacheError, match=rule):
        with_lock(tmp_path / "file" / "wine")
    with pytest.raises(CacheError, match=rule):
        data_file("wine", b"").read(tmp_path / "file")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="root may read and write anything"
)
def test_an_unreadable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "file").chmod(0)
    with pytest.raises(CacheError, match=r"\(Permission denied\)"):
        data_file("file", b"x").read(tmp_path)


def test_the_workspace_is_empty_and_goes(tmp_path: Path) -> None:
    (tmp_path / WORKSPACE / "deep").mkdir(parents=True)  # of a process that was killed
    (tmp_path / "file").write_bytes(b"whole")
    with locked(tmp_path, progress=io.StringIO()) as workspace:
        assert list(workspace.iterdir()) == []
        (workspace / "half").write_bytes(b"")
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "file"}


class Said(io.StringIO):
    """Lets the holder of the lock go on as soon as anything is said."""

    def __init__(self, go: multiprocessing.synchronize.Event) -> None:
        super().__init__()
        self.go = go

    def write(self, text: str) -> int:
        self.go.set()
        return super().write(text)


def hold(
    directory: Path, ready: multiprocessing.synchronize.Event, go: multiprocessing.synchronize.Event
) -> None:
    with locked(directory, progress=io.StringIO()):
        ready.set()
        go.wait(30)
        (directory / "first").write_text("done")


def test_the_lock_excludes_another_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path, ready, go))
    process.start()
    try:
        assert ready.wait(60)
        said = Said(go)
        with locked(tmp_path, progress=said):
            # Said once, while the other process still had it.
            assert said.getvalue() == f"{tmp_path.name}: waiting for another process\n"
            assert (tmp_path / "first").exists()
    finally:
        go.set()
        process.join(60)
    assert process.exitcode == 0


def test_the_lock_is_free_after_a_kill(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path, ready, go))
    process.start()
    assert ready.wait(60)
    process.kill()
    process.join(60)
    said = io.StringIO()
    with locked(tmp_path, progress=said):
        assert not (tmp_path / "first").exists()
    assert said.getvalue() == ""
