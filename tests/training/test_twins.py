"""Each algorithm against a naive twin from the paper's lines: lstsq per step, autograd, torch's own optimisers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rlploss import Autoencoder, Epochs, LeNet5, RegressionNet, Steps, fit, seeded
from rlploss.loss.functional import draw_rows
from rlploss.loss.mixup import mixup_lambdas
from rlploss.loss.subsets import balanced_subsets
from rlploss.training.draws import stream

N, D, M, K = 40, 3, 9, 7
SEED = 5


def problem(n: int = N, d: int = D, outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(X @ torch.randn(d, outputs, generator=generator, dtype=torch.float64)) + X[:, :1]
    return X, y


def network(n_features: int = D, n_outputs: int = 1) -> nn.Module:
    return seeded(lambda: RegressionNet(n_features, n_outputs), 3).double()


def naive(
    model: nn.Module, losses: Callable[[int], Tensor], steps: int, optimizer: torch.optim.Optimizer
) -> list[float]:
    """Plain gradient descent on losses(step); the model is trained in place."""
    values = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = losses(step)
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    return values


def planes_apart(x: Tensor, h: Tensor, y: Tensor) -> Tensor:
    """M_h − M_y as the paper writes them, each by its own least squares."""
    return torch.linalg.lstsq(x, h).solution - torch.linalg.lstsq(x, y).solution


def assert_same(ours: nn.Module, twin: nn.Module, history_loss: Tensor, values: list[float]) -> None:
    torch.testing.assert_close(history_loss, torch.tensor(values, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def trained(model: nn.Module, X: Tensor, y: Tensor | None, objective: str, **settings: object) -> Tensor:
    """Train with `fit`, evaluated at every step, and return the loss of every step."""
    history = fit(model, X, y, objective, seed=SEED, lr=0.01, evaluate_every=Steps(1), **settings)
    return torch.from_numpy(history["loss"][1:])


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.parametrize("outputs", [1, 2])
def test_released_loop(outputs: int) -> None:
    X, y = problem(outputs=outputs)
    ours, twin = network(n_outputs=outputs), network(n_outputs=outputs)
    plan = balanced_subsets(N, M, K, generator=stream(SEED, "plan"))

    def loss(step: int) -> Tensor:
        rows = plan[step % K]
        x, h = X[rows], twin(X[rows])
        return (x @ planes_apart(x, h, y[rows])).square().mean()

    values = naive(twin, loss, 3 * K, adam(twin))
    curve = trained(ours, X, y, "rlp", preset="released", budget=Epochs(3), subset_size=M, n_subsets=K)
    assert_same(ours, twin, curve, values)


def test_algorithm_2() -> None:
    X, y = problem()
    ours, twin = network(), network()
    plan = balanced_subsets(N, M, K, method="paper", generator=stream(SEED, "plan"))
    draws = stream(SEED, "draw")

    def loss(step: int) -> Tensor:
        points = X[draw_rows(plan, N, "train", draws)]
        terms = []
        for rows, z in zip(plan, points, strict=True):
            delta = planes_apart(X[rows], twin(X[rows]), y[rows])
            terms.append((delta.mT @ z).square().sum())
        return torch.stack(terms).mean()

    values = naive(twin, loss, 6, adam(twin))
    curve = trained(ours, X, y, "rlp", preset="paper", budget=Epochs(6), subset_size=M, n_subsets=K)
    assert_same(ours, twin, curve, values)


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_algorithm_3_mixup(preset: str) -> None:
    X, y = problem()
    ours, twin = network(), network()
    plans, lambdas = stream(SEED, "plan"), stream(SEED, "mixup")
    method = "paper" if preset == "paper" else "balanced"
    a, b = (balanced_subsets(N, M, K, method=method, generator=plans) for _ in range(2))

    def pair(j: int, lam: Tensor) -> Tensor:
        x = lam * X[a[j]] + (1 - lam) * X[b[j]]
        target = lam * y[a[j]] + (1 - lam) * y[b[j]]
        fitted = x @ planes_apart(x, twin(x), target)
        return fitted.sum().square() if preset == "paper" else fitted.square().mean()

    drawn: list[Tensor] = []

    def loss(step: int) -> Tensor:
        per_epoch = 1 if preset == "paper" else K
        if step % per_epoch == 0:
            drawn[:] = [mixup_lambdas(K, 0.4, generator=lambdas)]
        if preset == "paper":
            return torch.stack([pair(j, drawn[0][j]) for j in range(K)]).mean()
        return pair(step % K, drawn[0][step % K])

    values = naive(twin, loss, 5 if preset == "paper" else 3 * K, adam(twin))
    epochs = Epochs(5 if preset == "paper" else 3)
    curve = trained(ours, X, y, "rlp+mixup", preset=preset, budget=epochs, subset_size=M, n_subsets=K, mixup_alpha=0.4)
    assert_same(ours, twin, curve, values)


@pytest.mark.parametrize("probe", ["subset", "draw", "expected", "sum"])
@pytest.mark.parametrize(("per_step", "n_subsets"), [(1, 7), (3, 7), (5, 7), (7, 7)])
def test_every_probe_with_any_number_of_subsets_per_step(probe: str, per_step: int, n_subsets: int) -> None:
    from rlploss import rlp_loss

    X, y = problem()
    ours, twin = network(), network()
    intercept = probe != "sum"
    plan = balanced_subsets(N, M, n_subsets, generator=stream(SEED, "plan"))
    draws = stream(SEED, "draw")
    steps_per_epoch = -(-n_subsets // per_step)
    points: list[Tensor] = []

    def loss(step: int) -> Tensor:
        position = step % steps_per_epoch
        if position == 0 and probe == "draw":
            points[:] = [X[draw_rows(plan, N, "outside", draws)]]
        which = slice(position * per_step, min((position + 1) * per_step, n_subsets))
        given = None
        if probe == "draw":
            given = points[0][which]
        return rlp_loss(
            twin(X),
            y,
            X,
            subsets=plan[which],
            probe=probe,
            intercept=intercept,
            ridge=0.1,
            draw_from="outside",
            probe_points=given,
        )

    values = naive(twin, loss, 2 * steps_per_epoch, adam(twin))
    curve = trained(
        ours,
        X,
        y,
        "rlp",
        probe=probe,
        ridge=0.1,
        draw_from="outside",
        subsets_per_step=per_step,
        budget=Epochs(2),
        subset_size=M,
        n_subsets=n_subsets,
    )
    assert_same(ours, twin, curve, values)


POINTWISE = {"mse": nn.functional.mse_loss, "mae": nn.functional.l1_loss, "huber": nn.functional.huber_loss}


@pytest.mark.parametrize("objective", ["mse", "mae", "huber", "mse+mixup"])
def test_pointwise_objectives(objective: str) -> None:
    X, y = problem(outputs=2)
    y = 3 * y  # so that the Huber loss has both of its parts
    ours, twin = network(n_outputs=2), network(n_outputs=2)
    shuffle, mixed = stream(SEED, "shuffle"), stream(SEED, "mixup")
    size, per_epoch = 12, 4  # 40 rows: the last batch has 4
    drawn: dict[str, Tensor] = {}

    def loss(step: int) -> Tensor:
        position = step % per_epoch
        if position == 0:
            drawn["order"] = torch.randperm(N, generator=shuffle)
            if objective == "mse+mixup":
                drawn["partner"] = torch.randperm(N, generator=mixed)
                drawn["lam"] = mixup_lambdas(per_epoch, 0.25, generator=mixed)
        part = slice(position * size, (position + 1) * size)
        x, target = X[drawn["order"][part]], y[drawn["order"][part]]
        if objective == "mse+mixup":
            other, lam = drawn["partner"][part], drawn["lam"][position]
            x, target = lam * x + (1 - lam) * X[other], lam * target + (1 - lam) * y[other]
        return POINTWISE[objective.removesuffix("+mixup")](twin(x), target)

    values = naive(twin, loss, 3 * per_epoch, adam(twin))
    curve = trained(ours, X, y, objective, batch_size=size, budget=Epochs(3))
    assert_same(ours, twin, curve, values)


@pytest.mark.parametrize("objective", ["cross_entropy", "cross_entropy+mixup"])
def test_cross_entropy_on_logits(objective: str) -> None:
    X, _ = problem()
    labels = torch.randint(3, (N,), generator=torch.Generator().manual_seed(2))
    ours, twin = network(n_outputs=3), network(n_outputs=3)
    shuffle, mixed = stream(SEED, "shuffle"), stream(SEED, "mixup")
    drawn: dict[str, Tensor] = {}

    def loss(step: int) -> Tensor:
        if step % 2 == 0:
            drawn["order"] = torch.randperm(N, generator=shuffle)
            drawn["partner"] = torch.randperm(N, generator=mixed)
            drawn["lam"] = mixup_lambdas(2, 0.25, generator=mixed)
        part = slice(step % 2 * 20, step % 2 * 20 + 20)
        rows = drawn["order"][part]
        if objective == "cross_entropy":
            return nn.functional.cross_entropy(twin(X[rows]), labels[rows])
        other, lam = drawn["partner"][part], drawn["lam"][step % 2]
        out = twin(lam * X[rows] + (1 - lam) * X[other])
        # mixup's own form: the loss is mixed, not the labels
        first, second = (
            nn.functional.cross_entropy(out, labels[rows]),
            nn.functional.cross_entropy(out, labels[other]),
        )
        return lam * first + (1 - lam) * second

    values = naive(twin, loss, 6, adam(twin))
    curve = trained(ours, X, labels, objective, batch_size=20, budget=Epochs(3))
    assert_same(ours, twin, curve, values)


OPTIMISERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1, momentum=0.7),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1, momentum=0.7, nesterov=True),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_schedule_and_clipping(name: str) -> None:
    X, y = problem()
    ours, twin = network(), network()
    optimizer = OPTIMISERS[name](twin.parameters())
    for step in range(20):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / 20)
        optimizer.zero_grad()
        nn.functional.mse_loss(twin(X), y).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
        optimizer.step()
    momentum = {"momentum": 0.7} if name.startswith("sgd") else {}
    fit(
        ours,
        X,
        y,
        "mse",
        budget=Steps(20),
        batch_size=N,
        lr=0.01,
        weight_decay=0.1,
        optimizer=name,
        schedule="linear",
        clip_grad=0.05,
        **momentum,
    )
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_factory_is_used_as_it_is() -> None:
    X, y = problem()
    ours, twin = network(), network()
    fit(ours, X, y, "mse", budget=Steps(4), batch_size=N, optimizer=lambda p: torch.optim.Adagrad(p, lr=0.1))
    naive(twin, lambda _: nn.functional.mse_loss(twin(X), y), 4, torch.optim.Adagrad(twin.parameters(), lr=0.1))
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_released_autoencoder_with_its_float32_cut_off() -> None:
    generator = torch.Generator().manual_seed(4)
    # images of rank 6 plus a weak rest: float32 arithmetic on xᵀx loses the weak directions
    X = torch.rand(60, 6, generator=generator) @ torch.rand(6, 20, generator=generator) / 6
    X = (X + 1e-5 * torch.rand(60, 20, generator=generator)).clamp(0, 1)
    ours, twin = (seeded(lambda: Autoencoder(20, latent=4), 1) for _ in range(2))
    plan = balanced_subsets(60, 30, 5, generator=stream(SEED, "plan"))
    kept = []

    def loss(step: int) -> Tensor:
        x = X[plan[step % 5]]
        gram = x.mT @ x
        kept.append(int(torch.linalg.matrix_rank(gram)))
        fitted = x @ (torch.linalg.pinv(gram) @ x.mT @ twin(x))
        return nn.functional.mse_loss(fitted, x)

    values = naive(twin, loss, 20, adam(twin))
    curve = trained(ours, X, None, "rlp", preset="released-autoencoder", budget=Steps(20), subset_size=30, n_subsets=5)
    assert max(kept) < 20, "the cut-off must drop something here, or the test tests nothing"
    torch.testing.assert_close(curve, torch.tensor(values, dtype=torch.float64), rtol=1e-4, atol=1e-6)
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_images_and_class_numbers_with_rlp() -> None:
    generator = torch.Generator().manual_seed(6)
    X = torch.rand(30, 1, 32, 32, generator=generator)
    labels = torch.randint(10, (30,), generator=generator)
    ours = seeded(lambda: LeNet5(output="sigmoid"), 0)
    twin = copy.deepcopy(ours)
    plan = balanced_subsets(30, 10, 4, generator=stream(SEED, "plan"))
    one_hot = nn.functional.one_hot(labels, 10).float()
    # fewer rows than pixels: the squared error of the probabilities
    values = naive(twin, lambda s: nn.functional.mse_loss(twin(X[plan[s]]), one_hot[plan[s]]), 4, adam(twin))
    with pytest.warns(UserWarning, match="exactly MSE"):
        curve = trained(ours, X, labels, "rlp", preset="released", budget=Steps(4), subset_size=10, n_subsets=4)
    torch.testing.assert_close(curve, torch.tensor(values, dtype=torch.float64), rtol=1e-4, atol=1e-6)
