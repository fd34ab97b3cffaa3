"""Algorithm 3's pairing against a naive twin."""

import pytest
import torch
from tests.close import assert_close

from rlploss import balanced_subsets, mixup, mixup_lambdas, mixup_subsets, rlp_loss


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_mixup_is_a_convex_combination():
    a, b = torch.randn(2, 5, 3, generator=seeded())
    assert torch.equal(mixup(a, b, 1.0), a)
    assert torch.equal(mixup(a, b, 0.0), b)
    lam = torch.rand(5, generator=seeded())
    mixed = mixup(a, b, lam)
    for i in range(5):
        assert_close(mixed[i], lam[i] * a[i] + (1 - lam[i]) * b[i], dtype=torch.float32)
    assert mixup(a, b, lam.double()).dtype == torch.float32


def test_lambdas_follow_beta():
    for alpha in (0.2, 0.25, 1.0, 4.0):
        lam = mixup_lambdas(20000, alpha, generator=seeded())
        assert ((lam >= 0) & (lam <= 1)).all()
        variance = 1 / (4 * (2 * alpha + 1))
        assert abs(float(lam.mean()) - 0.5) < 5 * (variance / 20000) ** 0.5
        assert abs(float(lam.var()) / variance - 1) < 0.05


def test_lambdas_come_from_the_generator_only():
    before = torch.get_rng_state()
    g = seeded(3)
    first, second = mixup_lambdas(4, 0.2, generator=g), mixup_lambdas(4, 0.2, generator=g)
    assert torch.equal(first, mixup_lambdas(4, 0.2, generator=seeded(3)))
    assert not torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())
    assert mixup_lambdas(3, 0.01, generator=g).isfinite().all()


def test_pairs_of_algorithm_3_and_their_loss():
    N, M, K = 20, 8, 5
    X = torch.randn(N, 3, generator=seeded(), dtype=torch.float64)
    y = torch.randn(N, 2, generator=seeded(1), dtype=torch.float64)
    plan_a, plan_b = (balanced_subsets(N, M, K, generator=seeded(s)) for s in (2, 3))
    lam = mixup_lambdas(K, 0.25, generator=seeded(4))
    x_mixed, y_mixed = mixup_subsets(X, y, plan_a, plan_b, lam)
    h = lambda x: x.square() @ torch.ones(3, 2, dtype=torch.float64)  # noqa: E731 - a formula
    singles = []
    for j in range(K):
        x = torch.stack(
            [lam[j] * X[a] + (1 - lam[j]) * X[b] for a, b in zip(plan_a[j], plan_b[j], strict=True)]
        )
        t = torch.stack(
            [lam[j] * y[a] + (1 - lam[j]) * y[b] for a, b in zip(plan_a[j], plan_b[j], strict=True)]
        )
        assert_close(x_mixed[j], x)
        assert_close(y_mixed[j], t)
        gap = torch.linalg.pinv(x) @ t - torch.linalg.pinv(x) @ h(x)  # M_y − M_h
        singles.append((x @ gap).sum(0).square().mean())
    flat = x_mixed.flatten(0, 1)
    plan = torch.arange(K * M).view(K, M)
    loss = rlp_loss(h(flat), y_mixed.flatten(0, 1), flat, subsets=plan, probe="sum")
    assert_close(loss, torch.stack(singles).mean())


def test_errors():
    a = torch.zeros(4, 2)
    with pytest.raises(
        ValueError, match=r"a and b must have the same shape, got \(4, 2\) and \(3, 2\)"
    ):
        mixup(a, a[:3], 0.5)
    with pytest.raises(ValueError, match=r"lam must be a number or have shape \(4,\), got \(2,\)"):
        mixup(a, a, torch.zeros(2))
    with pytest.raises(
        ValueError, match=r"mixup_alpha must be positive, got 0.0; leave mixup out instead"
    ):
        mixup_lambdas(3, 0.0)
    with pytest.raises(ValueError, match=r"mixup_alpha must be finite and at least 0, got -1.0"):
        mixup_lambdas(3, -1.0)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        mixup_lambdas(0, 1.0)
    plan = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"both have shape \(K, M\), got \(2, 3\) and \(2,\)"):
        mixup_subsets(a, a, plan, plan[:, 0], torch.ones(2))
    with pytest.raises(
        ValueError,
        match=r"must pair subset by subset and both have shape .K, M., got \(2, 3\) and \(1, 3\)",
    ):
        mixup_subsets(a, a, plan, plan[:1], torch.ones(2))
    with pytest.raises(ValueError, match="X and y must have the same number of rows, got 4 and 3"):
        mixup_subsets(a, a[:3], plan, plan, torch.ones(2))
