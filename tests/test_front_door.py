"""What one gets with `import rlploss`, and what one is told where a package is missing."""

import subprocess
import sys

import pytest

import rlploss

ROOMS = {"compare", "datasets", "estimators", "theory"}
EXTRAS = [
    "PIL", "dask", "jinja2", "matplotlib", "numba", "openpyxl", "pandas", "platformdirs", "pooch", "pyarrow", "rich", "scipy", "sklearn",
    "threadpoolctl", "typer",
]  # fmt: skip

WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {missing!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def python(code, *arguments, missing=()):
    """Run code in a Python in which these packages are not installed."""
    source = (WITHOUT.replace("{missing!r}", repr(set(missing))) if missing else "") + code
    return subprocess.run(
        [sys.executable, "-c", source, *arguments], capture_output=True, text=True, timeout=120
    )


def test_dir_lists_public_names_only():
    assert {*dir(rlploss)} == {*rlploss.__all__, *ROOMS, "__version__"}
    assert not [name for name in dir(rlploss) if name.startswith("_") and name != "__version__"]


def test_star_import():
    names = {}
    exec("from rlploss import *", names)
    assert {*rlploss.__all__} <= {*names}
    assert names["fit"] is rlploss.fit


def test_a_name_that_is_none():
    with pytest.raises(AttributeError, match="module 'rlploss' has no attribute 'fitt'"):
        rlploss.fitt  # noqa: B018 - reading it raises
    with pytest.raises(ImportError, match="cannot import name 'fitt' from 'rlploss'"):
        from rlploss import fitt  # noqa: F401 - importing it raises


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_rooms_load_on_first_use(name):
    code = f"import sys, rlploss; print('rlploss.{name}' in sys.modules, rlploss.{name}.__name__)"
    assert python(code).stdout.split() == ["False", f"rlploss.{name}"]


def test_importing_rlploss_is_light_and_its_names_load_no_extras():
    code = f"""
import sys, rlploss
print("torch" in sys.modules)
rlploss.fit
print(sorted({ ({*EXTRAS} - {"numba"})!r} & sys.modules.keys()))
"""
    assert python(code).stdout.splitlines() == ["False", "[]"]


@pytest.mark.slow
def test_type_checkers_see_the_names(tmp_path):
    """In strict mode: functions have their types, and what is no public name is an error."""
    mypy = pytest.importorskip("mypy.api")
    (tmp_path / "user.py").write_text(
        "import rlploss\nfrom rlploss import *\nfrom rlploss import Steps\n\n"
        "budget: Steps = Steps(3)\nnames: tuple[str, ...] = rlploss.datasets.names()\n"
        "version: str = rlploss.__version__\n"
        "wrong: str = rlploss.fit\nobjective: str = RLP()\nrlploss.nothing\n"
    )
    out, _, _ = mypy.run(
        ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path), str(tmp_path / "user.py")]
    )
    lines = [
        line.split(": ")[0].rpartition(":")[2] for line in out.splitlines() if "user.py" in line
    ]
    assert [line for line in lines if line.isdigit()] == ["8", "9", "10"], out


FIT = """
import rlploss, torch
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
for objective in (rlploss.RLP(subset_size=10), rlploss.MSE(batch_size=8)):
    rlploss.fit(rlploss.RegressionNet(3), X, X[:, :1], objective, budget=rlploss.Steps(3))
print(rlploss.datasets.load("linear").X.shape, sorted({*sys.modules} & MISSING))
"""


def test_torch_and_numpy_are_enough_to_train():
    done = python(FIT.replace("MISSING", repr({*EXTRAS})), missing=EXTRAS)
    assert done.stdout.strip() == "(6000, 5) []", done.stderr


DIAL = """
import numpy as np
from rlploss.estimators import RLPRegressorCV
X = np.random.default_rng(0).normal(size=(40, 2))
RLPRegressorCV(max_iter=2, cv=2, subset_sizes=[5], alphas=[0.01]).fit(X, X[:, 0]).plot()
"""
TO_SKLEARN = "needs sklearn, which is not installed: pip install 'rlploss[sklearn]'"


@pytest.mark.parametrize(
    ("code", "missing", "sentence"),
    [
        pytest.param("import rlploss.estimators", EXTRAS, TO_SKLEARN, id="import estimators"),
        pytest.param("import rlploss; rlploss.estimators", EXTRAS, TO_SKLEARN, id="estimators"),
        pytest.param(
            "import rlploss; rlploss.compare", EXTRAS, "pip install 'rlploss[lab]'", id="compare"
        ),
        pytest.param(
            "import rlploss; rlploss.compare",
            ["pandas"],
            "needs pandas, which is not",
            id="without pandas",
        ),
        pytest.param(
            "import rlploss; rlploss.datasets.load('diabetes')", EXTRAS, TO_SKLEARN, id="diabetes"
        ),
        pytest.param(
            "import rlploss; rlploss.datasets.load('digits')", EXTRAS, TO_SKLEARN, id="digits"
        ),
        pytest.param(
            "import rlploss; rlploss.datasets.load('moons')", EXTRAS, TO_SKLEARN, id="moons"
        ),
        pytest.param(
            DIAL, ["matplotlib"], "needs matplotlib, which is not installed: pip", id="plot"
        ),
    ],
)
def test_a_missing_package_is_told_with_its_remedy(code, missing, sentence):
    done = python(code, missing=missing)
    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize(
    "arguments", [["--version"], ["data", "list"], ["compare", "t.csv", "--target", "y"]]
)
def test_the_command_without_its_packages_is_one_sentence(arguments):
    done = python("from rlploss.cli import main; main()", *arguments, missing=EXTRAS)
    sentence = (
        "rlploss: the command needs typer, which is not installed: pip install 'rlploss[lab]'\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
