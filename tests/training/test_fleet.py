"""A fleet gives what `fit` gives, replica by replica, to the bit."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.fleets import (
    D,
    Gated,
    bits,
    build,
    check_against_fit,
    convolutional,
    data,
    replicas,
)
from torch import Tensor, nn

from rlploss import (
    MAE,
    MSE,
    RLP,
    SGD,
    Adam,
    AdamW,
    Autoencoder,
    BatchLoss,
    CrossEntropy,
    DivergenceError,
    EarlyStopping,
    Epochs,
    Event,
    Huber,
    LeNet5,
    MoonsNet,
    Pointwise,
    Problem,
    Progress,
    RegressionNet,
    RLPLoss,
    Steps,
    fit,
    fit_fleet,
    seeded,
)
from rlploss.training.engine import ModuleEngine
from rlploss.training.kernel_engine import KernelEngine


def quartic(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target) ** 4


CASES: dict[str, Any] = {
    "mse": MSE(17),
    "mse full batch": MSE("all"),
    "mae": MAE(17),
    "huber": Huber(17),
    "mse mixup": MSE(17, mixup=0.25),
    "pointwise": Pointwise(quartic, 17),
    "batch loss": BatchLoss(RLPLoss(intercept=True), 20),
    "default": RLP(13, 11),
    "released": RLP.released(13, 11),
    "paper": RLP.paper(13, 11),
    "draw each epoch": RLP(13, 11, probe="draw", plan="each-epoch", draw_from="outside"),
    "expected": RLP(13, 11, probe="expected", ridge=0.1),
    "sum": RLP(13, 11, probe="sum"),
    "3 subsets per step": RLP(13, 11, subsets_per_step=3),
    "quadratic form": RLP(50, 90, subsets_per_step="all"),
    "complement": RLP(8, 11),
    "mixup": RLP(13, 11, mixup=0.4),
    "mixup each epoch": RLP(13, 11, mixup=0.4, plan="each-epoch"),
}


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize("case", CASES)
def test_fleet_equals_fit(case: str, engine: str) -> None:
    settings: dict[str, Any] = {
        "budget": Steps(60),
        "evaluate_every": Steps(25),
        "optimizer": AdamW(0.01, 0.1),
    }
    fleet = check_against_fit(build(), replicas(), CASES[case], engine=engine, **settings)
    assert [h.settings["engine"] for h in fleet] == [engine] * 3
    assert len({h.last("mse") for h in fleet}) == 3


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_replicas_differ_in_rows_objectives_rates_and_budgets(engine: str) -> None:
    problems = [
        Problem(*data(0, 60), validation=data(9, 30), optimizer=Adam(0.02), objective=RLP(10, 7)),
        Problem(
            *data(1, 45),
            validation=data(8, 20),
            seed=1,
            optimizer=Adam(0.01, 0.3),
            budget=Steps(35),
        ),
        Problem(
            *data(2, 80),
            validation=data(7, 30),
            seed=4,
            budget=Epochs(5),
            objective=RLP(17, 9, ridge=0.2),
        ),
        Problem(
            *data(2, 80),
            validation=data(7, 30),
            seed=2,
            budget=Steps(200),
            objective="mae",
            optimizer=SGD(0.1),
        ),
    ]
    fleet = check_against_fit(
        build(),
        problems,
        RLP(14, 9),
        budget=Steps(60),
        evaluate_every=Steps(20),
        optimizer=Adam(0.01),
        engine=engine,
    )
    assert [h.last("step") for h in fleet] == [60, 35, 45, 200]
    assert [h.settings["objective"] for h in fleet] == [
        RLP(10, 7).resolve(60, D), RLP(14, 9).resolve(45, D), RLP(17, 9, ridge=0.2).resolve(80, D), MAE(80),
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize(
    "optimizer", [Adam(0.01, 0.2), AdamW(0.01, 0.2), SGD(0.01, 0.8), SGD(0.01, 0.8, nesterov=True)]
)
def test_every_optimiser(optimizer: Any, engine: str) -> None:
    problems = [*replicas(1), Problem(*data(1), validation=data(101), seed=1, optimizer=Adam(0.03))]
    check_against_fit(
        build(),
        problems,
        MSE(25),
        budget=Epochs(6),
        optimizer=optimizer,
        schedule="cosine",
        clip_grad=0.1,
        engine=engine,
    )


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_classes_and_a_network_with_two_hidden_layers(engine: str) -> None:
    problems = []
    for seed in range(2):
        X, _ = data(seed, 50)
        labels = (X[:, 0] * X[:, 1] > 0).long()
        problems.append(Problem(X[:, :2], labels, validation=(X[:30, :2], labels[:30]), seed=seed))

    def network(output: str) -> Any:
        return lambda seed: seeded(lambda: MoonsNet(hidden=6, output=output), seed).double()

    common: dict[str, Any] = {
        "budget": Epochs(4),
        "metrics": ("accuracy", "f1", "cross_entropy"),
        "engine": engine,
    }
    for objective in (CrossEntropy(20), CrossEntropy(20, mixup=0.25)):
        check_against_fit(network("logits"), problems, objective, optimizer=Adam(0.01), **common)
    check_against_fit(network("sigmoid"), problems, RLP(9, 12), optimizer=Adam(0.01), **common)
    check_against_fit(network("softmax"), problems, MSE(20), optimizer=Adam(0.01), **common)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_multiple_outputs_several_validation_shapes_and_weights(engine: str) -> None:
    weights = [
        torch.rand(50, generator=torch.Generator().manual_seed(i), dtype=torch.float64) + 0.1
        for i in range(3)
    ]
    problems = [
        Problem(
            *data(i, 50, 3),
            validation=data(50 + i, 20 + i, 3),
            seed=i,
            sample_weight=weights[i] if i else None,
        )
        for i in range(3)
    ]
    settings: dict[str, Any] = {
        "budget": Epochs(3),
        "metrics": ("mse", "mae", "rlp"),
        "engine": engine,
    }
    for objective in (RLP(12, 9), RLP(8, 9), Huber(16), RLP(12, 9, subsets_per_step="all")):
        check_against_fit(build(3), problems, objective, optimizer=Adam(0.01), **settings)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_stopping_early_and_by_callback(engine: str) -> None:
    seen: list[tuple[int, int]] = []

    def stop_first(event: Event) -> bool:
        seen.append((event.replica, event.step))
        return event.replica == 0 and event.step >= 20

    settings: dict[str, Any] = {
        "budget": Steps(400),
        "evaluate_every": Steps(10),
        "optimizer": Adam(0.05),
    }
    settings["engine"] = engine
    fleet = fit_fleet(
        build(), replicas(4), MSE(60), callbacks=[stop_first], early_stopping=3, **settings
    )
    assert fleet[0].stopped == "callback"
    assert fleet[0].last("step") == 20
    assert (0, 30) not in seen
    assert "early stopping" in {h.stopped for h in fleet}
    check_against_fit(
        build(), replicas(4), MSE(60), early_stopping=EarlyStopping("mse", 3), **settings
    )


@pytest.mark.parametrize("factory", [Gated, convolutional])
def test_other_architectures_train_by_torch(factory: Any) -> None:
    def make(seed: int) -> nn.Module:
        return seeded(factory, seed).double()

    fleet = check_against_fit(
        make, replicas(2), RLP(13, 11), budget=Steps(20), optimizer=Adam(0.01)
    )
    assert {h.settings["engine"] for h in fleet} == {"torch"}


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(8), nn.Dropout])
def test_networks_with_a_memory_or_a_lottery(layer: Any) -> None:
    def make(seed: int) -> nn.Module:
        return seeded(
            lambda: nn.Sequential(nn.Linear(D, 8), layer(), nn.Linear(8, 1)), seed
        ).double()

    check_against_fit(make, replicas(3), MSE(17), budget=Steps(12))


def test_the_papers_larger_networks() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(12, 1, 32, 32, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (12,), generator=generator)
    pixels = torch.rand(30, 9, generator=generator, dtype=torch.float64)
    digits = [Problem(images, labels, seed=s, validation=(images, labels)) for s in range(2)]
    check_against_fit(
        lambda seed: seeded(LeNet5, seed).double(), digits, CrossEntropy(6), budget=Steps(3)
    )
    copies = [Problem(pixels, None, seed=s, validation=(pixels, None)) for s in range(2)]
    for engine in ("torch", "kernel"):
        check_against_fit(
            lambda seed: seeded(lambda: Autoencoder(9, latent=3), seed).double(),
            copies,
            RLP(20, 6),
            budget=Steps(12),
            optimizer=SGD(1e-3, momentum=0.99),
            engine=engine,
        )


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_single_precision(engine: str) -> None:
    problems = [
        Problem(X.float(), y.float(), seed=i) for i, (X, y) in enumerate(data(i) for i in range(2))
    ]
    for objective in (RLP(13, 11), RLP(13, 11, mixup=0.3), MSE(17)):
        check_against_fit(
            lambda s: build()(s).float(),
            problems,
            objective,
            budget=Steps(200),
            optimizer=Adam(0.01),
            engine=engine,
        )


def test_many_replicas() -> None:
    fleet = fit_fleet(build(), replicas(300), MSE(20), budget=Steps(3))
    for number in (0, 149, 150, 299):
        alone = fit(
            build()(number),
            *data(number),
            MSE(20),
            budget=Steps(3),
            seed=number,
            validation=data(100 + number),
        )
        assert bits(fleet[number]) == bits(alone)


@pytest.mark.parametrize("objective", [MSE(20), RLP(13, 11)], ids=str)
@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_few_replicas_hold_their_factors_at_a_time(engine: str, objective: Any) -> None:
    """As many as are trained at a time, and the one that begins; none once all have ended."""
    held: list[int] = []

    def engines() -> int:
        gc.collect()
        return sum(type(each) in (ModuleEngine, KernelEngine) for each in gc.get_objects())

    def count(event: Event) -> None:
        if event.step == 0:
            held.append(engines())

    at_a_time = torch.get_num_threads() if engine == "kernel" else 0
    problems, before = replicas(at_a_time + 5), engines()
    histories = fit_fleet(
        build(), problems, objective, budget=Steps(3), callbacks=[count], engine=engine
    )
    assert len(histories) == len(held) == len(problems)
    assert max(held) - before <= at_a_time + 1
    assert engines() == before


def test_the_order_of_problems_does_not_matter() -> None:
    problems = replicas(5)
    forward = fit_fleet(build(), problems, RLP(13, 11), budget=Steps(40))
    backward = fit_fleet(build(), problems[::-1], RLP(13, 11), budget=Steps(40))
    for ours, theirs in zip(forward, backward[::-1], strict=True):
        assert bits(ours) == bits(theirs)


def test_kernel_and_torch_in_one_fleet() -> None:
    """A function as optimiser sends one replica to torch; the others stay with the kernel."""
    problems = [
        *replicas(2),
        Problem(*data(2), seed=2, validation=data(102), optimizer=torch.optim.Adagrad),
    ]
    fleet = check_against_fit(build(), problems, MSE(17), budget=Steps(20))
    assert [h.settings["engine"] for h in fleet] == ["kernel", "kernel", "torch"]
    assert fleet[2].settings["engine_reason"] == "the optimizer is a function"


# Divergence


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_divergence_ends_one_replica_and_not_the_others(engine: str) -> None:
    problems = [*replicas(2), Problem(*data(2), seed=2, validation=data(102), optimizer=SGD(1e150))]
    settings: dict[str, Any] = {
        "budget": Steps(75),
        "optimizer": Adam(0.01),
        "schedule": "linear",
        "engine": engine,
    }
    fleet = check_against_fit(build(), problems, MSE(17), on_divergence="record", **settings)
    assert [h.stopped for h in fleet] == ["budget", "budget", "diverged"]
    assert fleet[2].message.startswith("replica 2: the loss became ")
    assert fleet[2].model is not None
    assert all(torch.isfinite(p).all() for p in fleet[2].model.parameters())
    with pytest.raises(DivergenceError, match="replica 2: the loss became"):
        fit_fleet(build(), problems, MSE(17), **settings)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_an_error_leaves_the_trained_weights_and_not_the_initial_ones(engine: str) -> None:
    """The weights of every replica are its own, as far as it came, when one of them diverges or a
    callback fails."""
    made: dict[int, nn.Module] = {}

    def make(seed: int) -> nn.Module:
        made[seed] = build()(seed)
        return made[seed]

    def poisoned(step: int, total: int) -> float:
        return 1e200 if step >= 30 else 1.0

    settings: dict[str, Any] = {"budget": Steps(75), "evaluate_every": Steps(10), "engine": engine}
    with pytest.raises(DivergenceError, match=r"at step 3\d"):
        fit_fleet(make, replicas(1), MSE(17), schedule=poisoned, optimizer=SGD(0.01), **settings)
    twin = build()(0)
    fit(twin, *data(0), MSE(17), budget=Steps(30), optimizer=SGD(0.01), engine=engine)
    first = next(iter(twin.parameters()))
    left = next(iter(made[0].parameters()))
    assert torch.isfinite(left).all()
    assert not torch.equal(left, next(iter(build()(0).parameters())))

    class Enough(Exception):
        pass

    def fail(event: Event) -> None:
        if event.replica == 0 and event.step == 30:
            raise Enough

    with pytest.raises(Enough):
        fit_fleet(make, replicas(1), MSE(17), optimizer=SGD(0.01), callbacks=[fail], **settings)
    left = next(iter(made[0].parameters()))
    assert torch.equal(left, first)
    assert left.untyped_storage().nbytes() == left.numel() * 8


# Callbacks


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_callbacks_see_current_weights_and_may_compute_gradients(engine: str) -> None:
    """A gradient in a callback disturbs nothing: neither values nor the gradients of the run."""
    norms: dict[tuple[int, int], float] = {}

    def gradient(event: Event) -> None:
        model = event.model()
        X, y = data(event.replica)
        loss = nn.functional.mse_loss(model(X), y)
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        norms[event.replica, event.step] = float(loss.detach())
        V, w = data(100 + event.replica)
        assert event.metrics["mse"] == pytest.approx(
            float(nn.functional.mse_loss(model(V), w).detach()), rel=1e-12
        )

    settings: dict[str, Any] = {"budget": Steps(40), "evaluate_every": Steps(10), "engine": engine}
    for objective in (MSE(17), RLP(13, 11), Pointwise(quartic, 17)):
        watched = fit_fleet(build(), replicas(3), objective, callbacks=[gradient], **settings)
        alone = fit_fleet(build(), replicas(3), objective, **settings)
        assert [bits(a) for a in watched] == [bits(b) for b in alone]
        assert len(norms) == 15
        assert len(set(norms.values())) == 15, "the weights change from one evaluation to the next"


def test_a_callback_may_replace_weights() -> None:
    """What a callback writes into the module is what goes on being trained, by either engine."""
    ends = []
    for engine in ("torch", "kernel"):

        def reset(event: Event) -> None:
            if event.step == 20:
                with torch.no_grad():
                    for p in event.model().parameters():
                        p.zero_()
                        p.add_(0.1)

        history = fit(
            build()(0), *data(0), MSE(60), budget=Steps(40), evaluate_every=Steps(20), callbacks=[reset],
            optimizer=SGD(0.05), engine=engine,
        )  # fmt: skip
        ends.append(history)
    plain = fit(
        build()(0),
        *data(0),
        MSE(60),
        budget=Steps(40),
        evaluate_every=Steps(20),
        optimizer=SGD(0.05),
    )
    assert abs(ends[0].last("loss") - plain.last("loss")) > 1e-3
    np.testing.assert_allclose(ends[1]["loss"], ends[0]["loss"], rtol=1e-10)


def test_replicas_leave_models_that_own_their_memory() -> None:
    fleet = fit_fleet(build(), replicas(3), MSE(17), budget=Steps(20))
    places = set()
    for history in fleet:
        assert history.model is not None
        for p in history.model.parameters():
            assert p.untyped_storage().nbytes() == p.numel() * p.element_size()
            assert p.is_leaf
            assert p.requires_grad
            places.add(p.data_ptr())
        copy.deepcopy(history.model)
    assert len(places) == 12


# Ctrl-C


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt, which would end the tests if it came too late."""


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of the signal that is lost, see `send`
@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize(
    "objective", [MSE(17), RLP(13, 11, plan="each-epoch"), Pointwise(quartic, 17)], ids=repr
)
def test_an_interrupt_ends_a_run_at_once_and_leaves_the_weights(
    objective: Any, engine: str
) -> None:
    made: dict[int, nn.Module] = {}

    def make(seed: int) -> nn.Module:
        made[seed] = build()(seed)
        return made[seed]

    def interrupt(*_: object) -> None:
        raise Interrupted

    fit_fleet(
        make, replicas(1), objective, budget=Steps(2), engine=engine
    )  # whatever must be compiled
    before = signal.signal(signal.SIGUSR1, interrupt)
    over = threading.Event()

    def send() -> None:
        """Send the signal, and again: one that comes while Python collects garbage is lost to
        everybody."""
        over.wait(2.0)
        while not over.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            over.wait(8.0)

    sender = threading.Thread(target=send)
    started = time.perf_counter()
    try:
        sender.start()
        with pytest.raises(Interrupted):
            fit_fleet(make, replicas(3), objective, budget=Steps(10**8), engine=engine)
        assert time.perf_counter() - started < 30  # not the days that the budget would take
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert not torch.equal(made[0].fc1.weight, build()(0).fc1.weight), "it had begun"
    for model in made.values():
        for p in model.parameters():
            assert torch.isfinite(p).all()
            assert p.untyped_storage().nbytes() == p.numel() * 8
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rlploss")]


