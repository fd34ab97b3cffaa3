"""Archives are hashed before they are opened, and their members are read in memory."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rlploss.datasets import readers, sources
from rlploss.datasets.readers import read_members
from rlploss.datasets.sources import Source
from rlploss.datasets.transfers import SourceError

from .builders import data_file, tar_gz_bytes, zip_bytes

CONTENT = b"0123456789" * 50
MEMBERS = {"a/data.csv": CONTENT, "a/code.py": b"raise SystemExit", "a/other.csv": b"x"}
PACK = {"zip": zip_bytes, "tgz": tar_gz_bytes, "gz": lambda _: gzip.compress(CONTENT)}


def source(kind: str, archive: bytes) -> Source:
    known = data_file(f"data.csv.{kind}", archive)
    members = () if kind == "gz" else ["a/data.csv"]
    return Source(
        files=[data_file("data.csv", CONTENT)],
        address="https://example.org/",
        name=known.name,
        sha256=known.sha256,
        members=members,
    )


@pytest.mark.parametrize("pack", [zip_bytes, tar_gz_bytes])
def test_only_the_wanted_members_come_back(
    pack: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_members(pack(MEMBERS), ["a/other.csv", "a/data.csv"])
    assert found == {"a/data.csv": CONTENT, "a/other.csv": b"x"}
    assert list(tmp_path.iterdir()) == []  # nothing is unpacked to disk


@pytest.mark.parametrize("kind", PACK)
def test_nothing_opens_an_archive_that_is_not_the_known_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes changed anywhere, cut off or added: refused by the hash, before any reader sees them."""
    archive = PACK[kind](MEMBERS)
    known = source(kind, archive)
    assert dict(known.unpack(archive)) == {"data.csv": CONTENT}

    def opened(*arguments: object, **options: object) -> None:
        raise AssertionError("opened before it was verified")

    monkeypatch.setattr(sources.gzip, "decompress", opened)
    monkeypatch.setattr(readers.zipfile, "ZipFile", opened)
    monkeypatch.setattr(readers.tarfile, "open", opened)
    with pytest.raises(AssertionError):
        known.unpack(archive)
    rng = random.Random(kind)
    changed = [b"", archive[:-1], archive + b"x", b"PK" + archive]
    for _ in range(200):
        data = bytearray(archive)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        changed.append(bytes(data))
    for data in changed:
        with pytest.raises(SourceError, match=rf"{known.name}: its SHA-256 is [0-9a-f]{{64}}, not"):
            known.unpack(data)
