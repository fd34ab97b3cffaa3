"""Kept factors give what `rlp_loss` gives, whatever way they are kept."""

import copy
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.close import assert_close

from rlploss import MSEEquivalentWarning, ProjectionBank, balanced_subsets, rlp_loss
from rlploss.loss.planes import PROBES

pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")


def data(N=30, d=4, C=2, M=12, K=9, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, generator=g, dtype=dtype) + 1
    pred, target = torch.randn(2, N, C, generator=g, dtype=dtype)
    return X, pred, target, balanced_subsets(N, M, K, generator=g)


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("probe", PROBES)
@settings(deadline=None, max_examples=40)
@given(
    d=st.sampled_from([1, 3, 7, 11, 15]),
    M=st.integers(2, 13),
    C=st.sampled_from([1, 3]),
    intercept=st.booleans(),
    ridge=st.sampled_from([0.0, 0.1]),
    draw_from=st.sampled_from(["train", "outside"]),
    deficient=st.sampled_from(["no", "some", "all"]),
    kept=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_way_of_keeping_agrees_with_the_function(
    probe, reduction, d, M, C, intercept, ridge, draw_from, deficient, kept, seed
):
    X, pred, target, plan = data(20, d, C, M, 7, seed)
    if deficient == "all" and d > 1:
        X[:, 0] = X[:, 1]
    elif deficient == "some":
        X[:10] = X[0]
    options = {
        "probe": probe,
        "intercept": intercept,
        "ridge": ridge,
        "draw_from": draw_from,
        "reduction": reduction,
    }
    expected_pred = pred.clone().requires_grad_()
    expected = rlp_loss(expected_pred, target, X, subsets=plan, generator=seeded(), **options)
    expected.sum().backward()
    bank = ProjectionBank(X, plan, generator=seeded(), max_bytes=2**30 if kept else 0, **options)
    assert bank.kind in (("rows", "complement", "mse") if kept else ("chunks", "mse"))
    pred.requires_grad_()
    loss = bank.loss(pred, target)
    loss.sum().backward()
    # a value that is a difference, or a row that is all but unseen, is compared on the scale of MSE
    scale = max(
        float(expected.detach().abs().max()), 1e-6 * float((pred.detach() - target).square().mean())
    )
    assert (loss - expected).abs().max() <= 1e-9 * scale
    assert_close(pred.grad, expected_pred.grad, 1e-8)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("max_bytes", [0, 2**30])
@pytest.mark.parametrize("d", [4, 8, 16])
def test_some_subsets(probe, max_bytes, d):
    X, pred, target, plan = data(d=d)
    bank = ProjectionBank(
        X, plan, probe=probe, max_bytes=max_bytes, reduction="none", generator=seeded()
    )
    every = bank.loss(pred, target)
    for which in (0, 3, -1, slice(2, 5), slice(None), torch.tensor([4, 1, 1])):
        rows = plan[which].flatten()
        some = bank.loss(pred[rows], target[rows], which)
        assert_close(some, every[which].reshape(-1), 1e-9)
    mean = ProjectionBank(X, plan, probe=probe, max_bytes=max_bytes, generator=seeded())
    assert_close(mean.loss(pred[plan[3]], target[plan[3]], 3), every[3], 1e-9)


@pytest.mark.parametrize("d", [4, 8, 15])  # kinds rows, complement and mse
@pytest.mark.parametrize("which", [2, slice(1, 3), torch.tensor([0, 3, 3])])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_sum_over_some_subsets_counts_those(d, which, seed):
    X, pred, target, plan = data(d=d, seed=seed)
    each, total = (ProjectionBank(X, plan, reduction=kind) for kind in ("none", "sum"))
    rows = plan[which].flatten()
    given = (pred[rows], target[rows], which)
    assert_close(total.loss(*given), each.loss(*given).sum(), 1e-9)


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("d", [4, 8])  # kinds rows and complement
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_subset_by_its_number_from_either_end(C, d, seed):
    """Predictions of two dimensions in the bank's own type take a short way."""
    X, pred, target, plan = data(d=d, C=C, seed=seed)
    bank, each = (ProjectionBank(X, plan, reduction=kind) for kind in ("mean", "none"))
    values = each.loss(pred, target).tolist()
    for which in range(-len(plan), len(plan)):
        rows = plan[which]
        assert_close(bank.loss(pred[rows], target[rows], which), values[which], 1e-9)


@pytest.mark.parametrize("probe", ["subset", "expected", "sum"])
@pytest.mark.parametrize("max_bytes", [0, 2**30])
@pytest.mark.parametrize("d", [3, 8, 16])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_form_is_the_mean_over_the_subsets(probe, max_bytes, d, intercept):
    X, pred, target, plan = data(d=d)
    bank = ProjectionBank(X, plan, probe=probe, max_bytes=max_bytes, intercept=intercept)
    Q = bank.form()
    R = pred - target
    assert Q.shape == (30, 30)
    assert_close(Q, Q.mT)
    assert torch.linalg.eigvalsh(Q).min() > -1e-10
    assert_close(torch.trace(R.mT @ Q @ R) / 2, bank.loss(pred, target))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_dense_way_is_taken_when_cheaper_with_the_same_result(reduction):
    X, pred, target, _ = data()
    plan = balanced_subsets(30, 12, 400, generator=seeded())
    pred.requires_grad_()
    dense = ProjectionBank(X, plan, reduction=reduction)
    sparse = ProjectionBank(X, plan, reduction=reduction, dense_rows=0)
    grads = []
    for bank in (dense, sparse):
        loss = bank.loss(pred, target)
        (grad,) = torch.autograd.grad(loss, pred)
        grads.append((loss, grad))
    assert dense._form is not None
    assert sparse._form is None
    assert not ProjectionBank(
        X, plan, max_bytes=dense.nbytes - 1
    ).prefers_form()  # the form counts as kept
    assert_close(grads[0][0], grads[1][0])
    assert_close(grads[0][1], grads[1][1])


def test_kinds_cost_what_they_should():
    X, _, _, plan = data(d=4)
    for intercept, columns in ((False, 4), (True, 5), (None, 5)):
        bank = ProjectionBank(X, plan, intercept=intercept)
        assert bank.kind == "rows"
        need = ProjectionBank.bytes_for(9, 12, 4, intercept=intercept, dtype=torch.float64)
        assert bank.nbytes == need == 9 * 12 * columns * 8
    X8, _, _, plan = data(d=8)
    bank = ProjectionBank(X8, plan, intercept=False)
    assert bank.kind == "complement"
    assert bank.rows.shape == (9, 4, 12)  # rank 8 of 12: the four unseen directions
    X15, _, _, plan = data(d=15)
    with pytest.warns(MSEEquivalentWarning):
        bank = ProjectionBank(X15, plan)
    assert (bank.kind, bank.nbytes, bank.rows) == ("mse", 0, None)
    for probe in PROBES:
        made = ProjectionBank(X, plan, probe=probe, intercept=True)
        promised = ProjectionBank.bytes_for(
            9, 12, 4, probe=probe, intercept=True, dtype=torch.float64
        )
        assert made.nbytes == promised, probe
        assert (
            ProjectionBank(X, plan, probe=probe, max_bytes=promised - 1, intercept=True).nbytes == 0
        )


def test_chunks_hold_no_more_than_one_chunk_for_the_backward_pass(monkeypatch):
    X, pred, target, plan = data()
    bank = ProjectionBank(X, plan, max_bytes=0)
    made = []
    original = ProjectionBank._make_rows
    monkeypatch.setattr(
        ProjectionBank, "_make_rows", lambda self, part: made.append(1) or original(self, part)
    )
    monkeypatch.setattr(
        ProjectionBank, "_parts", lambda self, n=None: [slice(0, 4), slice(4, 8), slice(8, 9)]
    )
    pred.requires_grad_()
    bank.loss(pred, target).backward()
    assert len(made) == 6  # three chunks, made once for the value and once more for the gradient
    assert_close(
        pred.grad, torch.autograd.grad(ProjectionBank(X, plan).loss(pred, target), pred)[0]
    )


def test_redraw():
    X, pred, target, plan = data()
    bank = ProjectionBank(X, plan, probe="draw", generator=seeded())
    first = bank.loss(pred, target)
    kept = bank.rows
    bank.redraw()
    assert bank.rows is kept  # in place, for views of it
    assert bank.loss(pred, target) != first
    points = X[:9] * 2
    assert torch.equal(bank.redraw(points), points)
    assert_close(
        bank.loss(pred, target),
        rlp_loss(pred, target, X, subsets=plan, probe="draw", probe_points=points),
    )
    pool = torch.full((1, 4), 3.0, dtype=torch.float64)
    pooled = ProjectionBank(X, plan, probe="draw", probe_points=pool)
    assert torch.equal(pooled.points, pool.expand(9, 4))


def test_expected_over_rows_of_elsewhere():
    X, pred, target, plan = data()
    pool = X[:7] - 2
    bank = ProjectionBank(X, plan, probe="expected", probe_points=pool, intercept=True)
    expected = rlp_loss(
        pred, target, X, subsets=plan, probe="expected", probe_points=pool, intercept=True
    )
    assert_close(bank.loss(pred, target), expected)


@pytest.mark.parametrize("probe", PROBES)
def test_copies_and_state(probe):
    X, pred, target, plan = data()
    bank = ProjectionBank(X, plan, probe=probe, generator=seeded())
    loss = bank.loss(pred, target)
    for twin in (copy.deepcopy(bank), pickle.loads(pickle.dumps(bank)), bank.to("cpu")):
        assert torch.equal(twin.loss(pred, target), loss)
    other_plan = balanced_subsets(30, 12, 9, generator=seeded(9))
    other = ProjectionBank(X, other_plan, probe=probe, generator=seeded(8))
    assert other.loss(pred, target) != loss
    other.load_state_dict(bank.state_dict())
    assert torch.equal(other.loss(pred, target), loss)


def test_a_loaded_state_replaces_the_form_too():
    X, pred, target, _ = data()
    plan = balanced_subsets(30, 12, 400, generator=seeded())
    bank = ProjectionBank(X, plan)
    other = ProjectionBank(X, balanced_subsets(30, 12, 400, generator=seeded(1)))
    other.form()
    other.load_state_dict(bank.state_dict())
    assert_close(other.loss(pred, target), bank.loss(pred, target))


def test_one_dimensional_targets_float32_and_autocast():
    X, pred, target, plan = data(dtype=torch.float32, C=1)
    bank = ProjectionBank(X, plan)
    loss = bank.loss(pred[:, 0], target[:, 0])
    assert bank.rows.dtype == loss.dtype == torch.float32
    assert_close(loss, bank.loss(pred, target))
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(bank.loss(pred, target), loss)
    rounded = bank.loss(pred.bfloat16(), target)
    assert rounded.dtype == torch.float32
    assert_close(rounded, loss, 0.05)


def test_random_shapes_leave_the_global_generator_alone():
    X, _, _, plan = data()
    before = torch.get_rng_state()
    ProjectionBank(X, plan, probe="draw", generator=seeded()).redraw()
    assert torch.equal(before, torch.get_rng_state())


def test_errors():
    X, pred, target, plan = data()
    bank = ProjectionBank(X, plan)
    with pytest.raises(ValueError, match="pred must hold all 30 rows, got 29; pass `which`"):
        bank.loss(pred[:29], target[:29])
    with pytest.raises(
        ValueError, match=r"pred and target must have the same shape, got \(30, 2\) and \(30, 1\)"
    ):
        bank.loss(pred, target[:, :1])
    with pytest.raises(
        ValueError, match=r"pred must have shape \(N,\), \(N, 1\) or \(N, C\), got \(30, 2, 1\)"
    ):
        bank.loss(pred[..., None], target[..., None])
    with pytest.raises(
        ValueError,
        match="rows of the 1 subsets asked for, in plan order, got 30; leave `which` out",
    ):
        bank.loss(pred, target, 0)
    with pytest.raises(ValueError, match="which must be a subset from 0 to 8, got 9"):
        bank.loss(pred[:12], target[:12], 9)
    with pytest.raises(ValueError, match='redraw is for probe="draw", got probe="subset"'):
        bank.redraw()
    drawn = ProjectionBank(X, plan, probe="draw")
    with pytest.raises(
        ValueError, match=r"points must have shape \(9, 4\), one per subset, got \(8, 4\)"
    ):
        drawn.redraw(X[:8])
    with pytest.raises(ValueError, match='form is refused for probe="draw", whose points change'):
        drawn.form()
    with pytest.raises(ValueError, match="at most dense_rows=4 rows, got N = 30; raise dense_rows"):
        ProjectionBank(X, plan, dense_rows=4).form()
    with pytest.raises(ValueError, match="max_bytes must be at least 0, got -1"):
        ProjectionBank(X, plan, max_bytes=-1)
    with pytest.raises(
        ValueError, match=r"probe_points must have 4 columns like the features, got \(30, 3\)"
    ):
        ProjectionBank(X, plan, probe="expected", probe_points=X[:, :3])
    with pytest.raises(ValueError, match=r"row numbers from 0 to 29, got 30"):
        ProjectionBank(X, plan + 1)
    with pytest.raises(ValueError, match='draw_from="outside" needs rows outside the subset'):
        ProjectionBank(X, torch.arange(30)[None], probe="draw", draw_from="outside")
    X[3, 1] = float("inf")
    with pytest.raises(ValueError, match=r"features must be finite, got inf at index \[3, 1\]"):
        ProjectionBank(X, plan)


def test_nan_in_the_loop_is_named():
    X, pred, target, plan = data()
    bank = ProjectionBank(X, plan)
    pred[plan[2][1], 0] = float("nan")
    with pytest.raises(ValueError, match=r"pred must be finite, got nan at index \[1, 0\]"):
        bank.loss(pred[plan[2]], target[plan[2]], 2)
    quiet = ProjectionBank(X, plan, check_finite=False)
    assert torch.isnan(quiet.loss(pred, target))


def test_told_once_at_construction():
    X, pred, target, plan = data(d=15)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bank = ProjectionBank(X, plan)
        for _ in range(3):
            bank.loss(pred, target)
    assert [w.category for w in caught] == [MSEEquivalentWarning]
    assert caught[0].filename == __file__


def test_print():
    X, _, _, plan = data()
    text = str(ProjectionBank(X, plan))
    assert "n_subsets=9, subset_size=12, probe='subset'" in text
    assert "kind='rows', nbytes=4320" in text


@pytest.mark.parametrize("way", ["rows", "complement", "mse", "chunks", "dense"])
def test_first_and_second_derivatives(way):
    d = {"complement": 8, "mse": 15}.get(way, 3)
    X, pred, target, plan = data(N=14, d=d, M=12, K=60 if way == "dense" else 4)
    limits = {
        "max_bytes": 0 if way == "chunks" else 2**30,
        "dense_rows": 100 if way == "dense" else 0,
    }
    bank = ProjectionBank(X, plan, **limits)
    assert bank.prefers_form() == (way == "dense")
    assert bank.kind == ("rows" if way == "dense" else way)
    pred.requires_grad_()
    assert torch.autograd.gradcheck(lambda p: bank.loss(p, target), (pred,))
    assert torch.autograd.gradgradcheck(lambda p: bank.loss(p, target), (pred,))
    grad = torch.func.grad(lambda p: bank.loss(p, target))(pred.detach())
    assert_close(grad, torch.autograd.grad(bank.loss(pred, target), pred)[0])
    rows = bank.subsets[1]
    one = pred.detach()[rows].requires_grad_()
    assert torch.autograd.gradcheck(lambda p: bank.loss(p, target[rows], 1), (one,))
    assert torch.autograd.gradgradcheck(lambda p: bank.loss(p, target[rows], 1), (one,))
    many = torch.stack([pred.detach(), target, 2 * target])
    values = torch.vmap(lambda p: bank.loss(p, target))(many)
    assert_close(values, torch.stack([bank.loss(p, target) for p in many]))


def test_new_points_are_checked():
    X, _, _, plan = data()
    bank = ProjectionBank(X, plan, probe="draw")
    with pytest.raises(ValueError, match="points must be finite, got nan"):
        bank.redraw(torch.full((len(plan), X.shape[1]), float("nan"), dtype=X.dtype))


@pytest.mark.parametrize("intercept", [False, True])
def test_a_bank_that_keeps_nothing_may_change_its_type(intercept):
    X, pred, target, plan = data(dtype=torch.float32)
    bank = ProjectionBank(X, plan, probe="expected", intercept=intercept, max_bytes=0)
    expected = bank.loss(pred, target)
    assert_close(bank.float().loss(pred, target), expected, dtype=torch.float32)
