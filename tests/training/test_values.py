"""Objectives, optimisers and budgets as values: printed as code, to JSON and back, checked when
made."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rlploss import (
    MAE,
    MSE,
    RLP,
    SGD,
    Adam,
    AdamW,
    BatchLoss,
    CrossEntropy,
    EarlyStopping,
    Epochs,
    Huber,
    Pointwise,
    Problem,
    RegressionNet,
    RLPLoss,
    Steps,
    fit,
    fit_fleet,
)
from rlploss._values import Value, from_json, load_file
from rlploss.training.fit import train
from rlploss.training.job import as_budget, as_optimizer, make_job
from rlploss.training.loop import Supervision
from rlploss.training.objectives import as_objective


def absolute(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target).abs()


def mean_square(pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
    return (pred - target).square().mean()


class Losses:
    """A place for a function."""

    @staticmethod
    def fourth(pred: Tensor, target: Tensor) -> Tensor:
        return (pred - target) ** 4


VALUES: list[tuple[Value, str]] = [
    (RLP(), "RLP()"),
    (RLP(100), "RLP(100)"),
    (RLP(100, 50), "RLP(100, n_subsets=50)"),
    (RLP(n_subsets=50), "RLP(n_subsets=50)"),
    (RLP(9, probe="sum", intercept=True), "RLP(9, probe='sum', intercept=True)"),
    (RLP(9, intercept=False), "RLP(9, intercept=False)"),
    (
        RLP(
            9,
            8,
            subsets_per_step="all",
            probe="draw",
            ridge=1,
            draw_from="outside",
            method="paper",
            plan="each-epoch",
        ),
        (
            "RLP(9, n_subsets=8, subsets_per_step='all', probe='draw', ridge=1.0,"
            " draw_from='outside', method='paper', plan='each-epoch')"
        ),
    ),
    (RLP(mixup=0.25), "RLP(mixup=0.25)"),
    (
        RLP.paper(9, 8),
        (
            "RLP(9, n_subsets=8, subsets_per_step='all', probe='draw', intercept=False,"
            " method='paper')"
        ),
    ),
    (
        RLP.paper(9, 8, mixup=0.5),
        (
            "RLP(9, n_subsets=8, subsets_per_step='all', probe='sum', intercept=False,"
            " method='paper', mixup=0.5)"
        ),
    ),
    (RLP.released(9, 8), "RLP(9, n_subsets=8, subsets_per_step=1, intercept=False)"),
    (
        RLP.released(9, 8, float32_cutoff=True),
        "RLP(9, n_subsets=8, subsets_per_step=1, intercept=False, float32_cutoff=True)",
    ),
    (MSE(), "MSE()"),
    (MSE(64), "MSE(64)"),
    (MSE("all"), "MSE('all')"),
    (MSE(64, mixup=0.25), "MSE(64, mixup=0.25)"),
    (MAE(mixup=1), "MAE(mixup=1.0)"),
    (Huber(delta=0.5), "Huber(delta=0.5)"),
    (Huber(7, delta=2, mixup=0.1), "Huber(7, mixup=0.1, delta=2.0)"),
    (CrossEntropy(9), "CrossEntropy(9)"),
    (Pointwise(absolute), "Pointwise(absolute)"),
    (Pointwise(absolute, 9), "Pointwise(absolute, batch_size=9)"),
    (Pointwise(Losses.fourth, "all"), "Pointwise(Losses.fourth, batch_size='all')"),
    (BatchLoss(mean_square, 9), "BatchLoss(mean_square, batch_size=9)"),
    (Adam(), "Adam()"),
    (Adam(0.1), "Adam(0.1)"),
    (Adam(weight_decay=0.1), "Adam(weight_decay=0.1)"),
    (Adam(0.1, 0.2), "Adam(0.1, weight_decay=0.2)"),
    (AdamW(), "AdamW()"),
    (AdamW(1, 0.01), "AdamW(1.0)"),
    (AdamW(weight_decay=0), "AdamW(weight_decay=0.0)"),
    (SGD(0.1), "SGD(0.1)"),
    (SGD(0.1, 0.9, nesterov=True), "SGD(0.1, momentum=0.9, nesterov=True)"),
    (SGD(0.1, weight_decay=1e-4), "SGD(0.1, weight_decay=0.0001)"),
    (Steps(3), "Steps(3)"),
    (Epochs(3), "Epochs(3)"),
]


@pytest.mark.parametrize(("value", "code"), VALUES, ids=[code for _, code in VALUES])
def test_a_value_prints_as_the_code_that_makes_it(value: Value, code: str) -> None:
    assert repr(value) == code
    assert eval(code) == value
    assert hash(eval(code)) == hash(value)


@pytest.mark.parametrize("value", [value for value, _ in VALUES], ids=repr)
def test_a_value_comes_back_from_json(value: Value) -> None:
    text = json.dumps(value.to_json())
    assert from_json(json.loads(text)) == value
    assert json.loads(text)["kind"] == type(value).__name__


@given(
    size=st.none() | st.integers(1, 500),
    n=st.none() | st.integers(1, 500),
    per_step=st.none() | st.just("all") | st.integers(1, 9),
    probe=st.sampled_from(["subset", "draw", "expected", "sum"]),
    intercept=st.none() | st.booleans(),
    ridge=st.floats(0, 1e300),
    plan=st.sampled_from(["once", "each-epoch"]),
    mixup=st.none() | st.floats(1e-300, 1e300),
)
def test_any_rlp_there_and_back(size: Any, n: Any, per_step: Any, probe: str, intercept: Any, ridge: float, plan: str,
                                mixup: Any) -> None:  # fmt: skip
    value = RLP(
        size,
        n,
        subsets_per_step=per_step,
        probe=probe,
        intercept=intercept,
        ridge=ridge,
        plan=plan,
        mixup=mixup,
    )
    assert eval(repr(value)) == value
    assert from_json(json.loads(json.dumps(value.to_json()))) == value


@pytest.mark.parametrize(
    ("made", "plain"),
    [
        (lambda: RLP(np.int64(9), np.int32(8), ridge=np.float32(1)), RLP(9, 8, ridge=1)),
        (lambda: RLP(subsets_per_step=np.int64(2)), RLP(subsets_per_step=2)),
        (lambda: RLP(intercept=np.bool_(True)), RLP(intercept=True)),
        (lambda: MSE(np.int64(9), mixup=np.float64(0.5)), MSE(9, mixup=0.5)),
        (lambda: Huber(delta=np.float32(2)), Huber(delta=2)),
        (lambda: Adam(np.float64(0.5)), Adam(0.5)),
        (lambda: SGD(np.float64(0.5), momentum=np.float64(0.5), nesterov=np.bool_(True)), SGD(0.5, 0.5, nesterov=True)),
        (lambda: Steps(np.int64(5)), Steps(5)),
        (lambda: Epochs(np.int64(5)), Epochs(5)),
    ],
)  # fmt: skip
def test_numbers_of_numpy_become_plain(made: Callable[[], Value], plain: Value) -> None:
    assert repr(made()) == repr(plain)
    assert json.dumps(made().to_json()) == json.dumps(plain.to_json())


def test_values_are_frozen_and_compare_by_what_they_hold() -> None:
    assert RLP(9) == RLP(9)
    assert MSE(9) != MAE(9)
    assert Steps(3) != Epochs(3)
    assert len({RLP(9), RLP(9), RLP(8), MSE(9), MSE(9)}) == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        RLP(9).subset_size = 8
    assert dataclasses.replace(MSE(9), mixup=0.5) == MSE(9, mixup=0.5)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: RLP(0), "subset_size must be at least 1, got 0"),
    (lambda: RLP(2.5), r"subset_size must be a whole number, got 2\.5"),
    (lambda: RLP(True), "subset_size must be a whole number, got True"),
    (lambda: RLP(9, 0), "n_subsets must be at least 1, got 0"),
    (lambda: RLP(subsets_per_step=0), "subsets_per_step must be at least 1, got 0"),
    (lambda: RLP(subsets_per_step="some"), "subsets_per_step must be a whole number, got 'some'"),
    (lambda: RLP(probe="mean"), "probe must be one of"),
    (lambda: RLP(probe="subst"), 'did you mean "subset"'),
    (lambda: RLP(plan="never"), 'plan must be one of "once", "each-epoch"'),
    (lambda: RLP(method="random"), "method must be one of"),
    (lambda: RLP(draw_from="test"), "draw_from must be one of"),
    (lambda: RLP(ridge=-1), r"ridge must be finite and at least 0, got -1\.0"),
    (lambda: RLP(ridge=float("nan")), "ridge must be finite and at least 0, got nan"),
    (lambda: RLP(mixup=0), r"mixup must be above 0, got 0\.0"),
    (lambda: RLP(mixup=0.3, draw_from="outside"), 'draw_from="outside" has no meaning with mixup'),
    (lambda: RLP(float32_cutoff=True), "float32_cutoff=True is the loss of one released program.*use RLP.released"),
    (lambda: RLP.released(mixup=0.3, float32_cutoff=True), "float32_cutoff=True is the loss of one released program"),
    (lambda: RLP().shape(), r"RLP\(\) depends on the table until it is resolved; call resolve\(n_rows, n_features\)"),
    (lambda: MSE(0), "batch_size must be at least 1, got 0"),
    (lambda: MSE("some"), "batch_size must be a whole number, got 'some'"),
    (lambda: MSE(mixup=-1), r"mixup must be above 0, got -1\.0"),
    (lambda: MSE().rows_per_step, r"MSE\(\) depends on the table until it is resolved"),
    (lambda: Huber(delta=0), r"delta must be above 0, got 0\.0"),
    (lambda: Huber(delta="wide"), "delta must be a number, got 'wide'"),
    (lambda: Pointwise(3), r"Pointwise takes a function of \(pred, target\), got 3"),
    (lambda: Pointwise(nn.MSELoss), r"got <class .*MSELoss.*>; write Pointwise\(MSELoss\(\)\)"),
    (lambda: Pointwise(mean_square), r"does not \(missing a required argument: 'features'\); .* BatchLoss\?"),
    (lambda: BatchLoss(absolute), r"does not \(too many positional arguments\); or do you mean Pointwise\?"),
    (lambda: BatchLoss(RLPLoss), r"write BatchLoss\(RLPLoss\(\)\)"),
    (lambda: Pointwise(nn.Bilinear(1, 1, 1)), "must have no parameters of its own to train, got Bilinear with some"),
    (lambda: BatchLoss(WithWeights()), "must have no parameters of its own to train, got WithWeights with some"),
    (lambda: Adam(0), r"lr must be above 0, got 0\.0"),
    (lambda: Adam(float("inf")), "lr must be finite, got inf"),
    (lambda: Adam("fast"), "lr must be a number, got 'fast'"),
    (lambda: Adam(None), "lr must be a number, got None"),
    (lambda: SGD(None), "lr must be a number, got None"),
    (lambda: Huber(delta=None), "delta must be a number, got None"),
    (lambda: RLP(method=None), "method must be one of"),
    (lambda: EarlyStopping("mse", None), "patience must be a whole number, got None"),
    (lambda: EarlyStopping("mse", min_delta=-1), "min_delta must be finite and at least 0"),
    (lambda: Supervision(None), r"budget must be Epochs\(n\) or Steps\(n\), .* got None"),
    (lambda: Supervision(Steps(1), evaluate_every=2), r"evaluate_every must be Epochs\(n\) or Steps"),
    (lambda: Supervision(Steps(1), schedule="cosin"), 'schedule must be one of .*did you mean "cosine"'),
    (lambda: AdamW(weight_decay=-1), r"weight_decay must be finite and at least 0, got -1\.0"),
    (lambda: SGD(0.1, momentum=2), r"momentum must be in \[0, 1\], got 2\.0"),
    (lambda: SGD(0.1, nesterov=True), r"nesterov=True needs momentum above 0, got 0\.0; set momentum, or leave"),
    (lambda: Steps(0), r"Steps\(n\) must be at least 1, got 0"),
    (lambda: Epochs(1.5), r"Epochs\(n\) must be a whole number, got 1\.5"),
    (lambda: as_budget("budget", 7), r"budget must be Epochs\(n\) or Steps\(n\), so that a comparison always"),
    (lambda: as_objective("huberr"), 'did you mean "huber"'),
    (lambda: as_objective(MSE), r"objective must be a value, got the class MSE; write MSE\(\.\.\.\)"),
    (lambda: as_objective(absolute), "wrap a function of your own in Pointwise or BatchLoss"),
    (lambda: as_optimizer(SGD), r"optimizer must be a value, got the class SGD; write SGD\(\.\.\.\)"),
    (lambda: from_json({"kind": "Rlp"}), "kind must be one of .*got 'Rlp'"),
    (lambda: from_json({}), "kind must be one of .*got None"),
    (lambda: from_json({"kind": "Objective"}), "kind must be one of .*got 'Objective'"),
    (lambda: from_json({"kind": "OptimizerValue"}), "kind must be one of .*got 'OptimizerValue'"),
    (lambda: from_json({"kind": "MSE", "batch_size": -1}), "batch_size must be at least 1"),
]  # fmt: skip


class WithWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
        return self.scale * (pred - target).square().mean()


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_every_refusal(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MSE(9, 0.25),  # mixup by name only
        lambda: MSE(subset_size=3),
        lambda: RLP(batch_size=3),
        lambda: BatchLoss(mean_square, mixup=0.3),
        lambda: Pointwise(absolute, mixup=0.3),
        lambda: Adam(momentum=0.9),
        lambda: SGD(),
        lambda: RLP.released(9, 8, 7),
    ],
)
def test_what_means_nothing_cannot_be_written(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="argument"):
        make()


def test_names_stand_for_values_with_their_defaults() -> None:
    names = {
        "rlp": RLP(),
        "mse": MSE(),
        "mae": MAE(),
        "huber": Huber(),
        "cross_entropy": CrossEntropy(),
    }
    assert {name: as_objective(name) for name in names} == names
    assert (as_optimizer("adam"), as_optimizer("adamw")) == (Adam(), AdamW())
    assert as_optimizer(torch.optim.Adagrad) is torch.optim.Adagrad


# Functions


def test_a_function_of_a_module_is_described_and_loads() -> None:
    found = Pointwise(absolute).to_json()["function"]
    assert found["function"] == "absolute"
    assert found["where"] == __name__
    assert len(found["source"]) == 16
    assert from_json(Pointwise(absolute).to_json()).function is absolute
    assert from_json(Pointwise(Losses.fourth).to_json()).function is Losses.fourth


def test_a_function_of_a_file_loads_and_a_changed_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    source = (
        "def loss(pred, target):\n    return (pred - target).abs()\n\ndef other(pred, target):\n   "
        " return pred\n"
    )
    path.write_text(source)
    value = Pointwise(load_file(path).loss)
    text = json.dumps(value.to_json())
    assert json.loads(text)["function"]["where"] == str(path)
    assert from_json(json.loads(text)) == value

    def again(changed: str) -> Any:
        path.write_text(changed)
        for name in [name for name in sys.modules if name.startswith("rlploss_file_")]:
            del sys.modules[name]
        __import__("linecache").checkcache()
        return from_json(json.loads(text))

    assert again(source + "\n\nmore = 1\n").to_json() == value.to_json(), (
        "only the function itself counts"
    )
    with pytest.raises(
        ValueError, match=r"loss in .*mine\.py must be as it was .* but its source has changed"
    ):
        again(source.replace("abs()", "square()"))
    with pytest.raises(
        ValueError, match=r"loss must be a function in .*mine\.py, got none; put it back"
    ):
        again("def other(pred, target):\n    return pred\n")
    path.unlink()
    for name in [name for name in sys.modules if name.startswith("rlploss_file_")]:
        del sys.modules[name]
    with pytest.raises(ValueError, match="must be a Python file, got none that can be loaded"):
        from_json(json.loads(text))


def test_a_file_that_fails_leaves_no_half_module(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def loss(pred, target):\n    return pred\nraise KeyError('mine')\n")
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            load_file(path)


def inner() -> Callable[[Tensor, Tensor], Tensor]:
    def loss(pred: Tensor, target: Tensor) -> Tensor:
        return pred - target

    return loss


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda pred, target: pred - target, "<lambda>"),
        (inner(), "inner.<locals>.loss"),
        (functools.partial(torch.sub, alpha=2), "partial of "),
        (nn.MSELoss(reduction="none"), "MSELoss"),
    ],
)
def test_lambdas_closures_and_objects_print_but_do_not_load(function: Any, shown: str) -> None:
    value = Pointwise(function)
    assert shown in repr(value)
    described = json.loads(json.dumps(value.to_json()))
    assert described["function"]["where"] is None
    with pytest.raises(
        ValueError,
        match="cannot be loaded: only functions at the top of a module or file can; name it",
    ):
        from_json(described)


CLASSES = """
import torch

