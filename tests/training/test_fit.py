"""`fit` as a tool: it learns, keeps count, stops when told, refuses what makes no sense, and leaves no traces."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlploss import (
    Autoencoder,
    DivergenceError,
    EarlyStopping,
    Epochs,
    Event,
    MoonsNet,
    MSEEquivalentWarning,
    Progress,
    RegressionNet,
    Steps,
    fit,
    rlp_loss,
    seeded,
)
from rlploss.training.metrics import accuracy, f1
from rlploss.training.monitors import Reporter, clock
from rlploss.training.recipes import subset_sizes


def data(n: int = 80, d: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=generator)
    return X, torch.sin(X[:, 0]) + X[:, 1]


def network(d: int = 3, outputs: int = 1) -> nn.Module:
    return seeded(lambda: RegressionNet(d, outputs), 0)


# It learns


@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        ("mse", {}),
        ("mae", {}),
        ("huber", {}),
        ("mse+mixup", {}),
        ("rlp", {}),
        ("rlp", {"preset": "released"}),
        ("rlp", {"preset": "paper", "lr": 0.02}),
        ("rlp", {"probe": "expected"}),
        ("rlp", {"probe": "draw", "plan": "each-epoch"}),
        ("rlp+mixup", {}),
        ("rlp+mixup", {"preset": "released"}),
        ("rlp+mixup", {"preset": "paper", "n_subsets": 40, "lr": 0.02}),
    ],
)
def test_every_objective_learns(objective: str, settings: dict[str, Any]) -> None:
    X, y = data()
    history = fit(network(), X, y, objective, budget=Steps(300), evaluate_every=Steps(50), **{"lr": 0.01, **settings})
    assert history["loss"][-1] < 0.3 * history["loss"][1]


@pytest.mark.parametrize("objective", ["cross_entropy", "cross_entropy+mixup", "rlp", "mse", "rlp+mixup"])
def test_classification_learns(objective: str) -> None:
    X, _ = data(120, 2)
    labels = (X[:, 0] * X[:, 1] > 0).long()
    output = "logits" if objective.startswith("cross") else "sigmoid"
    model = seeded(lambda: MoonsNet(output=output), 0)
    more = {"subset_size": 40} if objective.startswith("rlp") else {}
    history = fit(
        model,
        X,
        labels,
        objective,
        budget=Steps(400),
        lr=0.01,
        validation=(X, labels),
        metrics=("accuracy", "f1"),
        **more,
    )
    assert history["accuracy"][0] < 0.7
    assert history.last("accuracy") > 0.9
    assert history.last("f1") > 0.9


def test_reconstruction_learns_with_and_without_naming_the_target() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.sigmoid(torch.randn(100, 2, generator=generator) @ torch.randn(2, 12, generator=generator))
    curves = []
    for y in (None, X):
        model = seeded(lambda: Autoencoder(12, latent=4), 0)
        history = fit(model, X, y, "rlp", budget=Steps(300), lr=0.01, validation=(X, y))
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
    fit(model, x, 2 * x, "mse", budget=Steps(200), lr=0.1)
    assert math.isclose(float(model.slope.detach()), 2, rel_tol=1e-3)


# Its axes


@pytest.mark.parametrize(
    ("objective", "settings", "rows", "steps"),
    [
        ("mse", {"batch_size": 30}, 80, 3),
        ("mse+mixup", {"batch_size": 80}, 80, 1),
        ("rlp", {"subset_size": 12, "n_subsets": 7}, 84, 7),
        ("rlp", {"subset_size": 12, "n_subsets": 7, "subsets_per_step": 3}, 84, 3),
        ("rlp", {"subset_size": 12, "n_subsets": 7, "preset": "paper"}, 84, 1),
    ],
)
def test_axes_agree_with_each_other(objective: str, settings: dict[str, Any], rows: int, steps: int) -> None:
    X, y = data()
    by_epoch = fit(network(), X, y, objective, budget=Epochs(4), **settings)
    np.testing.assert_array_equal(by_epoch["epoch"], np.arange(5))
    np.testing.assert_array_equal(by_epoch["step"], steps * np.arange(5))
    np.testing.assert_array_equal(by_epoch["samples"], rows * np.arange(5))
    assert (np.diff(by_epoch["seconds"]) > 0).all()
    assert by_epoch["seconds"][0] == 0
    by_step = fit(network(), X, y, objective, budget=Steps(4 * steps), evaluate_every=(1, "steps"), **settings)
    np.testing.assert_array_equal(by_step["step"], np.arange(4 * steps + 1))
    np.testing.assert_allclose(by_step["epoch"], by_step["step"] / steps)
    np.testing.assert_array_equal(by_step["samples"][::steps], by_epoch["samples"])
    # the loss of an entry is the mean over the steps since the one before
    means = by_step["loss"][1:].reshape(4, steps).mean(1)
    np.testing.assert_allclose(by_epoch["loss"][1:], means, rtol=1e-6)


def test_seconds_leave_evaluation_and_callbacks_out() -> None:
    import time

    X, y = data()

    def slow(event: Event) -> None:
        time.sleep(0.05)

    started = time.perf_counter()
    history = fit(network(), X, y, "mse", budget=Steps(10), evaluate_every=Steps(1), callbacks=[slow])
    assert history.last("seconds") < time.perf_counter() - started - 10 * 0.05


def test_evaluations_always_include_the_start_and_the_end() -> None:
    X, y = data()
    history = fit(network(), X, y, "mse", budget=Steps(25), evaluate_every=Steps(10))
    np.testing.assert_array_equal(history["step"], [0, 10, 20, 25])
    assert math.isnan(history["loss"][0])
    assert (history.stopped, history.model is not None, len(history)) == ("budget", True, 4)
    with pytest.raises(ValueError, match=r'the column must be one of "step", .*"loss", got \'mse\''):
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

    history = fit(model, X, y, "mse", budget=Steps(30), validation=(V, w), metrics=(*names, largest))
    with torch.no_grad():
        pred = model(V).squeeze(1)
    gap = (pred - w).double()
    assert history.last("mse") == pytest.approx(float(gap.square().mean()), rel=1e-5)
    assert history.last("mae") == pytest.approx(float(gap.abs().mean()), rel=1e-5)
    assert history.last("rlp") == pytest.approx(float(rlp_loss(pred, w, V)), rel=1e-4)
    assert history.last("largest") == pytest.approx(float(gap.abs().max()), rel=1e-5)


def test_accuracy_and_macro_f1_against_counting() -> None:
    generator = torch.Generator().manual_seed(0)
    pred = torch.randn(3, 40, 4, generator=generator)
    pred[..., 3] = -9  # a class that is never predicted, nor true below: it does not count
    true = torch.randint(3, (40,), generator=generator)
    target = nn.functional.one_hot(true, 4).float()
    for i in range(3):
        said = pred[i].argmax(-1)
        scores = []
        for c in range(3):
            hit = int(((said == c) & (true == c)).sum())
            wrong = int(((said == c) != (true == c)).sum())
            scores.append(2 * hit / (2 * hit + wrong))
        assert float(f1(pred, target)[i]) == pytest.approx(sum(scores) / 3)
        assert float(accuracy(pred, target)[i]) == pytest.approx(float((said == true).double().mean()))


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
    fit(model, X, y, "mse", budget=Steps(2), batch_size=10, validation=data(33))
    assert {mode for mode, rows in modes if rows == 33} == {False}
    assert {mode for mode, rows in modes if rows == 10} == {True}
    assert not model.training, "the mode is put back"


# Stopping


def test_early_stopping_restores_the_best_weights() -> None:
    X, y = data(30)
    kept: dict[int, Tensor] = {}

    def keep(event: Event) -> None:
        kept[event.step] = event.model().fc1.weight.detach().clone()

    model = network()
    rule = EarlyStopping("mse", patience=3)
    noisy = y + torch.randn(30, generator=torch.Generator().manual_seed(1))
    history = fit(
        model,
        X,
        noisy,
        "mse",
        budget=Steps(3000),
        evaluate_every=Steps(10),
        lr=0.03,
        validation=data(40, seed=5),
        early_stopping=rule,
        callbacks=[keep],
    )
    assert history.stopped == "early stopping"
    assert history.best_step == history["step"][history["mse"].argmin()]
    assert history.last("step") == history.best_step + 3 * 10
    assert torch.equal(model.fc1.weight, kept[history.best_step])


def test_early_stopping_knows_that_accuracy_goes_up() -> None:
    X, _ = data(60, 2)
    labels = (X[:, 0] > 0).long()
    model = seeded(MoonsNet, 0)
    history = fit(
        model,
        X,
        labels,
        "cross_entropy",
        budget=Steps(500),
        evaluate_every=Steps(10),
        validation=(X, labels),
        early_stopping=4,
    )
    assert history.best_step == history["step"][history["accuracy"].argmax()]


def test_a_callback_can_stop_the_run() -> None:
    X, y = data()
    history = fit(network(), X, y, "mse", budget=Epochs(50), callbacks=[lambda event: event.epoch >= 2])
    assert (history.stopped, history.last("epoch")) == ("callback", 2)


def test_progress_counts_to_the_end_with_time_left() -> None:
    X, y = data()
    told: list[Progress] = []
    fit(network(), X, y, "mse", budget=Steps(50), progress=told.append)
    assert told[-1].step == told[-1].total_steps == 50
    assert told[-1].remaining == 0
    stream = io.StringIO()
    reporter = Reporter(True, 200, stream)
    reporter.due = 0.0
    reporter.tell(50)
    reporter.tell(200, last=True)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("step 50/200 (25%)")
    assert first.endswith("left")
    assert second.endswith("done")
    assert (clock(59.6), clock(3661), clock(math.inf)) == ("1:00", "1:01:01", "?")


# Divergence


def test_divergence_names_step_rate_and_cause_and_keeps_finite_weights() -> None:
    X, y = data()
    model = network()
    settings: dict[str, Any] = {"budget": Steps(50), "optimizer": "sgd", "lr": 1e12}
    with pytest.raises(
        DivergenceError, match=r"became (inf|nan) at step \d+ \(epoch .*lr 1e\+12; likely cause: a learning"
    ):
        fit(model, X, y, "mse", **settings)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    history = fit(network(), X, y, "mse", on_divergence="record", **settings)
    assert (history.stopped, "likely cause" in history.message) == ("diverged", True)
    with pytest.raises(DivergenceError, match=r"values as large as .* in the data: standardise"):
        fit(network(), X * 1e9, y, "mse", **settings)
    with pytest.raises(DivergenceError, match='heavy tail of probe="draw"'):
        fit(network(), X, y, "rlp", probe="draw", **settings)


# Defaults and presets


def test_default_sizes() -> None:
    assert subset_sizes(3000, 8, subset_size=None, n_subsets=None) == {"subset_size": 100, "n_subsets": 1000}
    assert subset_sizes(50, 8, subset_size=None, n_subsets=None) == {"subset_size": 25, "n_subsets": 1000}
    assert subset_sizes(20, 12, subset_size=None, n_subsets=None) == {"subset_size": 14, "n_subsets": 1000}
    assert subset_sizes(10, 12, subset_size=None, n_subsets=None)["subset_size"] == 5  # N does not allow p + 2
    assert subset_sizes(6, 1, subset_size=None, n_subsets=None) == {"subset_size": 3, "n_subsets": 20}
    assert subset_sizes(14, 12, subset_size=None, n_subsets=None, outside=True)["subset_size"] == 7


def test_the_defaults_in_force_are_told() -> None:
    X, y = data(300)
    settings = fit(network(), X, y, budget=Steps(1)).settings
    expected = {"probe": "subset", "intercept": True, "plan": "once", "method": "balanced", "subsets_per_step": 1}
    expected |= {"subset_size": 100, "n_subsets": 1000, "lr": 1e-3, "optimizer": "adam", "budget": "Steps(1)"}
    assert {name: settings[name] for name in expected} == expected
    assert fit(network(), X, y, probe="sum", n_subsets=5, budget=Steps(1)).settings["intercept"] is False


@pytest.mark.parametrize(
    ("objective", "preset", "expected"),
    [
        ("rlp", "paper", {"probe": "draw", "draw_from": "train", "method": "paper", "subsets_per_step": 6}),
        ("rlp", "released", {"probe": "subset", "subsets_per_step": 1}),
        ("rlp+mixup", "paper", {"probe": "sum", "method": "paper", "subsets_per_step": 6}),
        ("rlp+mixup", "released", {"probe": "subset", "subsets_per_step": 1}),
        ("rlp", "released-autoencoder", {"probe": "subset", "subsets_per_step": 1}),
    ],
)
def test_what_presets_set(objective: str, preset: str, expected: dict[str, Any]) -> None:
    X, y = data()
    settings = fit(network(), X, y, objective, preset=preset, n_subsets=6, budget=Steps(1)).settings
    expected = {**expected, "plan": "once", "intercept": False, "ridge": 0.0}
    assert {name: settings[name] for name in expected} == expected


def test_rank_as_large_as_the_subset_is_told_to_be_mse() -> None:
    X, y = data()
    with pytest.warns(MSEEquivalentWarning, match="exactly MSE"):
        fit(network(), X, y, "rlp", subset_size=4, n_subsets=5, budget=Steps(2))


# No traces


def test_global_state_is_left_alone() -> None:
    X, y = data()
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    torch.set_rng_state(before)
    for objective in ("mse+mixup", "rlp+mixup"):
        fit(model, X, y, objective, budget=Steps(3))
    fit(model, X, y, "rlp", probe="draw", budget=Steps(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_the_seed_decides_everything_even_dropout() -> None:
    X, y = data()

    def curve(seed: int, noise: int) -> Any:
        torch.manual_seed(noise)
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)), 0)
        return fit(model, X, y, "mse", budget=Steps(20), batch_size=16, seed=seed)["loss"]

    np.testing.assert_array_equal(curve(1, 2), curve(1, 3))
    assert not np.array_equal(curve(1, 2)[1:], curve(2, 2)[1:])


def test_a_frozen_part_stays_as_it_is() -> None:
    X, y = data()
    model = network()
    model.fc1.weight.requires_grad_(False)
    before = model.fc1.weight.clone()
    fit(model, X, y, "mse", budget=Steps(5))
    assert torch.equal(model.fc1.weight, before)
