"""What a newcomer meets first: the help, and the sentence where scikit-learn is missing."""

import inspect
import re
import subprocess
import sys

import pytest

from rlploss.estimators import (
    NetworkClassifierCV,
    NetworkRegressorCV,
    RLPClassifier,
    RLPClassifierCV,
    RLPRegressor,
    RLPRegressorCV,
)

CROSS_VALIDATED = [NetworkRegressorCV, NetworkClassifierCV, RLPRegressorCV, RLPClassifierCV]

HIDDEN = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.parametrize("estimator", [RLPRegressor, RLPClassifier, *CROSS_VALIDATED])
def test_help_explains_every_parameter(estimator):
    text = inspect.getdoc(estimator)
    parameters = text.split("Parameters\n----------\n")[1].split("\n\nAttributes")[0]
    told = dict(re.findall(r"^(\w+) : .*, default=(.*)\n    \S", parameters, re.M))
    wanted = {name: repr(p.default) for name, p in inspect.signature(estimator).parameters.items()}
    assert told == wanted
    assert set(wanted) == set(estimator().get_params())
    assert not re.search(r"\bas in\b|\bthose of `RLP|\{parameters\}|\{attributes\}", text)


@pytest.mark.parametrize("estimator", [RLPRegressor, RLPClassifier, *CROSS_VALIDATED])
def test_help_names_every_fitted_attribute(estimator):
    settings = {"max_iter": 2, "random_state": 0, "hidden_layer_sizes": (4,)}
    X = [[float(i % 7), float(i % 5)] for i in range(40)]
    model = estimator(**settings).fit(X, [i % 2 for i in range(40)])
    attributes = inspect.getdoc(estimator).split("Attributes\n----------\n")[1]
    for name in vars(model):
        if name.endswith("_") and not name.startswith("_"):
            assert re.search(rf"^(\w+, )*{name}(, \w+)* : ", attributes, re.M), name


@pytest.mark.parametrize(
    "module", ["rlploss.estimators", "rlploss.estimators.network_cv", "rlploss.estimators.dial"]
)
def test_without_scikit_learn_the_remedy_is_told(module):
    code = f"{HIDDEN.format(package='sklearn')}\nimport {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert (
        last == "rlploss._extras.MissingExtra: rlploss.estimators needs sklearn, which is not"
        " installed: "
        "pip install 'rlploss[sklearn]'"
    )


def test_without_matplotlib_the_remedy_is_told():
    code = """
from rlploss.estimators import RLPRegressorCV
rows = [[float(i % 7)] for i in range(20)]
model = RLPRegressorCV(cv=2, max_iter=1, hidden_layer_sizes=(4,), random_state=0).fit(rows, [r[0] for r in rows])
model.plot()
"""
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(package="matplotlib") + code],
        capture_output=True,
        text=True,
    )
    last = done.stderr.strip().splitlines()[-1]
    said = "plot needs matplotlib, which is not installed: pip install 'rlploss[lab]'"
    assert last == f"rlploss._extras.MissingExtra: {said}"
