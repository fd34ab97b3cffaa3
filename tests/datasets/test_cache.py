from __future__ import annotations

import errno
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from rlploss.datasets import CacheError, cache_dir
from rlploss.datasets.sources import install, locked

from .builders import data_file


def with_lock(directory: Path) -> None:
    with locked(directory, on_wait=lambda: None):
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
    with pytest.raises(CacheError, match=r"needs the package platformdirs.*install rlploss\[lab\] or set RLPLOSS_DATA"):
        cache_dir()


def test_install_is_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    assert install(tmp_path / "file", b"content") is None
    assert (tmp_path / "file").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_install_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number, old in enumerate((b"mine", b"mine too"), start=1):
        path.write_bytes(old)
        aside = install(path, b"content")
        assert aside == tmp_path / f"file.mismatch-{number}"
        assert aside.read_bytes() == old
        assert path.read_bytes() == b"content"


def test_a_failed_install_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"mine")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        CacheError, match=r"cannot be used \(No space left on device\): free some space or set RLPLOSS_DATA"
    ):
        install(tmp_path / "file", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_read_file(tmp_path: Path) -> None:
    file = data_file("file", b"0123456789")
    assert file.read(tmp_path) == (b"", "not there")
    (tmp_path / "file").write_bytes(b"0123456789")
    assert file.read(tmp_path) == (b"0123456789", "ok")
    (tmp_path / "file").write_bytes(b"0123456789" * 1000)
    assert file.read(tmp_path) == (b"01234567890", "it has 11 bytes, not 10")  # no more than needed is read


def test_a_cache_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    rule = r"the cache .*file.* cannot be used \(.*\): make it a directory that you can read and write, or set"
    with pytest.raises(CacheError, match=rule):
        with_lock(tmp_path / "file" / "wine")
    with pytest.raises(CacheError, match=rule):
        data_file("wine", b"").read(tmp_path / "file")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read and write anything")
def test_an_unreadable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "file").chmod(0)
    with pytest.raises(CacheError, match=r"\(Permission denied\)"):
        data_file("file", b"x").read(tmp_path)


def test_only_leftovers_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-dir" / "deep").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"whole")
    (tmp_path / "file.part").write_bytes(b"to be resumed")
    with_lock(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "file", "file.part"}


def hold(directory: Path, ready: multiprocessing.synchronize.Event, go: multiprocessing.synchronize.Event) -> None:
    with locked(directory, on_wait=lambda: None):
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
        waits: list[bool] = []

        def on_wait() -> None:
            waits.append((tmp_path / "first").exists())
            go.set()

        with locked(tmp_path, on_wait=on_wait):
            assert waits == [False]  # told once, while the other one still had it
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
    waits: list[None] = []
    with locked(tmp_path, on_wait=lambda: waits.append(None)):
        assert not (tmp_path / "first").exists()
    assert waits == []
