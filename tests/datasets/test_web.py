from __future__ import annotations

import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rlploss.datasets.transfers import CacheError, HostError, SourceError, TransferError, download, use_download

from .builders import Recorder
from .conftest import Server

BODY = random.Random(0).randbytes(1_000_000)


def fetch(server: Server, part: Path, *, max_bytes: int = 2_000_000, path: str = "/f") -> bool:
    return download(f"{server.url}{path}", part, max_bytes=max_bytes, progress=Recorder())


def expecting(body: bytes, seen: list[bytes]) -> Callable[[Path], None]:
    """A use of a download that refuses all but these bytes, and keeps them."""

    def use(path: Path) -> None:
        if path.read_bytes() != body:
            raise SourceError("wrong")
        seen.append(body)

    return use


def test_download(server: Server, tmp_path: Path) -> None:
    server.files["/f"] = BODY
    assert fetch(server, tmp_path / "f.part") is False
    assert (tmp_path / "f.part").read_bytes() == BODY


def test_without_a_content_length(server: Server, tmp_path: Path) -> None:
    server.files["/f"], server.announce = BODY, False
    fetch(server, tmp_path / "f.part")
    assert (tmp_path / "f.part").read_bytes() == BODY


def test_a_broken_connection_is_resumed_at_once(server: Server, tmp_path: Path) -> None:
    server.files["/f"], server.cut["/f"] = BODY, [300_000, 400_000]
    assert fetch(server, tmp_path / "f.part") is True
    assert (tmp_path / "f.part").read_bytes() == BODY
    assert server.asked == [("/f", None), ("/f", "bytes=300000-"), ("/f", "bytes=700000-")]


def test_what_came_is_kept_and_the_next_call_resumes(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "f.part"
    server.files["/f"], server.cut["/f"] = BODY, [100, 100, 100]
    with pytest.raises(TransferError, match=r"broke at 300 of 1000000 bytes .*the next call resumes it"):
        fetch(server, part)
    assert part.read_bytes() == BODY[:300]
    assert fetch(server, part) is True
    assert part.read_bytes() == BODY
    assert server.asked[-1] == ("/f", "bytes=300-")


def test_a_server_that_sends_nothing_is_not_asked_again(server: Server, tmp_path: Path) -> None:
    server.files["/f"], server.cut["/f"] = BODY, [0, 0, 0]
    with pytest.raises(TransferError, match="broke at 0 of 1000000 bytes"):
        fetch(server, tmp_path / "f.part")
    assert len(server.asked) == 1


@pytest.mark.parametrize("fault", ["no ranges", "wrong range", "part too long"])
def test_where_resuming_is_impossible_it_begins_again(server: Server, tmp_path: Path, fault: str) -> None:
    part = tmp_path / "f.part"
    part.write_bytes(b"z" * (len(BODY) + 5 if fault == "part too long" else 10))
    server.files["/f"] = BODY
    server.ranges, server.wrong_range = fault != "no ranges", fault == "wrong range"
    seen: list[bytes] = []
    use_download(f"{server.url}/f", part, expecting(BODY, seen), max_bytes=2_000_000, progress=Recorder())
    assert seen == [BODY]
    assert len(server.asked) == (1 if fault == "no ranges" else 2)


def test_size_limits(server: Server, tmp_path: Path) -> None:
    server.files["/f"] = BODY
    with pytest.raises(SourceError, match="it announces 1,000,000 bytes, more than the 999,999 allowed"):
        fetch(server, tmp_path / "f.part", max_bytes=999_999)
    server.announce = False
    with pytest.raises(SourceError, match="it sends more than the 999,999 bytes allowed"):
        fetch(server, tmp_path / "f.part", max_bytes=999_999)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_disk_that_is_full(server: Server, tmp_path: Path, size: int) -> None:
    server.files["/f"] = BODY[:size]
    (tmp_path / "f.part").symlink_to("/dev/full")
    with pytest.raises(CacheError, match=r"No space left on device\): free some space or set RLPLOSS_DATA"):
        fetch(server, tmp_path / "f.part")


@pytest.mark.parametrize(("status", "reason"), [(404, "404 Not Found"), (403, "403 Forbidden"), (503, "503")])
def test_http_errors_are_told(server: Server, tmp_path: Path, status: int, reason: str) -> None:
    server.status["/f"] = status
    (tmp_path / "f.part").write_bytes(BODY[:10])
    with pytest.raises(TransferError, match=f"the server answers {reason}"):
        fetch(server, tmp_path / "f.part")
    assert (tmp_path / "f.part").read_bytes() == BODY[:10]


def test_a_host_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(HostError, match=r"127.0.0.1 not reached \(.*refused"):
        download(f"http://127.0.0.1:{port}/f", tmp_path / "p", max_bytes=1, progress=Recorder())


def test_a_host_that_accepts_and_says_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/f"
        with pytest.raises(HostError, match="timed out"):
            download(url, tmp_path / "p", max_bytes=1, progress=Recorder(), timeout=0.2)


def test_a_wrong_download_is_removed(server: Server, tmp_path: Path) -> None:
    server.files["/f"] = BODY
    part = tmp_path / "f.part"
    with pytest.raises(SourceError, match="wrong"):
        use_download(f"{server.url}/f", part, expecting(b"", []), max_bytes=2_000_000, progress=Recorder())
    assert not part.exists()
    assert len(server.asked) == 1


def test_a_part_of_another_file_is_begun_again(server: Server, tmp_path: Path) -> None:
    server.files["/f"] = BODY
    part = tmp_path / "f.part"
    part.write_bytes(b"stale" * 100)
    progress = Recorder()
    seen: list[bytes] = []
    use_download(f"{server.url}/f", part, expecting(BODY, seen), max_bytes=2_000_000, progress=progress)
    assert seen == [BODY]
    assert progress.notes == ["f: the resumed download is damaged; beginning again"]
    assert server.asked == [("/f", "bytes=500-"), ("/f", None)]
    assert not part.exists()


def test_a_part_is_begun_again_only_once(server: Server, tmp_path: Path) -> None:
    server.files["/f"] = BODY
    (tmp_path / "f.part").write_bytes(b"stale")
    with pytest.raises(SourceError, match="wrong"):
        use_download(
            f"{server.url}/f", tmp_path / "f.part", expecting(b"", []), max_bytes=2_000_000, progress=Recorder()
        )
    assert len(server.asked) == 2
