from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rlploss import __version__, cli
from rlploss.datasets import DatasetUnavailable, names, registry
from rlploss.datasets.sources import DataFile


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("RLPLOSS_DATA", str(directory))
    return directory


def put_wine(cache: Path) -> list[Path]:
    """Files of the right names and sizes, and of the wrong content."""
    directory = cache / "wine"
    directory.mkdir(parents=True)
    paths = []
    for file in registry.entry("wine").files:
        paths.append(directory / file.name)
        paths[-1].write_bytes(b"\x00" * file.size)
    return paths


def test_list_shows_every_dataset_within_80_columns(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    put_wine(cache)
    assert cli.run(["data", "list"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "ROWS", "FEATURES", "TASK", "SIZE", "CACHED"]
    assert max(len(line) for line in lines[:-1]) <= 80
    rows: dict[str, str] = {}
    for line in lines[:-2]:
        if not line.startswith(" "):
            name = line.split()[0]
        rows[name] = " ".join([rows.get(name, ""), *line.split()]).strip()
    assert tuple(rows) == names()
    assert rows["wine"].startswith(
        "wine 6497 11 regression 0.3 MB yes UCI Machine Learning Repository"
    )
    assert rows["california"].startswith("california 20640 8 regression 2.1 MB no 1990 U.S. census")
    assert rows["linear"].startswith("linear 6000 5 regression - not needed generated, seed 0")
    assert rows["mnist"].endswith("from its mirrors; also for reconstruction")
    assert lines[-1] == f"Cache: {cache}"


def test_get_of_what_needs_no_files(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert cli.run(["data", "get", "linear", "moons", "linear"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "linear: needs no files",
        "moons: needs no files",
    ]
    assert not cache.exists()


def test_get_says_what_it_has(
    capsys: pytest.CaptureFixture[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    monkeypatch.setattr(registry, "fetch", lambda name, **options: fetched.append(name))
    assert cli.run(["data", "get", "wine", "california"]) == 0
    assert fetched == ["wine", "california"]
    assert capsys.readouterr().out.splitlines() == [
        f"wine: verified, 0.3 MB, in {cache / 'wine'}",
        f"california: verified, 2.1 MB, in {cache / 'california'}",
    ]


def test_get_goes_on_after_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, **options: object) -> None:
        if name == "wine":
            raise DatasetUnavailable("wine: no source could deliver it")

    monkeypatch.setattr(registry, "fetch", fetch)
    assert cli.run(["data", "get", "wine", "california"]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("california: verified")
    assert output.err == "rlploss: wine: no source could deliver it\n"


def test_verify(
    capsys: pytest.CaptureFixture[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(["data", "verify"]) == 0  # nothing there, nothing wrong
    assert all(line.endswith(": not there") for line in capsys.readouterr().out.splitlines())
    assert cli.run(["data", "verify", "wine"]) == 1  # asked for by name, and not there
    paths = put_wine(cache)
    capsys.readouterr()
    assert cli.run(["data", "verify"]) == 1
    lines = capsys.readouterr().out.splitlines()
    for path in paths:
        assert any(line.startswith(f"{path}: its SHA-256 is ") for line in lines)
        assert path.exists()
    monkeypatch.setattr(DataFile, "read", lambda *_: (b"", "ok"))
    assert cli.run(["data", "verify", "wine"]) == 0


def test_verify_hashes_shared_files_once(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["data", "verify"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines))
    assert sum("test_batch.bin" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["data", "get", "linear", "win"],
            "dataset name must be one of .* got 'win'; did you mean \"wine\"?",
        ),
        (["data", "verify", "cifar"], "got 'cifar'; did you mean \"cifar10\"?"),
        (["data", "get"], "Missing argument 'NAME'"),
        (["data", "fetch"], "No such command 'fetch'"),
        (["dta"], "No such command 'dta'"),
        (["data", "list", "--wide"], "No such option:? '?--wide"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], cache: Path, arguments: list[str], message: str
) -> None:
    import re

    assert cli.run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("rlploss: ")
    assert re.search(message, output.err)
    assert not cache.exists()


def test_a_cache_that_is_a_file(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    cache.write_bytes(b"")
    assert cli.run(["data", "get", "wine"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "cannot be used (Not a directory)" in error


@pytest.mark.parametrize("arguments", [[], ["data"], ["--help"], ["data", "--help"]])
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.run(arguments) == (0 if "--help" in arguments else 2)
    output = capsys.readouterr()
    assert "Usage" in output.out + output.err
    assert "rlploss: " not in output.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        [],
        *([name, "--help"] for name in ("data", "reproduce", "report", "compare")),
    ],
    ids=" ".join,
)
def test_help_and_version_come_at_once(arguments: list[str]) -> None:
    """Nothing slow is imported: they take about a quarter of a second."""
    code = (
        "import sys; from rlploss import cli; cli.run(sys.argv[1:]); "
        "print([name for name in ('torch', 'numpy', 'pandas', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_a_fault_of_ours_is_not_called_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, **options: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(registry, "fetch", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        cli.run(["data", "get", "wine"])


def test_ctrl_c_is_clean(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(name: str, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "fetch", stopped)
    assert cli.run(["data", "get", "wine"]) == 130
    assert (
        capsys.readouterr().err.strip() == "rlploss: stopped; this goes on: rlploss data get wine"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_in_the_middle_of_a_fetch(cache: Path, tmp_path: Path) -> None:
    """A client that takes for ever, a real signal: no traceback, no half-written file, the client
    gone."""
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(
        f"#!{sys.executable}\nimport os, time\nopen({str(tmp_path / 'pid')!r},"
        " 'w').write(str(os.getpid()))\nos.setsid()\ntime.sleep(600)\n"
    )
    npm.chmod(0o755)
    code = textwrap.dedent("""
        import dataclasses
        from rlploss import cli
        from rlploss.datasets import registry
        item = registry.ENTRIES["mnist"]
        registry.ENTRIES["mnist"] = dataclasses.replace(item, sources=item.sources[-1:])
        cli.main()
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", code, "data", "get", "mnist"],
        env={**os.environ, "PATH": f"{npm.parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(600):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "rlploss: stopped; this goes on: rlploss data get mnist"
    assert "Traceback" not in error
    assert {path.name for path in (cache / "mnist").iterdir()} == {".lock"}
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        result = subprocess.run(
            [sys.executable, "-c", "from rlploss import cli; cli.main()", "data", "list"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.stderr == ""
    assert result.returncode == 1
