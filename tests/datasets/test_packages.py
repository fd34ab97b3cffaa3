"""Real pip against a folder of files, real npm against a local registry: no network, no code of a package runs."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from rlploss.datasets import transfers
from rlploss.datasets.readers import read_archive
from rlploss.datasets.transfers import SourceError, fetch_package

from .builders import Recorder, tar_gz_bytes, wheel_bytes
from .conftest import Server

CONTENT = b"1;2;3\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    return directory


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
    """A source distribution whose build code needs nothing and leaves a trace as soon as pip asks it anything."""
    members = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "trap"\nbackend-path = ["."]\n',
        "trap.py": f"open({str(marker)!r}, 'w').close()\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n",
    }
    return tar_gz_bytes({f"carrier-1.0/{name}": text.encode() for name, text in members.items()})


def test_pip_brings_the_wheel(links: Path, workspace: Path) -> None:
    (links / "carrier-1.0-py3-none-any.whl").write_bytes(wheel_bytes("carrier", "1.0", {"carrier/d.csv": CONTENT}))
    (links / "carrier-2.0-py3-none-any.whl").write_bytes(wheel_bytes("carrier", "2.0", {"carrier/d.csv": b"new"}))
    path = fetch_package("pip", "carrier", "1.0", workspace, Recorder())
    assert path.parent == workspace
    assert read_archive(io.BytesIO(path.read_bytes()), {"carrier/d.csv": len(CONTENT)}) == {"carrier/d.csv": CONTENT}


def test_pip_never_builds_a_source_distribution(links: Path, workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "code-was-run"
    (links / "carrier-1.0.tar.gz").write_bytes(sdist(marker))
    with pytest.raises(SourceError, match=r"No matching distribution found for carrier==1.0"):
        fetch_package("pip", "carrier", "1.0", workspace, Recorder())
    assert not marker.exists()


def test_a_setting_of_the_user_does_not_make_pip_build(
    links: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    marker = tmp_path / "code-was-run"
    (links / "carrier-1.0.tar.gz").write_bytes(sdist(marker))
    with pytest.raises(SourceError):
        fetch_package("pip", "carrier", "1.0", workspace, Recorder())
    assert not marker.exists()


def test_pip_says_why_it_failed(links: Path, workspace: Path) -> None:
    with pytest.raises(SourceError, match=r"ERROR: No matching distribution found for nothing==9"):
        fetch_package("pip", "nothing", "9", workspace, Recorder())


def test_without_pip(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(workspace))
    with pytest.raises(SourceError, match="pip is not installed"):
        fetch_package("pip", "carrier", "1.0", workspace, Recorder())


def test_without_npm(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(workspace))
    with pytest.raises(SourceError, match="npm is not installed"):
        fetch_package("npm", "carrier", "1.0", workspace, Recorder())


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm_brings_the_archive_and_runs_nothing(
    server: Server, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "code-was-run"
    scripts = dict.fromkeys(("prepack", "prepare", "postpack", "preinstall", "postinstall"), f"touch {marker}")
    manifest = {"name": "carrier", "version": "1.0.0", "scripts": scripts}
    archive = tar_gz_bytes({"package/package.json": json.dumps(manifest).encode(), "package/d.csv": CONTENT})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    dist = {"tarball": f"{server.url}/carrier/-/carrier-1.0.0.tgz", "integrity": integrity}
    listing = {"name": "carrier", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**manifest, "dist": dist}}}
    server.files["/carrier"] = json.dumps(listing).encode()
    server.files["/carrier/-/carrier-1.0.0.tgz"] = archive
    monkeypatch.setenv("npm_config_registry", f"{server.url}/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    monkeypatch.setenv("npm_config_userconfig", os.devnull)
    monkeypatch.setenv("npm_config_update_notifier", "false")
    path = fetch_package("npm", "carrier", "1.0.0", workspace, Recorder())
    assert path.parent == workspace
    assert read_archive(io.BytesIO(path.read_bytes()), {"package/d.csv": len(CONTENT)}) == {"package/d.csv": CONTENT}
    assert not marker.exists()

    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(SourceError, match=r"(?i)404|not found|E404"):
        fetch_package("npm", "missing", "1.0.0", workspace, Recorder())


def fake_npm(directory: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program called npm, written in Python, first on the path."""
    program = directory / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport os, sys, time\nfrom pathlib import Path\n{code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


posix = pytest.mark.skipif(sys.platform == "win32", reason="the fake npm is a POSIX script")


@posix
def test_npm_is_called_by_name_with_scripts_off(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_npm(tmp_path, "Path('a.tgz').write_text('\\n'.join([os.getcwd(), *sys.argv[1:]]))", monkeypatch)
    cwd, *arguments = fetch_package("npm", "some-name", "1.2.3", workspace, Recorder()).read_text().splitlines()
    assert Path(cwd).samefile(workspace)
    assert arguments[0] == "pack"
    assert "--ignore-scripts" in arguments
    assert arguments[-1] == "some-name@1.2.3"


@posix
@pytest.mark.parametrize("code", ["pass", "Path('a.tgz').touch(); Path('b.tgz').touch()"])
def test_a_client_that_leaves_no_single_archive(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    fake_npm(tmp_path, code, monkeypatch)
    with pytest.raises(SourceError, match=r"npm left [02] .tgz files instead of one"):
        fetch_package("npm", "x", "1", workspace, Recorder())


@posix
def test_a_client_that_hangs_is_stopped(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PACKAGE_TIMEOUT", 0.6)
    monkeypatch.setattr(transfers, "BEAT", 0.2)
    fake_npm(tmp_path, f"Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(600)", monkeypatch)
    progress = Recorder()
    with pytest.raises(SourceError, match="no answer within 1 s"):
        fetch_package("npm", "x", "1", workspace, progress)
    assert progress.notes[0].startswith("  still fetching after")
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


@posix
def test_a_client_that_fails_in_silence(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, "sys.exit(7)", monkeypatch)
    with pytest.raises(SourceError, match="exit code 7"):
        fetch_package("npm", "x", "1", workspace, Recorder())


@posix
def test_a_client_that_cannot_be_run(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, "", monkeypatch)
    (tmp_path / "bin" / "npm").write_text("#!/no/such/interpreter\n")
    with pytest.raises(SourceError, match=r"npm cannot be run \(No such file or directory\)"):
        fetch_package("npm", "x", "1", workspace, Recorder())
