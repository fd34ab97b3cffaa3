"""Losses of users, compiled: torch's values and gradients, kinks included; what is left to torch;
and a wrong trace, which ends a run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.training.fleets import bits, build, data
from torch import Tensor, nn

from rlploss import SGD, Adam, DivergenceError, Event, History, Pointwise, Steps, fit
from rlploss.training import kernel_engine, own
from rlploss.training.own import CompiledLoss, compile_loss, values_and_gradient

Loss = Callable[[Tensor, Tensor], Tensor]
QUANTILES = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)


def deviance(power: float) -> Loss:
    """Tweedie's, for a prediction on the logarithmic scale."""

    def loss(p: Tensor, t: Tensor) -> Tensor:
        return -t * torch.exp(p * (1 - power)) / (1 - power) + torch.exp(p * (2 - power)) / (
            2 - power
        )

    return loss


def tukey(p: Tensor, t: Tensor) -> Tensor:
    e = (p - t) / 2
    return torch.where(e.abs() < 1, 1 - (1 - e**2) ** 3, torch.ones_like(e))


def in_place(p: Tensor, t: Tensor) -> Tensor:
    values = (p - t) ** 2
    values.mul_(2).add_(t)
    return values


def quantiles(p: Tensor, t: Tensor) -> Tensor:
    e, q = t - p, QUANTILES.to(p.dtype)
    return torch.maximum(q * e, (q - 1) * e)


def plain(name: str, **settings: Any) -> Loss:
    return lambda p, t: getattr(F, name)(p, t, reduction="none", **settings)


LOSSES: dict[str, Loss] = {
    "log-cosh": lambda p, t: torch.log(torch.cosh(p - t)),
    "huber": plain("huber_loss", delta=1.3),
    "huber, small": plain("huber_loss", delta=0.05),
    "smooth l1": plain("smooth_l1_loss", beta=0.7),
    "mse": plain("mse_loss"),
    "l1": plain("l1_loss"),
    "pinball": lambda p, t: torch.maximum(0.9 * (t - p), -0.1 * (t - p)),
    "pinball by where": lambda p, t: torch.where(t > p, 0.9 * (t - p), 0.1 * (p - t)),
    "expectile": lambda p, t: torch.where(t > p, 0.8, 0.2) * (t - p) ** 2,
    "charbonnier": lambda p, t: torch.sqrt((p - t) ** 2 + 1e-3),
    "cauchy": lambda p, t: torch.log1p(((p - t) / 2) ** 2),
    "tukey": tukey,
    "welsch": lambda p, t: 1 - torch.exp(-0.5 * (p - t) ** 2),
    "linex": lambda p, t: torch.exp(0.5 * (p - t)) - 0.5 * (p - t) - 1,
    "asymmetric": lambda p, t: (p - t) ** 2 * (1 + (p > t)),
    "poisson": plain("poisson_nll_loss"),
    "poisson, full": lambda p, t: F.poisson_nll_loss(p, t.abs(), full=True, reduction="none"),
    "gamma": lambda p, t: p + t.abs() * torch.exp(-p),
    "tweedie": deviance(1.5),
    "focal-like": lambda p, t: (2 * torch.sigmoid((p - t).abs()) - 1) * (p - t) ** 2,
    "focal, detached": lambda p, t: (p - t).detach().abs() ** 1.5 * (p - t) ** 2,
    "logits": lambda p, t: F.binary_cross_entropy_with_logits(p, t.sigmoid(), reduction="none"),
    "hinge": lambda p, t: (1 - p * t).relu(),
    "soft margin": plain("soft_margin_loss"),
    "softplus": lambda p, t: F.softplus(p - t),
    "log-sigmoid": lambda p, t: -F.logsigmoid(p * t),
    "kl": lambda p, t: F.kl_div(p, t.sigmoid(), reduction="none"),
    "clamp": lambda p, t: ((p - t) ** 2).clamp(max=4),
    "clamp, both": lambda p, t: (p - t).clamp(-1, 1) * p,
    "minimum": lambda p, t: torch.minimum((p - t) ** 2, (p - t).abs()),
    "one at most": lambda p, t: torch.minimum((p - t) ** 2, torch.ones_like(t)),
    "one at least": lambda p, t: torch.maximum((p - t) ** 2, torch.ones_like(t)),
    "sign": lambda p, t: torch.sign(p - t) * p,
    "power 1.5": lambda p, t: (p - t).abs() ** 1.5,
    "power 0.5": lambda p, t: ((p - t).abs() + 1e-3) ** 0.5,
    "power -2": lambda p, t: (1 + (p - t).abs()) ** -2,
    "power 7": lambda p, t: (p - t) ** 7,
    "power of a number": lambda p, t: 2.0 ** (p - t),
    "power of numbers": lambda p, t: p.abs() ** (1 + t.abs()),
    "log-add-exp": torch.logaddexp,
    "hypot": lambda p, t: torch.hypot(p - t, torch.ones_like(t)),
    "gaussian cdf": lambda p, t: torch.special.ndtr(p - t),
    "tan, atan": lambda p, t: torch.atan(p - t) + torch.tanh(p) * torch.sin(t),
    "float32 constant": lambda p, t: torch.tensor(0.1) * (p - t) ** 2,
    "masked": lambda p, t: ((p - t) ** 2).masked_fill(t > 1, 0.25),
    "conditions": lambda p, t: torch.where((p > 0) & ~(t > 0) | (p < -1), p * t, p - t),
    "in place": in_place,
}
OF_ROWS: dict[str, Loss] = {  # these put the outputs of a row together
    "focal cross entropy": lambda p, t: -(t * (1 - p.softmax(1)) ** 2 * p.log_softmax(1)).sum(1),
    "label smoothing": plain("cross_entropy", label_smoothing=0.1),
    "mean": lambda p, t: ((p - t) ** 2).mean(1),
    "distance": lambda p, t: (p - t).norm(dim=1),
    "largest": lambda p, t: (p - t).abs().amax(1),
    "columns": lambda p, t: (p[:, 0] - t[:, 0]) ** 2 + (p[:, 1] * t[:, 2]).abs(),
    "broadcast": lambda p, t: (p - t.mean(1, keepdim=True)) ** 2,
    "quantiles": quantiles,
}


