"""What a run leaves behind: three lines, a frame, a file, a drawing."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from torch import Tensor

from rlploss import MSE, RLP, SGD, Adam, EarlyStopping, History, RegressionNet, Steps, fit, seeded
from rlploss.training.evaluation import METRICS, Stopper
from rlploss.training.rows import RowTable


def data() -> tuple[Tensor, Tensor]:
    X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return X, torch.sin(X[:, 0])


@pytest.fixture(scope="module")
def history() -> History:
    X, y = data()
    return fit(
        seeded(lambda: RegressionNet(3), 0), X, y, RLP(20, 10), budget=Steps(1200), optimizer=Adam(0.01),
        evaluate_every=Steps(500), validation=(X, y), metrics=("mse", "mae"),
    )  # fmt: skip


def test_it_prints_as_three_lines(history: History) -> None:
    lines = repr(history).splitlines()
    assert (
        lines[0]
        == "History of RLP(20, n_subsets=10, subsets_per_step=1, intercept=True), Adam(0.01),"
        " Steps(1200)"
    )
    assert (
        lines[1] == f"  step 1,200 (epoch 120): loss {history.last('loss'):.4g}, mse"
        f" {history.last('mse'):.4g}, mae {history.last('mae'):.4g}"
    )
    assert (
        lines[2]
        == f"  stopped by budget; kernel engine, {history.last('seconds'):.3g} s, 4 evaluations"
    )
    assert len(lines) == 3


def test_an_empty_one_prints_too() -> None:
    assert len(repr(History({})).splitlines()) == 3


def test_one_that_diverged_says_so() -> None:
    X, y = data()
    settings = {"budget": Steps(50), "optimizer": SGD(1e12), "on_divergence": "record"}
    diverged = fit(seeded(lambda: RegressionNet(3), 0), X, y, MSE(), **settings)
    assert "stopped by diverged" not in repr(diverged), "nothing was stopped by that"
    assert "diverged" in repr(diverged)
    assert len(repr(diverged).splitlines()) == 3


def test_columns(history: History) -> None:
    assert list(history.columns) == ["step", "epoch", "samples", "seconds", "loss", "mse", "mae"]
    assert len(history) == 4
    assert isinstance(history["mse"], np.ndarray)
    assert history.last("mse") == history["mse"][-1]
    with pytest.raises(ValueError, match=r'the column must be one of .*did you mean "mse"'):
        history["msee"]


def test_to_frame(history: History) -> None:
    frame = history.to_frame()
    assert list(frame.columns) == list(history.columns)
    assert len(frame) == 4
    np.testing.assert_array_equal(frame["mse"], history["mse"])
    assert math.isnan(frame["loss"][0])


def test_to_csv_is_exact(history: History, tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    history.to_csv(path)
    rows = list(csv.reader(path.read_text().splitlines()))
    assert rows[0] == list(history.columns)
    assert len(rows) == 1 + 4
    for j, name in enumerate(history.columns):
        np.testing.assert_array_equal([float(row[j]) for row in rows[1:]], history[name])
    history.to_csv(str(path))
    assert [p.name for p in tmp_path.iterdir()] == ["curves.csv"]


def test_plot(history: History) -> None:
    ax = history.plot()
    assert [line.get_label() for line in ax.lines] == ["loss", "mse", "mae"]
    assert (ax.get_xlabel(), ax.get_yscale()) == ("step", "log")
    ax = history.plot("mse", against="samples")
    assert [line.get_label() for line in ax.lines] == ["mse"]
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), history["samples"])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), history["mse"])
    assert history.plot("mae", ax=ax) is ax
    assert len(ax.lines) == 2
    with pytest.raises(
        ValueError, match='against must be one of "step", "epoch", "samples", "seconds"'
    ):
        history.plot(against="mse")
    with pytest.raises(ValueError, match="the column must be one of"):
        history.plot("nothing")


def test_a_plot_draws_without_a_screen(history: History, tmp_path: Path) -> None:
    before = matplotlib.get_backend()
    history.plot().figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert matplotlib.get_backend() == before


def test_columns_at_or_below_zero_are_drawn_on_a_plain_axis() -> None:
    curves = History(
        {}, {"step": [0, 1], "epoch": [0, 1], "loss": [float("nan"), 1.0], "gain": [-1.0, 1.0]}
    )
    assert curves.plot().get_yscale() == "linear"
    assert curves.plot("gain").get_yscale() == "linear"
    assert curves.plot("loss").get_yscale() == "log"


def test_a_run_of_no_evaluation_beyond_the_start_can_be_drawn() -> None:
    """A loss of nothing but nan, as after a divergence in the first steps."""
    curves = History({}, {"step": [0], "epoch": [0], "loss": [float("nan")]})
    assert len(curves.plot().lines) == 1


def test_nothing_is_better_than_minus_infinity() -> None:
    stopper = Stopper(EarlyStopping("mse", patience=5), ["mse"])
    assert [stopper.better(value) for value in (1.0, -math.inf, 0.5)] == [True, True, False]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("least", [0.0, 0.3])
@pytest.mark.parametrize("metric", METRICS)
def test_the_best_so_far_and_how_long_ago(metric: str, least: float, seed: int) -> None:
    """Accuracy and F1 go up, errors down; what is not better by more than `min_delta` is no best."""
    sign = 1.0 if metric in ("accuracy", "f1") else -1.0
    stopper = Stopper(EarlyStopping(metric, patience=9, min_delta=least), [metric])
    best, waited = -math.inf, 0
    for value in np.random.default_rng(seed).random(40).tolist():
        better = sign * value - best > least
        best, waited = (sign * value, 0) if better else (best, waited + 1)
        assert (stopper.better(value), stopper.waited) == (better, waited)


class Widened(RegressionNet):
    """A network of float32 whose output is float64."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).double()


def test_the_metric_rlp_is_the_projected_residual() -> None:
    """In the numbers' own type: also where the output is wider, and where squares overflow it."""
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(50, 3, generator=g), torch.randn(50, 2, generator=g)
    basis = torch.linalg.qr(X.double())[0]
    for scale in (1.0, 1e25):
        for kind in (RegressionNet, Widened):
            network = seeded(lambda kind=kind: kind(3, n_outputs=2), 0)
            residual = network(X).detach().double() - (y * scale).double()
            history = fit(
                network, X, y, MSE(), budget=Steps(1), validation=(X, y * scale), metrics="rlp"
            )
            assert history["rlp"][0] == pytest.approx(
                float((basis.mT @ residual).square().sum()) / 100, rel=1e-5
            )


def test_autocast_does_not_reach_the_metric_rlp() -> None:
    X, y = torch.randn(50, 3), torch.randn(50, 2)
    measure = METRICS["rlp"](RowTable(X, y, False))
    with torch.autocast("cpu", torch.bfloat16):
        inside = measure(X[:, :2], y, X)
    assert inside == measure(X[:, :2], y, X)
