import pytest

from rlploss.lab import store


@pytest.fixture
def package(tmp_path, monkeypatch):
    root = tmp_path / "rlploss"
    (root / "lab").mkdir(parents=True)
    (root / "a.py").write_text('"""Doc."""\nfrom rlploss.b import f\n\n\ndef g():\n    """Doc."""\n    return f()\n')
    (root / "b.py").write_text("from rlploss import c\n\n\ndef f():\n    return c.X\n")
    (root / "c.py").write_text("X = 1\n")
    (root / "_checks.py").write_text("Y = 1\n")
    (root / "unused.py").write_text("Z = 1\n")
    monkeypatch.setattr(store, "__file__", str(root / "lab" / "store.py"))
    store.code_hash.cache_clear()
    yield root
    store.code_hash.cache_clear()


def rehash():
    store.code_hash.cache_clear()
    return store.code_hash("rlploss.a")


def test_code_that_matters_changes_the_hash_and_words_do_not(package):
    before = rehash()
    (package / "c.py").write_text("X = 1  # a comment\n\n\n")
    (package / "a.py").write_text((package / "a.py").read_text().replace("Doc.", "Other words."))
    (package / "unused.py").write_text("Z = 2\n")
    (package / "_checks.py").write_text("Y = 2\n")
    assert rehash() == before
    (package / "c.py").write_text("X = 2\n")
    assert rehash() != before


def test_code_version_of_the_real_package_covers_the_loss_and_the_loop():
    store.code_hash.cache_clear()
    assert len(store.code_version("rlploss.lab.train")) == 64
    assert store.code_version("rlploss.lab.train") != store.code_version("rlploss.loss.planes")


def test_unknown_modules_are_named():
    with pytest.raises(ValueError, match=r"root must name a module of rlploss, got 'rlploss\.nothing'"):
        store.code_hash("rlploss.nothing")


def test_versions_and_machine_are_plain():
    assert store.versions()["torch"].startswith("2.")
    assert store.machine()["cores"] >= 1
