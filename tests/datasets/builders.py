"""Small files, archives and sources for the tests."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping

from rlploss.datasets.sources import DataFile, Source


def data_file(name: str, data: bytes) -> DataFile:
    return DataFile(name, hashlib.sha256(data).hexdigest(), len(data))


def zip_bytes(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tar_gz_bytes(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """A tar.gz; a member may be given as a TarInfo (a link, a device) instead of bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            if isinstance(data, tarfile.TarInfo):
                archive.addfile(data)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def plain_web(url: str, file: DataFile) -> Source:
    """A source that serves the file itself."""
    return Source(files=[file], address=f"{url}/", name=file.name, sha256=file.sha256)


def wheel_bytes(name: str, version: str, members: Mapping[str, bytes]) -> bytes:
    """A wheel that pip accepts: the members and the two metadata files it looks at."""
    info = f"{name}-{version}.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = "".join(f"{member},,\n" for member in (*members, *metadata, f"{info}/RECORD"))
    return zip_bytes({**members, **metadata, f"{info}/RECORD": record.encode()})