def rows(n_outputs: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Predictions and targets of many sizes, with ties, zeros of both signs and whole numbers."""
    generator = torch.Generator().manual_seed(seed)
    pred, target = torch.randn(2, 400, n_outputs, generator=generator, dtype=dtype) * 1.5
    pred[:40], target[:40] = pred[:40].round(), target[:40].round()
    pred[40:80] = target[40:80]
    pred[80:100], target[90:110], pred[110:120], target[115:120] = 0.0, -0.0, -0.0, 0.0
    pred[120:140] = target[120:140] + 2  # Tukey's and the clamp's edge
    return pred, target


def equal(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("name", "n_outputs"), [*((name, 1) for name in LOSSES), ("huber", 3), ("in place", 3),
                            *((name, 3) for name in OF_ROWS)])  # fmt: skip
def test_value_and_gradient_are_torchs(name: str, n_outputs: int, dtype: torch.dtype) -> None:
    function = (LOSSES | OF_ROWS)[name]
    loss = compile_loss(function, n_outputs, dtype)
    assert isinstance(loss, CompiledLoss), loss
    for seed in range(3):
        pred, target = rows(n_outputs, dtype, seed)
        values, gradient = values_and_gradient(function, pred, target)
        repeat = n_outputs // (values.numel() // len(pred))
        ours, back = loss(pred, target)
        tolerance = 1e-12 if dtype == torch.float64 else 3e-6
        equal(ours, values.reshape(len(pred), -1).expand_as(pred), tolerance)
        equal(back, gradient * repeat, tolerance * 10 if dtype == torch.float32 else tolerance)
        assert loss.difference(pred, target) == ""


def test_what_is_not_finite_stays_so() -> None:
    pred = torch.tensor([[math.nan], [math.inf], [-math.inf], [0.0], [1e300]], dtype=torch.float64)
    for name, function in LOSSES.items():
        loss = compile_loss(function, 1, torch.float64)
        assert isinstance(loss, CompiledLoss)
        for target in (torch.zeros_like(pred), torch.ones_like(pred)):
            (ours, back), (theirs, gradient) = (
                loss(pred, target),
                values_and_gradient(function, pred, target),
            )
            ends = theirs.isfinite()  # other values end a run, whatever the gradient
            for a, b in ((ours, theirs), (back[ends], gradient[ends])):
                assert torch.equal(a.isnan(), b.isnan()), name
                assert torch.equal(a.isinf(), b.isinf()), name


class Counting:
    """Differs from call to call."""

    calls = 0

    def __call__(self, p: Tensor, t: Tensor) -> Tensor:
        self.calls += 1
        return (p - t) ** 2 / self.calls


WEIGHT = nn.Parameter(torch.ones(3))
LEFT: dict[str, tuple[Loss, str]] = {
    "mean": (lambda p, t: (p - t) ** 2 / (p - t).abs().mean(), "mean mixes rows|sum mixes rows"),
    "order": (lambda p, t: (p - t).cumsum(0), "cumsum"),
    "sort": (lambda p, t: (p - t).sort(0).values, "sort"),
    "pairs": (lambda p, t: (p[:, 0] - t[:, :1]).abs().sum(1), "mixes rows"),
    "one row": (lambda p, t: (p - t[0]) ** 2, "select mixes rows"),
    "other order": (lambda p, t: (p.reshape(-1, len(p)) - t.T).T ** 2, "mixes rows"),
    "branch": (lambda p, t: (p - t) ** 2 if (p > t).any() else p, "data-dependent"),
    "random": (lambda p, t: (p - t) ** 2 * torch.rand_like(p), "rand"),
    "dropout": (lambda p, t: F.dropout((p - t) ** 2), "bernoulli"),
    "option": (lambda p, t: torch.sub(p, t, alpha=2) ** 2, "sub with alpha"),
    "unknown": (lambda p, t: torch.special.i0(p - t), "i0"),
    "rows": (lambda p, t: (p - t) ** 2 * len(p), "uses the number of rows"),
    "calls": (Counting(), "differs from call to call"),
    "weights": (lambda p, t: (p - t) ** 2 + WEIGHT.norm(), "uses weights"),
    "shape": (lambda p, t: (p - t).mean(), "one value per row or per output"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_compiled_says_why(name: str) -> None:
    function, why = LEFT[name]
    reason = compile_loss(function, 3, torch.float64)
    assert isinstance(reason, str)
    assert any(part in reason for part in why.split("|")), reason


def test_many_outputs() -> None:
    assert isinstance(compile_loss(tukey, 500, torch.float64), CompiledLoss)
    assert "it mixes 500 outputs" in str(compile_loss(LOSSES_OF_MANY, 500, torch.float64))


def LOSSES_OF_MANY(p: Tensor, t: Tensor) -> Tensor:
    return -(t * p.log_softmax(1)).sum(1)


def test_tracing_moves_no_generator_and_calls_no_branch() -> None:
    before = torch.get_rng_state()
    compile_loss(lambda p, t: torch.rand_like(p) * (p - t), 1, torch.float64)
    assert torch.equal(before, torch.get_rng_state())


# In training


def trained(function: Loss, *, outputs: int = 1, size: int | str = 17, dtype: torch.dtype = torch.float64, **settings: Any) -> History:  # fmt: skip
    X, y = data(0, 60, outputs)
    objective = Pointwise(function, size)
    given = {"optimizer": Adam(0.01), "budget": Steps(40), "evaluate_every": Steps(1), **settings}
    return fit(build(outputs)(1).to(dtype), X, y, objective, engine="kernel", **given)


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., History]:
    """Train with the loss left to torch."""

    def run(function: Loss, **settings: Any) -> History:
        with monkeypatch.context() as patch:
            patch.setattr(own, "compile_loss", lambda *_: "as the test asks")
            return trained(function, **settings)

    return run


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [17, "all"])
@pytest.mark.parametrize("name", ["tukey", "pinball", "focal cross entropy", "quantiles"])
def test_training_is_that_by_torch(
    name: str, size: int | str, weighted: bool, by_torch: Callable[..., History]
) -> None:
    weight = torch.rand(60, generator=torch.Generator().manual_seed(3)) + 0.1
    settings: dict[str, Any] = {"outputs": 3, "size": size, "sample_weight": weight if weighted else None}  # fmt: skip
    function = (LOSSES | OF_ROWS)[name]
    ours, theirs = trained(function, **settings), by_torch(function, **settings)
    assert ours.settings["engine_reason"] == "as asked; its loss is compiled"
    assert theirs.settings["engine_reason"].endswith("its loss is left to torch: as the test asks")
    assert ours["loss"][1:] == pytest.approx(theirs["loss"][1:], rel=1e-11)
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        equal(a, b, 1e-10)


def test_the_history_names_the_operation() -> None:
    history = trained(lambda p, t: (p - t).cumsum(0), optimizer=SGD(1e-4))
    assert history.settings["engine_reason"] == "as asked; its loss is left to torch: cumsum, flip cannot be compiled"  # fmt: skip


def test_a_wrong_line_ends_the_run_and_names_its_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(own._TEMPLATES, "log1p", "np.log({0} + {0})")

    def loss(p: Tensor, t: Tensor) -> Tensor:
        return torch.log1p((p - t) ** 2)

    with pytest.raises(
        RuntimeError, match=r"must be torch's, got .* \(by aten.log1p.default\); pass"
    ):
        trained(loss)


def test_later_steps_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is wrong for small residuals only, which come after the first step."""
    monkeypatch.setattr(kernel_engine, "CHECK_STEPS", 50)
    wrong = "{0} * {0} if abs({0}) > {real}(0.3) else {real}(0)"
    monkeypatch.setitem(own._TEMPLATES, "sinh", wrong)

    def loss(p: Tensor, t: Tensor) -> Tensor:
        return torch.where((p - t).abs() > 0.3, (p - t) ** 2, torch.sinh((p - t).abs()))

    with pytest.raises(RuntimeError, match=r"aten.sinh"):
        trained(loss, budget=Steps(400), optimizer=Adam(0.03), evaluate_every=Steps(400))


class Annealed:
    """A loss that a callback changes."""

    delta = 2.0

    def __call__(self, p: Tensor, t: Tensor) -> Tensor:
        return F.huber_loss(p, t, reduction="none", delta=self.delta)


def test_a_loss_that_a_callback_changes(by_torch: Callable[..., History]) -> None:
    def run(how: Callable[..., History]) -> History:
        loss = Annealed()

        def change(event: Event) -> None:
            loss.delta = 0.5 if event.step < 20 else 0.02

        return how(loss, callbacks=[change], evaluate_every=Steps(10))

    ours, theirs = run(trained), run(by_torch)
    assert ours["loss"][1:] == pytest.approx(theirs["loss"][1:], rel=1e-11)


@dataclass
class Scaled:
    """Has no hash."""

    scale: float = 2.0

    def __call__(self, p: Tensor, t: Tensor) -> Tensor:
        return ((p - t) / self.scale).square()


def test_a_loss_without_a_hash_is_compiled() -> None:
    loss = Scaled()
    assert isinstance(compile_loss(loss, 1, torch.float64), CompiledLoss)
    assert compile_loss(loss, 1, torch.float64) is compile_loss(loss, 1, torch.float64)
    assert compile_loss(Scaled(), 1, torch.float64) is not compile_loss(loss, 1, torch.float64)


def test_predictions_that_are_not_finite_are_compared() -> None:
    loss = compile_loss(tukey, 1, torch.float64)
    pred = torch.tensor([[math.nan], [math.inf], [0.5]], dtype=torch.float64)
    assert isinstance(loss, CompiledLoss)
    assert loss.difference(pred, torch.zeros_like(pred)) == ""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_loss_that_changes_between_two_runs(dtype: torch.dtype, by_torch: Callable[..., History]) -> None:  # fmt: skip
    loss, rel = Annealed(), 1e-11 if dtype == torch.float64 else 1e-4
    for delta in (2.0, 0.1):
        loss.delta = delta
        ours, theirs = (how(loss, dtype=dtype)["loss"][1:] for how in (trained, by_torch))
        assert ours == pytest.approx(theirs, rel=rel)


@pytest.mark.parametrize(
    "function",
    [lambda p, t: torch.log((p - t) - 1e9), lambda p, t: torch.exp(1000 + p - t), lambda p, t: torch.sqrt(p * 0)],
    ids=["nan", "inf", "gradient"],
)  # fmt: skip
def test_what_is_not_finite_ends_a_run(function: Loss, by_torch: Callable[..., History]) -> None:
    messages = []
    for how in (trained, by_torch):
        with pytest.raises(DivergenceError) as caught:
            how(function)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_runs_in_several_threads_end_with_the_same_bits() -> None:
    alone, together = bits(trained(tukey)), []

    def run() -> None:
        together.append(bits(trained(tukey)))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [alone] * 3


def test_float32_trains_compiled() -> None:
    X, y = (part.float() for part in data(0))
    history = fit(build()(1).float(), X, y, Pointwise(tukey, 17), budget=Steps(2500))
    assert history.settings["engine_reason"] == "a dense chain on the CPU; its loss is compiled"
    assert history.last("loss") < history["loss"][1]
