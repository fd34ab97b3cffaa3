"""`fit`: it learns, counts, measures, stops and leaves no traces. By both engines where it
matters."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlploss import (
    MAE,
    MSE,
    RLP,
    SGD,
    Adam,
    Autoencoder,
    BatchLoss,
    CrossEntropy,
    DivergenceError,
    EarlyStopping,
    Epochs,
    Event,
    Huber,
    MoonsNet,
    MSEEquivalentWarning,
    Problem,
    Progress,
    RegressionNet,
    RLPLoss,
    Steps,
    fit,
    fit_fleet,
    rlp_loss,
    seeded,
)
from rlploss.training.evaluation import accuracy, f1
from rlploss.training.objectives import Objective


@pytest.fixture(params=["torch", "kernel"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def data(n: int = 80, d: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=generator)
    return X, torch.sin(X[:, 0]) + X[:, 1]


def network(d: int = 3, outputs: int = 1) -> nn.Module:
    return seeded(lambda: RegressionNet(d, outputs), 0)


# It learns


@pytest.mark.parametrize(
    ("objective", "lr"),
    [
        ("mse", 0.01),
        (MAE(), 0.01),
        (Huber(), 0.01),
        (MSE(mixup=0.25), 0.01),
        ("rlp", 0.01),
        (RLP.released(), 0.01),
        (RLP.paper(), 0.02),
        (RLP(probe="expected"), 0.01),
        (RLP(probe="draw", plan="each-epoch"), 0.01),
        (RLP(mixup=0.25), 0.01),
        (RLP.released(mixup=0.25), 0.01),
        (RLP.paper(n_subsets=40, mixup=0.25), 0.02),
    ],
)
def test_every_objective_learns(objective: Objective | str, lr: float) -> None:
    X, y = data()
    history = fit(
        network(), X, y, objective, budget=Steps(300), evaluate_every=Steps(50), optimizer=Adam(lr)
    )
    assert history["loss"][-1] < 0.3 * history["loss"][1]


@pytest.mark.parametrize(
    "objective", [CrossEntropy(), CrossEntropy(mixup=0.25), RLP(40), MSE(), RLP(40, mixup=0.25)]
)
def test_classification_learns(objective: Objective) -> None:
    X, _ = data(120, 2)
    labels = (X[:, 0] * X[:, 1] > 0).long()
    output = "logits" if isinstance(objective, CrossEntropy) else "sigmoid"
    model = seeded(lambda: MoonsNet(output=output), 0)
    history = fit(
        model,
        X,
        labels,
        objective,
        budget=Steps(400),
        optimizer=Adam(0.01),
        validation=(X, labels),
        metrics=("accuracy", "f1"),
    )
    assert history["accuracy"][0] < 0.7
    assert history.last("accuracy") > 0.9
    assert history.last("f1") > 0.9


def test_reconstruction_learns_with_and_without_naming_the_target(engine: str) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.sigmoid(
        torch.randn(100, 2, generator=generator) @ torch.randn(2, 12, generator=generator)
    )
    curves = []
    for y in (None, X):
        model = seeded(lambda: Autoencoder(12, latent=4), 0)
        history = fit(
            model,
            X,
            y,
            RLP(),
            budget=Steps(300),
            optimizer=Adam(0.01),
            validation=(X, y),
            engine=engine,
        )
        assert history.last("mse") < 0.4 * history["mse"][0]
        curves.append(history["mse"])
    np.testing.assert_array_equal(*curves)


def test_numpy_arrays_and_one_dimensional_outputs() -> None:
    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.slope * x

    x = np.linspace(-1, 1, 30)
    model = Line()
    fit(model, x, 2 * x, MSE(), budget=Steps(200), optimizer=Adam(0.1))
    assert math.isclose(float(model.slope.detach()), 2, rel_tol=1e-3)


# Its axes


@pytest.mark.parametrize(
    ("objective", "rows", "steps"),
    [
        (MSE(30), 80, 3),
        (MSE("all", mixup=0.25), 80, 1),
        (RLP(12, 7), 84, 7),
        (RLP(12, 7, subsets_per_step=3), 84, 3),
        (RLP.paper(12, 7), 84, 1),
    ],
)
def test_axes_agree_with_each_other(
    objective: Objective, rows: int, steps: int, engine: str
) -> None:
    X, y = data()
    by_epoch = fit(network(), X, y, objective, budget=Epochs(4), engine=engine)
    np.testing.assert_array_equal(by_epoch["epoch"], np.arange(5))
    np.testing.assert_array_equal(by_epoch["step"], steps * np.arange(5))
    np.testing.assert_array_equal(by_epoch["samples"], rows * np.arange(5))
    assert (np.diff(by_epoch["seconds"]) > 0).all()
    assert by_epoch["seconds"][0] == 0
    by_step = fit(
        network(), X, y, objective, budget=Steps(4 * steps), evaluate_every=Steps(1), engine=engine
    )
    np.testing.assert_array_equal(by_step["step"], np.arange(4 * steps + 1))
    np.testing.assert_allclose(by_step["epoch"], by_step["step"] / steps)
    np.testing.assert_array_equal(by_step["samples"][::steps], by_epoch["samples"])
    # the loss of an entry is the mean over the steps since the one before
    means = by_step["loss"][1:].reshape(4, steps).mean(1)
    np.testing.assert_allclose(by_epoch["loss"][1:], means, rtol=1e-6)


def test_seconds_leave_evaluation_and_callbacks_out(engine: str) -> None:
    X, y = data()

    def slow(event: Event) -> None:
        time.sleep(0.05)

    started = time.perf_counter()
    history = fit(
        network(), X, y, MSE(), budget=Steps(10), evaluate_every=Steps(1), callbacks=[slow], engine=engine
    )  # fmt: skip
    assert history.last("seconds") < time.perf_counter() - started - 10 * 0.05


def test_evaluations_always_include_the_start_and_the_end(engine: str) -> None:
    X, y = data()
    history = fit(network(), X, y, MSE(), budget=Steps(25), evaluate_every=Steps(10), engine=engine)
    np.testing.assert_array_equal(history["step"], [0, 10, 20, 25])
    assert math.isnan(history["loss"][0])
    assert (history.stopped, history.model is not None, len(history)) == ("budget", True, 4)
    with pytest.raises(
        ValueError, match=r'the column must be one of "step", .*"loss", got \'mse\''
    ):
        history["mse"]


# Metrics


def test_metrics_against_their_definitions() -> None:
    X, y = data()
    V, w = data(50, seed=1)
    model = network()
    names = ("mse", "mae", "rlp")

    def largest(pred: Tensor, target: Tensor, features: Tensor) -> float:
        assert features.shape == (50, 3)
        return float((pred - target).abs().max())

    history = fit(
        model, X, y, MSE(), budget=Steps(30), validation=(V, w), metrics=(*names, largest)
    )
    with torch.no_grad():
        pred = model(V).squeeze(1)
    gap = (pred - w).double()
    assert history.last("mse") == pytest.approx(float(gap.square().mean()), rel=1e-5)
    assert history.last("mae") == pytest.approx(float(gap.abs().mean()), rel=1e-5)
    assert history.last("rlp") == pytest.approx(
        float(rlp_loss(pred, w, V, intercept=False)), rel=1e-4
    )
    assert history.last("largest") == pytest.approx(float(gap.abs().max()), rel=1e-5)


def test_accuracy_and_macro_f1_against_counting() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        pred = torch.randn(40, 4, generator=generator)
        pred[..., 3] = -9  # a class that is never predicted, nor true below: it does not count
        true = torch.randint(3, (40,), generator=generator)
        target = nn.functional.one_hot(true, 4).float()
        said = pred.argmax(-1)
        scores = []
        for c in range(3):
            hit = int(((said == c) & (true == c)).sum())
            wrong = int(((said == c) != (true == c)).sum())
            scores.append(2 * hit / (2 * hit + wrong))
        assert f1(pred, target) == pytest.approx(sum(scores) / 3)
        assert accuracy(pred, target) == pytest.approx(float((said == true).double().mean()))


def test_validation_rows_are_measured_in_parts_of_one_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rlploss.training import evaluation

    X, y = data()
    labels = (y > 0).long()
    settings: dict[str, Any] = {
        "budget": Steps(3),
        "validation": (X, labels),
        "metrics": ("mse", "f1", "cross_entropy"),
    }
    whole = fit(network(outputs=2), X, labels, CrossEntropy(), **settings)
    monkeypatch.setattr(evaluation, "_ROWS", 7)
    parts = fit(network(outputs=2), X, labels, CrossEntropy(), **settings)
    for name in settings["metrics"]:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-6)


def test_evaluation_runs_in_evaluation_mode() -> None:
    modes = []

    class Watcher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            modes.append((self.training, x.shape[0]))
            return self.line(x)

    X, y = data()
    model = Watcher().eval()
    fit(model, X, y, MSE(10), budget=Steps(2), validation=data(33))
    assert {mode for mode, rows in modes if rows == 33} == {False}
    assert {mode for mode, rows in modes if rows == 10} == {True}
    assert not model.training, "the mode is put back"


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_even_after_an_error(training: bool, engine: str) -> None:
    X, y = data()
    model = network().train(training)

    def fail(event: Event) -> None:
        assert event.model().training
        if event.step:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fit(
            model,
            X,
            y,
            MSE(10),
            budget=Steps(2),
            callbacks=[fail],
            validation=data(5),
            engine=engine,
        )
    assert model.training is training


# Stopping


def test_early_stopping_restores_the_best_weights(engine: str) -> None:
    X, y = data(30)
    kept: dict[int, Tensor] = {}

    def keep(event: Event) -> None:
        kept[event.step] = event.model().fc1.weight.detach().clone()

    model = network()
    noisy = y + torch.randn(30, generator=torch.Generator().manual_seed(1))
    history = fit(
        model,
        X,
        noisy,
        MSE(),
        budget=Steps(3000),
        evaluate_every=Steps(10),
        optimizer=Adam(0.03),
        validation=data(40, seed=5),
        early_stopping=EarlyStopping("mse", patience=3),
        callbacks=[keep],
        engine=engine,
    )
    assert history.stopped == "early stopping"
    assert history.best_step == history["step"][history["mse"].argmin()]
    assert history.last("step") == history.best_step + 3 * 10
    assert torch.equal(model.fc1.weight, kept[history.best_step])


def test_the_best_weights_are_put_back_at_the_end_of_the_budget_too(engine: str) -> None:
    X, y = data(30)
    noisy = y + torch.randn(30, generator=torch.Generator().manual_seed(1))
    kept: dict[int, Tensor] = {}

    def keep(event: Event) -> None:
        kept[event.step] = event.model().fc1.weight.detach().clone()

    for restore in (True, False):
        model = network()
        history = fit(
            model, X, noisy, MSE(), budget=Steps(240), evaluate_every=Steps(20), optimizer=Adam(0.05), callbacks=[keep],
            early_stopping=EarlyStopping("mse", 50, restore_best=restore), validation=data(40, seed=5), engine=engine,
        )  # fmt: skip
        assert history.stopped == "budget"
        assert history.best_step != 240, "the test needs a run whose best is not its last"
        assert torch.equal(model.fc1.weight, kept[int(history.best_step or 0) if restore else 240])


def test_early_stopping_knows_that_accuracy_goes_up() -> None:
    X, _ = data(60, 2)
    labels = (X[:, 0] > 0).long()
    model = seeded(MoonsNet, 0)
    history = fit(
        model,
        X,
        labels,
        CrossEntropy(),
        budget=Steps(500),
        evaluate_every=Steps(10),
        validation=(X, labels),
        early_stopping=4,
    )
    assert history.best_step == history["step"][history["accuracy"].argmax()]


def test_a_callback_can_stop_the_run(engine: str) -> None:
    X, y = data()
    history = fit(
        network(),
        X,
        y,
        MSE(),
        budget=Epochs(50),
        callbacks=[lambda event: event.epoch >= 2],
        engine=engine,
    )
    assert (history.stopped, history.last("epoch")) == ("callback", 2)
    # only True stops: what a callback returns by the way does not
    history = fit(
        network(), X, y, MSE(), budget=Epochs(3), callbacks=[lambda event: 1, lambda event: "yes"]
    )
    assert history.stopped == "budget"


def test_progress_counts_to_the_end_with_time_left(engine: str) -> None:
    X, y = data()
    told: list[Progress] = []
    fit(network(), X, y, MSE(), budget=Steps(50), progress=told.append, engine=engine)
    assert told[-1].step == told[-1].total_steps == 50
    assert told[-1].remaining == 0
    assert [p.step for p in told] == sorted(p.step for p in told)


def test_a_long_run_is_reported_now_and_then(engine: str) -> None:
    X, y = data()
    told: list[Progress] = []

    def stop(event: Event) -> bool:
        return len(told) >= 4

    steps = 10**7
    fit(
        network(), X, y, MSE(), budget=Steps(steps), progress=told.append, callbacks=[stop], engine=engine,
        evaluate_every=Steps(500 if engine == "torch" else 20_000),
    )  # fmt: skip
    middle = [p for p in told if 0 < p.step < steps]
    assert len(middle) >= 2
    assert all(0 < p.remaining < math.inf for p in middle)
    assert told[-1].step == steps, "a run that stops early is done"


def test_progress_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = data()
    fit(network(), X, y, MSE(), budget=Steps(200), progress=True)
    assert capsys.readouterr().err == "100% step 200 of 200, done\n"


# Divergence


def test_divergence_names_step_rate_and_cause_and_keeps_finite_weights(engine: str) -> None:
    X, y = data()
    model = network()
    settings: dict[str, Any] = {"budget": Steps(50), "optimizer": SGD(1e12), "engine": engine}
    with pytest.raises(
        DivergenceError,
        match=r"became (inf|nan) at step \d+ \(epoch .*lr 1e\+12; likely cause: a learning",
    ):
        fit(model, X, y, MSE(), **settings)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    history = fit(network(), X, y, MSE(), on_divergence="record", **settings)
    assert (history.stopped, "likely cause" in history.message) == ("diverged", True)
    assert history.model is not None
    for a, b in zip(model.parameters(), history.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(DivergenceError, match=r"values as large as .* in the data: standardise"):
        fit(network(), X * 1e9, y, MSE(), **settings)
    with pytest.raises(DivergenceError, match='heavy tail of probe="draw"'):
        fit(network(), X, y, RLP(probe="draw"), **settings)


@pytest.mark.parametrize("steps", [1, 5])
def test_an_update_that_overflows_is_seen_wherever_a_stretch_ends(steps: int, engine: str) -> None:
    X, y = data()
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    settings: dict[str, Any] = {
        "budget": Steps(steps),
        "evaluate_every": Steps(5),
        "engine": engine,
    }
    history = fit(model, X, 100 * y, MSE(), optimizer=SGD(3e38), on_divergence="record", **settings)
    assert history.stopped == "diverged"
    assert "the loss became inf at step 0 " in history.message
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_weights_that_are_not_finite_at_the_start_are_told(engine: str) -> None:
    X, y = data()
    model = network()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(DivergenceError, match="became nan at step 0"):
        fit(model, X, y, MSE(), budget=Steps(3), engine=engine)


# Defaults and presets


def test_default_sizes() -> None:
    def sizes(n_rows: int, n_features: int, **more: Any) -> tuple[int, int]:
        return RLP(intercept=False, **more).resolve(n_rows, n_features).shape()[:2]

    assert sizes(3000, 8) == (100, 1000)
    assert sizes(50, 8) == (25, 1000)
    assert sizes(20, 12) == (14, 1000)
    assert sizes(10, 12)[0] == 5  # N does not allow p + 2
    assert sizes(6, 1) == (3, 20)
    assert sizes(14, 12, probe="draw", draw_from="outside")[0] == 7
    assert RLP().resolve(20, 12).shape() == (15, 1000, 1)
    assert MSE().resolve(20, 3) == MSE(20)
    assert MSE().resolve(2000, 3) == MSE(100)
    assert MSE(7).resolve(5, 3) == MSE(5)
    assert MSE("all").resolve(2000, 3) == MSE(2000)


def test_the_defaults_in_force_are_told() -> None:
    X, y = data(300)
    settings = fit(network(), X, y, budget=Steps(1)).settings
    told = {
        "objective": RLP(100, 1000, subsets_per_step=1, intercept=True),
        "optimizer": Adam(1e-3),
        "budget": Steps(1),
    }
    assert {name: settings[name] for name in told} == told
    assert (settings["n_rows"], settings["seed"], settings["schedule"], settings["clip_grad"]) == (
        300,
        0,
        None,
        None,
    )
    assert (
        fit(network(), X, y, RLP(10, 5, probe="sum"), budget=Steps(1))
        .settings["objective"]
        .intercept
        is False
    )
    assert fit(network(), X, y, "mse", optimizer="adamw", budget=Epochs(1)).settings[
        "budget"
    ] == Epochs(1)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (
            RLP.paper(n_subsets=6),
            {"probe": "draw", "draw_from": "train", "method": "paper", "subsets_per_step": 6},
        ),
        (
            RLP.released(n_subsets=6),
            {"probe": "subset", "method": "balanced", "subsets_per_step": 1},
        ),
        (
            RLP.paper(n_subsets=6, mixup=0.2),
            {"probe": "sum", "method": "paper", "subsets_per_step": 6, "mixup": 0.2},
        ),
        (
            RLP.released(n_subsets=6, mixup=0.2),
            {"probe": "subset", "subsets_per_step": 1, "mixup": 0.2},
        ),
        (
            RLP.released(n_subsets=6, float32_cutoff=True),
            {"probe": "subset", "subsets_per_step": 1, "float32_cutoff": True},
        ),
    ],
)
def test_what_presets_set(objective: RLP, expected: dict[str, Any]) -> None:
    X, y = data()
    value = fit(network(), X, y, objective, budget=Steps(1)).settings["objective"]
    expected = {"mixup": None, **expected, "plan": "once", "intercept": False, "ridge": 0.0}
    assert {name: getattr(value, name) for name in expected} == expected


def test_rank_as_large_as_the_subset_is_told_to_be_mse(engine: str) -> None:
    X, y = data()
    with pytest.warns(MSEEquivalentWarning, match="equals MSE"):
        fit(network(), X, y, RLP(4, 5), budget=Steps(2), engine=engine)
    with pytest.warns(MSEEquivalentWarning, match="equals MSE"):
        fit(network(), X, y, RLP(4, 5, plan="each-epoch"), budget=Steps(2), engine=engine)


# No traces


def legacy() -> Any:
    return np.random.get_state()[1].copy()  # noqa: NPY002 - the state that others use


def test_global_state_is_left_alone(engine: str) -> None:
    X, y = data()
    torch.manual_seed(7)
    before, threads, numpy = torch.get_rng_state(), torch.get_num_threads(), legacy()
    model: nn.Module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = model if engine == "torch" else network()
    torch.set_rng_state(before)
    for objective in (MSE(mixup=0.25), RLP(mixup=0.25), RLP(probe="draw")):
        fit(model, X, y, objective, budget=Steps(3), engine=engine)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert np.array_equal(legacy(), numpy)


def test_the_seed_decides_everything_even_dropout() -> None:
    X, y = data()

    def curve(seed: int, noise: int) -> Any:
        torch.manual_seed(noise)
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)), 0)
        return fit(model, X, y, MSE(16), budget=Steps(20), seed=seed)["loss"]

    np.testing.assert_array_equal(curve(1, 2), curve(1, 3))
    assert not np.array_equal(curve(1, 2)[1:], curve(2, 2)[1:])


@pytest.mark.parametrize(
    "objective", [MSE(16), MSE(16, mixup=0.3), RLP(12, 9), RLP(12, 9, plan="each-epoch")]
)
def test_the_seed_decides_what_is_drawn(objective: Objective, engine: str) -> None:
    X, y = data()
    curves = [
        fit(
            network(),
            X,
            y,
            objective,
            budget=Steps(20),
            seed=seed,
            evaluate_every=Steps(1),
            engine=engine,
        )["loss"]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(curves[0], curves[1])
    assert not np.array_equal(curves[0][1:], curves[2][1:])


def test_the_seed_decides_what_a_loss_of_ones_own_draws(engine: str, tmp_path: Any) -> None:
    X, y = data()
    objective = BatchLoss(RLPLoss(8, 2), 30)

    def trained(state: int, steps: int = 12, **more: Any) -> list[Tensor]:
        torch.manual_seed(state)
        model = network()
        fit(model, X, y, objective, budget=Steps(steps), engine=engine, seed=5, **more)
        return [p.detach().clone() for p in model.parameters()]

    first = trained(0)
    assert all(torch.equal(a, b) for a, b in zip(first, trained(1), strict=True))
    problems = [Problem(X, y, seed=seed) for seed in (4, 5)]
    *_, second = fit_fleet(
        lambda _: network(), problems, objective, budget=Steps(12), engine=engine
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second.model.parameters(), strict=True))

    stops = iter([False, False, True])
    settings = {
        "checkpoint": tmp_path / "run.pt",
        "checkpoint_every": Steps(4),
        "evaluate_every": Steps(4),
    }
    with pytest.raises(KeyboardInterrupt):
        trained(2, callbacks=[lambda event: _stop(next(stops))], **settings)
    assert all(torch.equal(a, b) for a, b in zip(first, trained(3, **settings), strict=True))


def _stop(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("objective", "per_epoch"),
    [(MSE(16, mixup=0.3), 5), (RLP(12, 9, plan="each-epoch"), 9), (RLP(12, 9, mixup=0.3), 9)],
)
def test_every_epoch_draws_anew(objective: Objective, per_epoch: int, engine: str) -> None:
    """With a rate of next to nothing the losses of two epochs differ by what was drawn, and by
    nothing else."""
    X, y = data()
    history = fit(
        network(), X, y, objective, budget=Epochs(3), optimizer=SGD(1e-12), evaluate_every=Steps(1), engine=engine
    )  # fmt: skip
    epochs = history["loss"][1:].reshape(3, per_epoch)
    assert len({tuple(row) for row in epochs.round(5)}) == 3


def test_a_frozen_part_stays_as_it_is() -> None:
    X, y = data()
    model = network()
    model.fc1.weight.requires_grad_(False)
    before = model.fc1.weight.clone()
    after = model.fc2.weight.detach().clone()
    fit(model, X, y, MSE(), budget=Steps(5))
    assert torch.equal(model.fc1.weight, before)
    assert not torch.equal(model.fc2.weight, after)


# Parameters and their optimiser


@pytest.mark.parametrize(
    "optimizer", [SGD(0.05, momentum=0.9), SGD(0.05, 0.9, nesterov=True), Adam(0.01), SGD(0.05)]
)
def test_a_parameter_that_is_first_used_later(optimizer: Any) -> None:
    """Torch's optimiser has no state for a parameter without a gradient; it must not stumble when
    one comes."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.late, self.calls = nn.Linear(3, 1), nn.Linear(3, 1), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += self.training
            return self.line(x) if self.calls <= 5 else self.line(x) + self.late(x)

    X, y = data()
    ours, twin = seeded(Late, 0), seeded(Late, 0)
    fit(ours, X, y, MSE("all"), budget=Steps(12), optimizer=optimizer)
    plain = {"fused": False}
    made = type(optimizer([torch.zeros(1)]))(
        twin.parameters(), **{k: v for k, v in optimizer.to_json().items() if k != "kind"}, **plain
    )
    for _ in range(12):
        made.zero_grad()
        nn.functional.mse_loss(twin(X).squeeze(1), y).backward()
        made.step()
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_an_unused_parameter_does_not_matter(tmp_path: Any) -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.spare = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(x)

    X, y = data()
    model = seeded(Spare, 0)
    before = model.spare.weight.detach().clone()
    for _ in range(2):  # the second time from the checkpoint
        fit(
            model,
            X,
            y,
            MSE(),
            budget=Steps(5),
            optimizer=SGD(0.1, momentum=0.9),
            checkpoint=tmp_path / "run.pt",
        )
    assert torch.equal(model.spare.weight, before)


@pytest.mark.parametrize("optimizer", [Adam(), SGD(0.1), SGD(0.1, momentum=0.9)])
def test_the_models_parameters_own_their_memory_afterwards(optimizer: Any, engine: str) -> None:
    X, y = data()
    model = network()
    parameters = dict(model.named_parameters())
    fit(model, X, y, MSE(), budget=Steps(5), optimizer=optimizer, engine=engine)
    for name, p in model.named_parameters():
        assert p is parameters[name], "optimisers of the caller's own hold these very parameters"
        assert p.untyped_storage().nbytes() == p.numel() * p.element_size()
