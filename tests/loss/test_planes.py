"""Values and gradients of every probe against the oracle, over drawn shapes and all kinds of bad
features."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.close import assert_close

import rlploss
from rlploss.loss import factors, planes
from rlploss.loss.factors import factor
from rlploss.loss.planes import PROBES, PlaneForm, probe_rows

pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")

SPOILED = (
    "none",
    "duplicate rows",
    "constant",
    "zero",
    "collinear",
    "scales",
    "offset",
    "huge",
    "tiny",
)


BADLY_SCALED = ("scales", "offset", "huge", "tiny")


def spoil(x, kind, rng):
    """Features as people really have them."""
    x = x.copy()
    d = x.shape[1]
    if kind == "duplicate rows":
        x[len(x) // 2 :] = x[0]
    elif kind == "constant":
        x[:, 0] = 0.1
    elif kind == "zero":
        x[:, 0] = 0.0
    elif kind == "collinear" and d > 1:
        x[:, 0] = 2 * x[:, 1]
    elif kind == "scales":
        x *= 10.0 ** rng.uniform(-4, 4, d)
    elif kind == "offset":
        x += 100.0
    elif kind == "huge":
        x *= 1e150
    elif kind == "tiny":
        x *= 1e-150
    return x


@st.composite
def problems(draw):
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    N = draw(st.integers(2, 14))
    d = draw(st.integers(1, 7))
    M = draw(st.integers(1, N))
    K = draw(st.integers(1, 4))
    C = draw(st.sampled_from([None, 1, 2]))
    kind = draw(st.sampled_from(SPOILED))
    features = spoil(rng.normal(size=(N, d)), kind, rng)
    subsets = np.stack([rng.permutation(N)[:M] for _ in range(K)])
    shape = (N,) if C is None else (N, C)
    return {
        "pred": rng.normal(size=shape),
        "target": rng.normal(size=shape),
        "features": features,
        "subsets": subsets,
        "points": features[rng.integers(N, size=K)],
        "kind": kind,
    }


def tolerance(problem, intercept):
    """The contract: 1e-9 up to a condition of 1e6, then 100·eps·condition; None beyond 1e12."""
    worst = 1.0
    for rows in problem["subsets"]:
        x = problem["features"][rows]
        if oracle.rank(x, intercept) == min(x.shape[1] + intercept, len(x)):
            c = oracle.condition(x, intercept) if x.shape[1] + intercept <= len(x) else 1.0
            worst = max(worst, c)
    if worst > 1e12:
        return None
    return 1e-9 if worst <= 1e6 else 100 * oracle.EPS * worst


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("probe", PROBES)
@settings(deadline=None, max_examples=60)
@given(problem=problems(), ridge=st.sampled_from([0.0, 0.0, 0.3]))
def test_value_and_gradient_are_the_oracles(probe, intercept, problem, ridge):
    if problem["kind"] in ("huge", "tiny"):
        ridge = 0.0  # a ridge of 0.3 is no number at all beside 1e300
    rtol = tolerance(problem, intercept)
    if rtol is None:
        return
    points = problem["points"] if probe == "draw" else None
    expected, grad, values = oracle.loss_and_grad(
        problem["pred"],
        problem["target"],
        problem["features"],
        problem["subsets"],
        probe,
        intercept=intercept,
        ridge=ridge,
        points=points,
        # numpy's pseudo-inverse is itself wrong on columns of very different size (1e-150 beside an
        # intercept's 1)
        inverse_of=oracle.exact_pseudo_inverse if problem["kind"] in BADLY_SCALED else None,
    )
    pred = torch.tensor(problem["pred"], requires_grad=True)
    kwargs = {
        "subsets": torch.tensor(problem["subsets"]),
        "probe": probe,
        "intercept": intercept,
        "ridge": ridge,
        "probe_points": None if points is None else torch.tensor(points),
    }
    target, features = torch.tensor(problem["target"]), torch.tensor(problem["features"])
    loss = rlploss.rlp_loss(pred, target, features, **kwargs)
    loss.backward()
    assert_close(loss, expected, rtol)
    assert_close(pred.grad, grad, rtol)
    assert_close(rlploss.rlp_loss(pred, target, features, reduction="none", **kwargs), values, rtol)
    assert_close(
        rlploss.rlp_loss(pred, target, features, reduction="sum", **kwargs),
        expected * len(values),
        rtol,
    )


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("probe", PROBES)
@settings(deadline=None, max_examples=30)
@given(problem=problems())
def test_the_path_without_branches_agrees(probe, intercept, problem):
    """What compiled code and vmap run is another path through the same mathematics."""
    x = torch.tensor(problem["features"])[torch.tensor(problem["subsets"])]
    if problem["kind"] in BADLY_SCALED:
        return  # there the minimum-norm plane is compared with exact arithmetic below
    points = torch.tensor(problem["features" if probe == "expected" else "points"])
    form = PlaneForm(probe, intercept)
    rtol = tolerance(problem, intercept)
    if rtol is None:
        return
    plain = probe_rows(x, form, points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planes, "is_tracing", lambda *_: True)
        patch.setattr(factors, "is_tracing", lambda *_: True)
        branchless = probe_rows(x, form, points)
    assert_close(branchless.mT @ branchless, plain.mT @ plain, 10 * rtol)


def ill_conditioned(rng, M, d, condition):
    u, _ = np.linalg.qr(rng.normal(size=(M, d)))
    v, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return u * np.geomspace(1, 1 / condition, d) @ v.T


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("condition", [1e0, 1e3, 1e6, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("probe", PROBES)
def test_accuracy_against_exact_arithmetic(probe, condition, intercept):
    rng = np.random.default_rng(int(np.log10(condition)) + 7 * intercept)
    x = ill_conditioned(rng, 12, 4, condition)
    r = rng.normal(size=(12, 2))
    Z = x[rng.integers(12, size=9)] + 0.1 * x[rng.integers(12, size=9)]
    P = oracle.exact_pseudo_inverse(x, intercept)
    A = oracle.reading(x, probe, intercept, z=Z[0], Z=Z, inverse=P)
    expected, grad = ((A @ r) ** 2).sum() / 2, A.T @ (A @ r)
    pred = torch.tensor(r, requires_grad=True)
    options = {"draw": torch.tensor(Z[:1]), "expected": torch.tensor(Z)}
    loss = rlploss.rlp_loss(
        pred,
        torch.zeros_like(pred),
        torch.tensor(x),
        probe=probe,
        intercept=intercept,
        probe_points=options.get(probe),
    )
    loss.backward()
    actual = max(condition, oracle.condition(x, intercept))
    rtol = 1e-9 if actual <= 1e6 else 100 * oracle.EPS * actual
    assert_close(loss, expected, rtol)
    assert_close(pred.grad, grad, rtol)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(3, 6), (5, 5), (8, 4), (2, 3), (1, 4), (1, 1)])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["none", "collinear", "scales", "duplicate rows", "constant"])
@pytest.mark.parametrize("probe", PROBES)
def test_rank_deficient_and_wide_features_against_exact_arithmetic(
    probe, kind, ridge, shape, intercept
):
    """Fewer rows than columns, columns that differ by 1e8 in scale: minimum norm in the caller's
    coordinates."""
    rng = np.random.default_rng(3)
    x = (
        np.round(rng.normal(size=shape) * 64) / 64
    )  # exact products, so that rank is the same for both
    if kind == "scales":
        x = x * 2.0 ** np.round(np.linspace(-13, 13, shape[1]))
    else:
        x = spoil(x, kind, rng)
    if kind == "constant":
        x[:, 0] = 0.5
    z = rng.normal(size=shape[1]) * np.abs(x).max(0)
    r = rng.normal(size=(shape[0], 1))
    P = oracle.exact_pseudo_inverse(x, intercept, ridge)
    A = oracle.reading(x, probe, intercept, z=z, Z=z[None], inverse=P)
    options = {"draw": torch.tensor(z[None]), "expected": torch.tensor(z[None])}
    pred = torch.tensor(r, requires_grad=True)
    loss = rlploss.rlp_loss(
        pred,
        torch.zeros_like(pred),
        torch.tensor(x),
        probe=probe,
        intercept=intercept,
        ridge=ridge,
        probe_points=options.get(probe),
    )
    loss.backward()
    assert_close(loss, ((A @ r) ** 2).sum(), 1e-9)
    assert_close(pred.grad, 2 * A.T @ (A @ r), 1e-9)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(9, 4), (4, 4), (3, 6)])
def test_the_oracle_is_itself_right(shape, intercept):
    rng = np.random.default_rng(0)
    for kind in ("none", "collinear", "constant", "zero", "duplicate rows"):
        x = spoil(np.round(rng.normal(size=shape) * 32) / 32, kind, rng)
        if kind == "constant":
            x[:, 0] = 0.125
        for ridge in (0.0, 0.25):
            exact = oracle.exact_pseudo_inverse(x, intercept, ridge)
            assert_close(oracle.pseudo_inverse(x, intercept, ridge), exact, 1e-10)


def test_a_gram_matrix_would_be_far_off():
    """Offset 1e6 with an intercept: the reason why no Gram matrix is formed."""
    gram_errors, errors = [], []
    for seed in range(9):
        rng = np.random.default_rng(seed)
        x = 1e6 + rng.normal(size=(40, 8))
        r = rng.normal(size=(40, 1))
        expected = ((oracle.reading(x, "subset", True) @ r) ** 2).sum()
        full = oracle.design(x, True)
        by_gram = full @ (np.linalg.pinv(full.T @ full) @ (full.T @ r))
        gram_errors.append(abs((by_gram**2).mean() / expected - 1))
        loss = rlploss.rlp_loss(
            torch.tensor(r), torch.zeros(40, 1).double(), torch.tensor(x), intercept=True
        )
        errors.append(abs(float(loss) / expected - 1))
    assert max(errors) < 1e-9
    assert max(gram_errors) > 0.1


@pytest.mark.parametrize("condition", [1e13, 1e15, 1e17, 1e20])
@pytest.mark.parametrize("intercept", [False, True])
def test_beyond_all_reason_still_between_zero_and_mse(condition, intercept):
    rng = np.random.default_rng(5)
    for seed in range(10):
        x = torch.tensor(ill_conditioned(np.random.default_rng(seed), 15, 5, condition))
        r = torch.tensor(rng.normal(size=(15, 1)))
        loss = float(rlploss.rlp_loss(r, torch.zeros_like(r), x, intercept=intercept))
        assert 0 <= loss <= float(r.square().mean()) * (1 + 1e-12)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("condition", [1e0, 1e3, 1e6])
@pytest.mark.parametrize("probe", PROBES)
def test_float32(probe, condition, intercept):
    rng = np.random.default_rng(11)
    x = ill_conditioned(rng, 30, 5, condition).astype(np.float32)
    r = rng.normal(size=(30, 1)).astype(np.float32)
    z = x[:1]
    A = oracle.reading(
        x.astype(np.float64), probe, intercept, z=z[0].astype(np.float64), Z=x.astype(np.float64)
    )
    pred = torch.tensor(r, requires_grad=True)
    points = torch.tensor(z) if probe == "draw" else None
    loss = rlploss.rlp_loss(
        pred,
        torch.zeros_like(pred),
        torch.tensor(x),
        probe=probe,
        intercept=intercept,
        probe_points=points,
    )
    loss.backward()
    assert loss.dtype == torch.float32
    assert_close(loss, ((A @ r) ** 2).sum(), dtype=torch.float32)
    assert_close(pred.grad, 2 * A.T @ (A @ r), dtype=torch.float32)


def test_thousands_of_columns():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3000, generator=generator)
    r = torch.randn(60, 2, generator=generator)
    zero = torch.zeros_like(r)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_close(rlploss.rlp_loss(r, zero, x), r.square().mean(), dtype=torch.float32)
        A = oracle.reading(x.double().numpy(), "draw", z=x[0].double().numpy() + 1)
        loss = rlploss.rlp_loss(r, zero, x, probe="draw", probe_points=x[:1] + 1)
    assert_close(loss, ((A @ r.double().numpy()) ** 2).sum() / 2, dtype=torch.float32)


def test_rank_follows_the_rule():
    rng = np.random.default_rng(2)
    for kind in SPOILED:
        for shape in [(10, 4), (4, 4), (3, 6), (1, 2)]:
            x = spoil(rng.normal(size=shape), kind, rng)
            for intercept in (False, True):
                got = int(factor(torch.tensor(x)[None], intercept=intercept).rank)
                assert got == oracle.rank(x, intercept), (kind, shape, intercept)


def test_chunks_give_the_same_rows(monkeypatch):
    x = torch.randn(23, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    form = PlaneForm("expected", True)
    whole = probe_rows(x, form, x[:, :2])
    monkeypatch.setattr(planes, "chunks", lambda *a, **k: [slice(0, 10), slice(10, 23)])
    assert_close(probe_rows(x, form, x[:, :2]), whole)


def test_missing_inputs_are_named():
    x = torch.randn(1, 8, 3)
    with pytest.raises(ValueError, match='probe="expected" needs its points, got None'):
        probe_rows(x, PlaneForm("expected"))
    with pytest.raises(ValueError, match='probe="draw" needs its points, got None'):
        probe_rows(x, PlaneForm("draw"))


@pytest.mark.parametrize("seed", range(20))
def test_the_quick_proof_of_full_rank_is_never_wrong(seed):
    """Columns whose triangle is accepted have, once scaled, a condition below 1 / (2 tolerance)."""
    from rlploss.loss.factors import _proves_full_rank, quick_basis

    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    triangle = np.triu(rng.normal(size=(n, n))) * 10.0 ** rng.integers(-3, 4, size=n)
    triangle[np.diag_indices(n)] *= 10.0 ** rng.uniform(-4, 0, size=n)
    norms = np.linalg.norm(triangle, axis=0)
    condition = np.linalg.cond(triangle / norms)
    edge = (
        float(np.prod(np.abs(np.diag(triangle)) / norms)) / 4
    )  # the tolerance where the bound just fails
    assert condition < 0.5 / edge
    assert _proves_full_rank(triangle[None], False, edge * 0.99)
    for pivot in (math.nan, 0.0, 1e-200):
        larger = np.pad(triangle, ((1, 0), (1, 0)))
        larger[0, 0] = pivot
        assert not _proves_full_rank(larger[None], False, edge / 10)
    M = int(rng.integers(n + 2, 40))
    basis, edge = np.linalg.qr(rng.normal(size=(M, n + 1)))[0], 4 * M * np.finfo(np.float64).eps
    for share, accepted in ((2 * edge, True), (0.5 * edge, False), (0.0, False)):
        nearly = np.eye(n + 1)
        nearly[:, -1] = [1.0, *[0.0] * (n - 1), share]  # the last column is nearly the first
        scaled = torch.from_numpy(basis @ nearly * 10.0 ** rng.integers(-3, 4, size=n + 1))
        assert (quick_basis(scaled, False) is not None) == accepted
    tiny = torch.from_numpy(basis * ([1e-200] + [1.0] * n))
    assert quick_basis(tiny, False) is None
