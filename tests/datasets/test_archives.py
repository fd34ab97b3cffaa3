from __future__ import annotations

import gzip
import io
import random
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from rlploss.datasets import readers
from rlploss.datasets.readers import FormatError, read_archive

from .builders import tar_gz_bytes, zip_bytes

CONTENT = b"0123456789" * 50
HOSTILE_NAMES = ["/etc/passwd", "../outside", "a/../../outside", "..\\outside", "C:\\outside", "\\\\host\\share"]


def save(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def read(path: Path, sizes: dict[str, int]) -> dict[str, bytes]:
    with path.open("rb") as file:
        return read_archive(file, sizes)


def read_gz(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return readers.read_gz(file, path.name, size)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_only_the_wanted_members_come_back(tmp_path: Path) -> None:
    members = {"a/data.csv": CONTENT, "a/code.py": b"raise SystemExit", "a/other.csv": b"x"}
    wanted = {"a/data.csv": len(CONTENT)}
    assert read(save(tmp_path / "x.zip", zip_bytes(members)), wanted) == {"a/data.csv": CONTENT}
    assert read(save(tmp_path / "x.tgz", tar_gz_bytes(members)), wanted) == {"a/data.csv": CONTENT}
    assert read_gz(save(tmp_path / "x.gz", gzip.compress(CONTENT)), len(CONTENT)) == CONTENT
    assert {path.name for path in tmp_path.iterdir()} == {"x.zip", "x.tgz", "x.gz"}  # nothing was unpacked


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("first", [True, False])
def test_paths_that_leave_the_archive_are_refused(tmp_path: Path, name: str, first: bool) -> None:
    good = {"data": CONTENT}
    members = {name: b"x", **good} if first else {**good, name: b"x"}
    for data in (zip_bytes(members), tar_gz_bytes(members)):
        with pytest.raises(FormatError, match=r"member .* has a path that leaves the archive"):
            read(save(tmp_path / "archive", data), {"data": len(CONTENT)})
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize(
    "member",
    [
        special("data", tarfile.SYMTYPE, "/etc/passwd"),
        special("data", tarfile.LNKTYPE, "../outside"),
        special("other", tarfile.SYMTYPE, "data"),
        special("data", tarfile.CHRTYPE),
        special("data", tarfile.BLKTYPE),
        special("data", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type!r}",
)
def test_links_and_devices_in_tar_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    path = save(tmp_path / "x.tgz", tar_gz_bytes({"good": CONTENT, member.name: member}))
    with pytest.raises(FormatError, match=f"member '{member.name}' is a link or a device"):
        read(path, {"good": len(CONTENT)})


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_zip_are_refused(tmp_path: Path, kind: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("data")
        info.create_system, info.external_attr = 3, (kind | 0o644) << 16
        archive.writestr(info, b"/etc/passwd")
    with pytest.raises(FormatError, match="member 'data' is a link or a device"):
        read(save(tmp_path / "x.zip", buffer.getvalue()), {"data": 11})


def test_a_member_of_another_size_is_refused_unread(tmp_path: Path) -> None:
    bomb = {"data": b"\x00" * 30_000_000}
    for data in (zip_bytes(bomb), tar_gz_bytes(bomb)):
        path = save(tmp_path / "bomb", data)
        tracemalloc.start()
        with pytest.raises(FormatError, match=r"member 'data' has 30,000,000 bytes, not 100"):
            read(path, {"data": 100})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3_000_000


def test_a_zip_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"data": b"\x00" * 5_000_000}))
    # The uncompressed size, in the local header (offset 22) and in the central directory (offset 24 of its record).
    central = data.index(b"PK\x01\x02")
    struct.pack_into("<I", data, 22, 100)
    struct.pack_into("<I", data, central + 24, 100)
    tracemalloc.start()
    with pytest.raises(FormatError):
        read(save(tmp_path / "x.zip", bytes(data)), {"data": 100})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000


def test_a_tar_that_expands_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "x.tgz", tar_gz_bytes({"junk": b"\x00" * 5_000_000, "data": CONTENT}))
    assert read(path, {"data": len(CONTENT)})
    monkeypatch.setattr(readers, "MAX_UNPACKED", 1_000_000)
    with pytest.raises(FormatError, match="it unpacks to more than the size allowed"):
        read(path, {"data": len(CONTENT)})


def test_a_gz_bomb_is_not_expanded(tmp_path: Path) -> None:
    path = save(tmp_path / "x.gz", gzip.compress(b"\x00" * 50_000_000))
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"'x.gz' unpacks to more than 100 bytes"):
        read_gz(path, 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_MEMBERS", 5)
    members = {f"m{k}": b"x" for k in range(6)}
    with pytest.raises(FormatError, match="it has more than the 5 members allowed"):
        read(save(tmp_path / "x.zip", zip_bytes(members)), {"m0": 1})
    with pytest.raises(FormatError, match="it has more than the 5 members allowed"):
        read(save(tmp_path / "x.tgz", tar_gz_bytes(members)), {"m0": 1})


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for data in (b"first", b"later"):
            info = tarfile.TarInfo("data")
            info.size = 5
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(FormatError, match="member 'data' is there twice"):
        read(save(tmp_path / "x.tgz", buffer.getvalue()), {"data": 5})


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    for data in (zip_bytes({"a": b"x"}), tar_gz_bytes({"a": b"x"})):
        with pytest.raises(FormatError, match="it has no member 'data'"):
            read(save(tmp_path / "archive", data), {"data": 5})


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.9, 0.99])
def test_truncated_archives_are_refused(tmp_path: Path, keep: float) -> None:
    noise = random.Random(0).randbytes(20_000)
    whole = {"zip": zip_bytes({"data": noise}), "tgz": tar_gz_bytes({"data": noise}), "gz": gzip.compress(noise)}
    readers = {"zip": read, "tgz": read, "gz": lambda path, sizes: read_gz(path, sizes["data"])}
    for kind, data in whole.items():
        path = save(tmp_path / kind, data[: int(keep * len(data))])
        with pytest.raises(FormatError, match=r"damaged|truncated|unpacks to|no member"):
            readers[kind](path, {"data": 20_000})


def test_flipped_bits_are_noticed(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"data": CONTENT}))
    data[40] ^= 1
    with pytest.raises(FormatError):
        read(save(tmp_path / "x.zip", bytes(data)), {"data": len(CONTENT)})


@pytest.mark.parametrize("kind", ["zip", "tar", "pax", "gz"])
def test_no_damage_gets_past(tmp_path: Path, kind: str) -> None:
    """Bytes changed anywhere: members of the right size, or FormatError, and never another error."""
    rng = random.Random(kind)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("data")
        info.size, info.pax_headers = len(CONTENT), {"GNU.sparse.major": "1", "size": "500", "mtime": "1.5"}
        archive.addfile(info, io.BytesIO(CONTENT))
    whole = {
        "zip": zip_bytes({"data": CONTENT, "other": b"x"}),
        "tar": gzip.decompress(tar_gz_bytes({"data": CONTENT, "x" * 150: b"x"})),
        "pax": buffer.getvalue(),
        "gz": gzip.compress(CONTENT),
    }[kind]
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(min(len(data), 2000))] = rng.choice([rng.randrange(256), 0, 48, 255])
        packed = bytes(data) if kind in ("zip", "gz") else gzip.compress(bytes(data), 1)
        path = save(tmp_path / "archive", packed)
        try:
            if kind == "gz":
                assert read_gz(path, 500) == CONTENT
            else:
                found = read(path, {"data": 500})
                assert [len(content) for content in found.values()] == [500]
        except FormatError:
            refused += 1
    assert refused > 50