class Leaking:
    """`torch.enable_grad`, interrupted before it puts back what was."""

    def __enter__(self) -> None:
        torch.set_grad_enabled(True)

    def __exit__(self, *_: object) -> None:
        raise Interrupted


def test_an_interrupt_while_gradients_are_on_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = data(0)
    model = build()(0)
    loss = BatchLoss(lambda pred, target, features: (pred - target).square().mean(), 17)
    monkeypatch.setattr(torch, "enable_grad", Leaking)
    with pytest.raises(Interrupted):
        fit(model, X, y, loss, budget=Steps(3), engine="kernel")
    assert all(p.requires_grad for p in model.parameters())


# Progress


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_progress_counts_the_steps_of_all(engine: str) -> None:
    told: list[Progress] = []
    problems = [*replicas(2), Problem(*data(2), seed=2, validation=data(102), budget=Steps(30))]
    fit_fleet(build(), problems, MSE(17), budget=Steps(50), progress=told.append, engine=engine)
    assert [p.step for p in told] == sorted(p.step for p in told)
    assert (told[-1].step, told[-1].total_steps, told[-1].remaining) == (130, 130, 0)


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "fast"}, 'engine must be one of "auto", "kernel", "torch", got \'fast\''),
        ({"objective": "rpl"}, 'objective must be one of .*did you mean "rlp"'),
        ({"on_divergence": "ignore"}, "on_divergence must be one of"),
        (
            {"build_model": RegressionNet(D).double()},
            "build_model must be a function of a seed.*got RegressionNet; write",
        ),
        ({"build_model": 3}, "build_model must be a function of a seed .*got int"),
        ({"build_model": lambda seed: None}, r"model must be a torch\.nn\.Module, got NoneType"),
        (
            {"problems": [data(0)]},
            r"problems must be Problem values, got tuple; write Problem\(X, y\)",
        ),
        ({"problems": Problem(*data(0))}, "problems must be"),
        ({"checkpoint_every": Steps(3)}, "checkpoint_every needs a place to write to"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {
        "build_model": build(),
        "problems": [Problem(*data(0))],
        "objective": "mse",
        **change,
    }
    with pytest.raises((ValueError, TypeError), match=message):
        fit_fleet(**settings, budget=Steps(2))


def test_different_architectures_train_side_by_side() -> None:
    def make(seed: int) -> nn.Module:
        net = seeded(lambda: RegressionNet(D, hidden=4 + seed), seed)
        return net if seed == 1 else net.double()

    shared = data(100)  # read anew for each floating type
    problems = [Problem(*data(seed), seed=seed, validation=shared) for seed in range(3)]
    check_against_fit(make, problems, "mse", budget=Steps(5))


def test_an_empty_fleet() -> None:
    assert fit_fleet(build(), [], "mse", budget=Steps(2)) == []


def test_problems_from_a_generator_keep_their_own_validation_rows() -> None:
    """Lists die and others take their place in memory: replicas must not be told apart by where a
    dead list was."""
    X, y = data(0)

    def problems() -> Any:
        for i in range(12):
            yield Problem(
                X, y, seed=0, validation=(X.tolist(), torch.full_like(y, float(i)).tolist())
            )

    done = fit_fleet(build(), problems(), MSE(17), budget=Steps(1))
    assert len({history["mse"][0] for history in done}) == 12
