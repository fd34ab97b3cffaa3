"""Training on a GPU: as on the CPU, to rounding. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.fleets import build, convolutional, data, replicas
from torch import Tensor, nn

from rlploss import MSE, RLP, Adam, BatchLoss, CrossEntropy, Pointwise, RLPLoss, Steps, fit, fit_fleet, seeded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def cubed(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target).abs() ** 3


OBJECTIVES = [
    MSE(17),
    MSE(17, mixup=0.3),
    Pointwise(cubed, 17),
    BatchLoss(RLPLoss(intercept=True), 20),
    RLP(13, 11),
    RLP(13, 11, plan="each-epoch"),
    RLP(13, 11, mixup=0.3),
    RLP(13, 11, probe="expected", ridge=0.1),
    RLP(50, 90, subsets_per_step="all"),
    RLP(8, 11),
    RLP.paper(13, 11),
    RLP.released(13, 11, float32_cutoff=True),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_every_objective_trains_as_on_the_cpu(objective: Any) -> None:
    ends = []
    for device in ("cpu", "cuda"):
        model = build()(0)
        history = fit(
            model, *data(0), objective, budget=Steps(60), optimizer=Adam(0.01), validation=data(1), device=device,
            engine="torch",
        )  # fmt: skip
        assert next(model.parameters()).device.type == device
        ends.append((torch.cat([p.detach().cpu().flatten() for p in model.parameters()]), history["mse"]))
    torch.testing.assert_close(ends[1][0], ends[0][0], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(torch.tensor(ends[1][1]), torch.tensor(ends[0][1]), rtol=1e-8, atol=1e-10)


def test_auto_is_torch_and_says_why() -> None:
    history = fit(build()(0).cuda(), *data(0), MSE(17), budget=Steps(2))
    assert history.settings["engine"] == "torch"
    assert history.settings["engine_reason"].startswith("the network is on cuda")


def test_weights_classes_and_fleets() -> None:
    X, y = data(0)
    labels = (y.squeeze(1) > 0).long()
    model = seeded(lambda: nn.Linear(4, 2), 0).double()
    fit(model, X, labels, CrossEntropy(17), budget=Steps(5), sample_weight=torch.rand(60) + 0.1, device="cuda")
    fleet = fit_fleet(
        lambda seed: seeded(convolutional, seed).double(), replicas(3), MSE(17), budget=Steps(5), device="cuda"
    )
    alone = fit(seeded(convolutional, 1).double(), *data(1), MSE(17), budget=Steps(5), seed=1, device="cuda")
    assert fleet[1].last("loss") == pytest.approx(alone.last("loss"), rel=1e-9)


def test_a_checkpoint_goes_on_with_dropout(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)), 0).double().cuda()

    class Enough(Exception):
        pass

    def stop(event: Any) -> None:
        if event.step == 20:
            raise Enough

    settings: dict[str, Any] = {"budget": Steps(40), "evaluate_every": Steps(5)}
    whole = fit(make(), *data(0), MSE(17), **settings)
    files: dict[str, Any] = {"checkpoint": tmp_path / "run.pt", "checkpoint_every": Steps(5)}
    with pytest.raises(Enough):
        fit(make(), *data(0), MSE(17), callbacks=[stop], **settings, **files)
    again = fit(make(), *data(0), MSE(17), **settings, **files)
    assert again.last("loss") == pytest.approx(whole.last("loss"), rel=1e-6)


def test_the_global_generators_are_left_alone() -> None:
    before = torch.cuda.get_rng_state()
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)), 0).double().cuda()
    fit(model, *data(0), MSE(17), budget=Steps(3))
    assert torch.equal(torch.cuda.get_rng_state(), before)