class Power:
    def __init__(self, power=3): self.power = power
    def __call__(self, pred, target): return (pred - target).abs() ** self.power

class Module(torch.nn.Module):
    def forward(self, pred, target): return (pred - target) ** 2
"""


def test_an_object_loads_where_its_class_without_arguments_makes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "classes.py"
    path.write_text(CLASSES)
    loaded = load_file(path)
    for made in (loaded.Power(), loaded.Module()):
        value = Pointwise(made)
        described = json.loads(json.dumps(value.to_json()))
        assert described["function"]["function"] == f"{type(made).__name__}()"
        for back in (from_json(described), pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            assert type(back.function).__name__ == type(made).__name__
            assert back.to_json() == value.to_json()
    assert Pointwise(loaded.Power(4)).to_json()["function"]["where"] is None


def test_objects_of_other_settings_are_told_apart() -> None:
    for one, other in (
        (BatchLoss(RLPLoss(ridge=0.1)), BatchLoss(RLPLoss(ridge=0.2))),
        (
            Pointwise(functools.partial(torch.sub, alpha=1)),
            Pointwise(functools.partial(torch.sub, alpha=2)),
        ),
    ):
        assert one.to_json()["function"]["source"] != other.to_json()["function"]["source"]
        assert one.to_json()["function"]["source"] == one.to_json()["function"]["source"]


def test_a_builtin_function_is_taken_on_trust() -> None:
    value = Pointwise(torch.sub)
    X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    assert fit(RegressionNet(3), X, X[:, 0], value, budget=Steps(2)).stopped == "budget"


def test_the_loss_itself_is_a_batch_loss() -> None:
    value = BatchLoss(RLPLoss(intercept=True), 9)
    assert value.resolve(5, 3) == BatchLoss(value.function, 5)
    assert not value.has_generator
    assert BatchLoss(RLPLoss(probe="draw", generator=torch.Generator())).has_generator
    assert repr(value.function) in repr(value)


# Problems and jobs


def table(n: int = 20, d: int = 3) -> tuple[Tensor, Tensor]:
    X = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return X, X.sum(1)


def job(**more: Any) -> Any:
    problem = more.pop("problem", Problem(*table(), seed=3))
    return make_job(RegressionNet(3), problem, **more)


def test_a_problem_is_data_first_and_all_else_by_name() -> None:
    X, y = table()
    problem = Problem(X, y, seed=4, objective=RLP(5), optimizer=Adam(0.1), budget=Steps(7))
    assert (problem.X is X, problem.y is y, problem.seed, problem.validation) == (
        True,
        True,
        4,
        None,
    )
    with pytest.raises(TypeError, match="positional"):
        Problem(X, y, 4)
    with pytest.raises(TypeError, match="unexpected keyword"):
        Problem(X, y, lr=0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.seed = 3
    assert problem != dataclasses.replace(problem), "tables are not compared number by number"


def test_a_job_has_every_default_filled_in() -> None:
    made = job()
    assert made.objective == RLP(10, 1000, subsets_per_step=1, intercept=True)
    assert (made.optimizer, made.seed, made.table.n_rows) == (Adam(), 3, 20)
    assert (made.steps_per_epoch, made.objective.samples(3, 20)) == (1000, 30)
    assert Epochs(2).steps(made.steps_per_epoch) == 2000
    pointwise = job(objective=MSE(8))
    assert pointwise.steps_per_epoch == 3
    assert [pointwise.objective.samples(step, 20) for step in range(7)] == [
        0,
        8,
        16,
        20,
        28,
        36,
        40,
    ]


def test_what_a_problem_sets_wins() -> None:
    problem = Problem(*table(), objective="mse", optimizer="adamw", budget=Steps(9), seed=8)
    made = job(problem=problem, objective=RLP(), optimizer=Adam())
    assert (made.objective, made.optimizer, made.seed) == (MSE(20), AdamW(), 8)
    (history,) = fit_fleet(lambda seed: RegressionNet(3), [problem], budget=Steps(5))
    assert history.settings["budget"] == Steps(9)
    assert history.last("step") == 9


def test_rates_of_schedules() -> None:
    def factors(schedule: Any, first: int, last: int) -> Any:
        return Supervision(Steps(10), schedule=schedule).rate_factors(first, last, 10)

    np.testing.assert_allclose(factors("linear", 0, 10), 1 - np.arange(10) / 10)
    np.testing.assert_allclose(
        factors("cosine", 3, 6), 0.5 * (1 + np.cos(np.pi * np.arange(3, 6) / 10))
    )
    np.testing.assert_allclose(factors(lambda step, total: step / total, 3, 6), [0.3, 0.4, 0.5])
    assert factors(None, 3, 6) is None


def test_a_job_is_described_in_plain_data() -> None:
    described = json.loads(json.dumps(job().describe()))
    assert described["model"].startswith("RegressionNet(fc1.weight [32, 3] torch.float32")
    X, y = table()
    assert (
        job(problem=Problem(X + 1, y)).describe()["data"]
        != job(problem=Problem(X, y)).describe()["data"]
    )


def test_validation_rows_that_are_the_same_objects_are_read_once() -> None:
    V = table(9)
    known: dict[Any, Any] = {}
    jobs = [job(problem=Problem(*table(), seed=s, validation=V), known=known) for s in range(3)]
    assert len({id(made.evaluator) for made in jobs}) == 1
    again = job(problem=Problem(*table(), validation=table(9)), known=known)
    assert again.evaluator is not jobs[0].evaluator


def test_training_goes_on_with_the_optimisers_state() -> None:
    """Twice 30 steps with the state handed over are 60 steps, for either engine: rows are all read
    in every step."""
    X, y = table(24)
    for engine in ("torch", "kernel"):
        for optimizer in (Adam(0.01), SGD(0.01, momentum=0.9)):
            whole = RegressionNet(3)
            parts = RegressionNet(3)
            parts.load_state_dict(whole.state_dict())
            fit(whole, X, y, MSE("all"), budget=Steps(60), optimizer=optimizer, engine=engine)
            state = None
            for _ in range(2):
                problem = Problem(X, y, objective=MSE("all"), optimizer=optimizer)
                watch = Supervision(Steps(30), engine=engine if state is None else "auto")
                (loop,) = train([(make_job(parts, problem, state=state), watch)])
                state = loop.state
                assert state["engine"] == engine
            for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
                assert torch.equal(a, b)


def test_a_fleet_takes_a_generator_of_problems() -> None:
    X, y = table()
    fleet = fit_fleet(
        lambda seed: RegressionNet(3),
        (Problem(X, y, seed=s) for s in range(3)),
        MSE(),
        budget=Steps(2),
    )
    assert [h.settings["seed"] for h in fleet] == [0, 1, 2]
