"""Shapes, errors, warnings and types of `rlp_loss`."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.close import assert_close
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rlploss import (
    BalancedBatchSampler,
    HeavyTailWarning,
    MeanOnlyWarning,
    MSEEquivalentWarning,
    balanced_subsets,
    rlp_loss,
)

N = 10
X = torch.randn(N, 2, generator=torch.Generator().manual_seed(0))
PLAN = balanced_subsets(N, 6, 3, generator=torch.Generator().manual_seed(0))


def vector(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_shapes_of_one_problem_agree():
    r = vector(N)
    flat = rlp_loss(r, torch.zeros(N), X)
    assert_close(rlp_loss(r[:, None], torch.zeros(N, 1), X), flat, dtype=torch.float32)
    assert_close(rlp_loss(r[:, None].repeat(1, 3), torch.zeros(N, 3), X), flat, dtype=torch.float32)
    assert rlp_loss(r, r, X, reduction="none").shape == (1,)
    assert rlp_loss(r, r, X, subsets=PLAN, reduction="none").shape == (3,)
    assert rlp_loss(r, r, X, subsets=PLAN).shape == ()


def test_images_and_single_columns_are_features():
    r = vector(N)
    images = vector(N, 1, 2, 1)
    zero = torch.zeros(N)
    assert_close(
        rlp_loss(r, zero, images), rlp_loss(r, zero, images.flatten(1)), dtype=torch.float32
    )
    assert_close(
        rlp_loss(r, zero, images[:, 0, 0, 0]),
        rlp_loss(r, zero, images[:, 0, 0]),
        dtype=torch.float32,
    )


def test_integer_features_and_mixed_types():
    whole = torch.arange(N)
    r = vector(N)
    assert_close(rlp_loss(r, torch.zeros(N), whole), rlp_loss(r, torch.zeros(N), whole.float()))
    assert rlp_loss(r.double(), torch.zeros(N), X).dtype == torch.float64
    assert rlp_loss(r.bfloat16(), torch.zeros(N), X).dtype == torch.float32


def bad(match, *args, error=ValueError, **kwargs):
    with pytest.raises(error, match=match):
        rlp_loss(*args, **kwargs)


def test_errors_name_the_rule_the_value_and_the_remedy():
    r = vector(N)
    z = torch.zeros(N)
    same = (
        r"pred and target must have the same shape, got \(10,\) and \(10, 1\); reshape one of them"
    )
    bad(same, r, z[:, None], X)
    bad(r"pred and target must have the same shape, got \(10,\) and \(9,\)$", r, z[:9], X)
    bad(
        r"pred must have shape \(N,\), \(N, 1\) or \(N, C\), got \(10, 1, 1\)",
        r[:, None, None],
        z[:, None, None],
        X,
    )
    bad("pred must be a torch.Tensor, got list", [1.0], z, X, error=TypeError)
    bad("target must be a torch.Tensor, got list", r, [1.0], X, error=TypeError)
    bad("real floating tensors, got torch.int64", r.long(), z.long(), X, error=TypeError)
    bad("features must be a torch.Tensor, got list", r, z, [1.0], error=TypeError)
    bad("features must be real, got torch.complex64", r, z, X.to(torch.complex64), error=TypeError)
    bad(r"features must have shape \(N, d\), got a scalar", r, z, torch.tensor(1.0))
    bad(r"features must have at least one row and one column, got shape \(10, 0\)", r, z, X[:, :0])
    bad(
        r"the same number of rows, got 9 and 10; the argument order is \(pred, target, features\)",
        r,
        z,
        X[:9],
    )
    bad('probe must be one of "subset", "draw", "expected", "sum", got \'subsets\'; did you mean "subset"', r, z, X,
        probe="subsets")  # fmt: skip
    bad(
        'reduction must be one of "none", "mean", "sum", got \'average\'',
        r,
        z,
        X,
        reduction="average",
    )
    bad('draw_from must be one of "train", "outside", got \'test\'', r, z, X, draw_from="test")
    bad("ridge must be finite and at least 0, got -1.0", r, z, X, ridge=-1.0)
    bad("ridge must be finite and at least 0, got nan", r, z, X, ridge=float("nan"))
    bad("ridge must be a number, got '1'", r, z, X, ridge="1", error=TypeError)
    plan = r"subsets must be an int64 tensor of shape \(K, M\), got "
    bad(plan + r"\(10,\) torch.int64; see balanced_subsets", r, z, X, subsets=torch.arange(10))
    bad(plan + r"\(1, 10\) torch.int32", r, z, X, subsets=torch.arange(10, dtype=torch.int32)[None])
    bad(plan + "list", r, z, X, subsets=[[1, 2]])
    bad(
        r"at least one subset of one row, got shape \(0, 3\)",
        r,
        z,
        X,
        subsets=torch.empty(0, 3, dtype=torch.int64),
    )
    bad("row numbers from 0 to 9, got 10", r, z, X, subsets=torch.tensor([[0, 10]]))
    bad("row numbers from 0 to 9, got -1", r, z, X, subsets=torch.tensor([[0, -1]]))
    bad(
        'probe="draw" with the whole batch as one subset needs probe_points, got None',
        r,
        z,
        X,
        probe="draw",
    )
    bad(
        'probe_points has no meaning for probe="sum"; leave it out',
        r,
        z,
        X,
        probe="sum",
        probe_points=X,
    )
    bad(r"probe_points must have shape \(3, 2\) to go with the features, got \(4, 2\)", r, z, X, probe="draw",
        subsets=PLAN, probe_points=X[:4])  # fmt: skip
    bad(r"probe_points must have shape \(n, 2\) to go with the features, got \(10, 1\)", r, z, X, probe="expected",
        probe_points=X[:, :1])  # fmt: skip
    outside = (
        'draw_from="outside" needs rows outside the subset, got subset_size 10 of 10 rows; use'
        " smaller subsets"
    )
    for probe in ("draw", "expected"):
        every = torch.arange(10)[None]
        bad(outside, r, z, X, subsets=every, probe=probe, draw_from="outside")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["pred", "target", "features", "probe_points"])
def test_nan_and_inf_are_named(name, number):
    tensors = {
        "pred": vector(N, 2),
        "target": vector(N, 2),
        "features": X.clone(),
        "probe_points": X[:1].clone(),
    }
    row = 0 if name == "probe_points" else 7
    tensors[name][row, 1] = number
    message = (
        rf"{name} must be finite, got {number} at index \[{row}, 1\] \(1 such values in all\);"
        r" clean the data"
    )
    with pytest.raises(ValueError, match=message):
        rlp_loss(probe="draw", **tensors)


def test_the_check_can_be_switched_off_and_knows_overflow():
    r = vector(N)
    r[0] = float("nan")
    assert torch.isnan(rlp_loss(r, torch.zeros(N), X, check_finite=False))
    big = torch.full((N,), 3e38)  # the sum overflows, the numbers do not
    assert rlp_loss(big, big, X) == 0


def test_warnings_of_their_own_classes():
    r, z = vector(N), torch.zeros(N)
    with pytest.warns(
        MSEEquivalentWarning,
        match="RLP equals MSE, so MSE is computed; use at least [0-9]+ rows per subset, or a ridge",
    ):
        loss = rlp_loss(r, z, vector(N, 12))
    assert_close(loss, r.square().mean(), dtype=torch.float32)
    with pytest.warns(
        MeanOnlyWarning, match='probe="sum" with intercept=True sees only the mean residual'
    ):
        loss = rlp_loss(r, z, X, probe="sum", intercept=True)
    assert_close(loss, r.sum().square(), dtype=torch.float32)
    with pytest.warns(
        MeanOnlyWarning,
        match="With 10 rows per subset and .* sees only the mean residual of each subset",
    ):
        loss = rlp_loss(r, z, vector(N, 12), probe="sum")
    assert_close(loss, r.sum().square(), dtype=torch.float32)
    for probe in ("draw", "expected"):
        with pytest.warns(
            HeavyTailWarning,
            match=f'probe="{probe}" is heavy-tailed at subset_size 4 with 3 columns',
        ):
            rlp_loss(r, z, X, probe=probe, subsets=PLAN[:, :4])
        with pytest.warns(
            HeavyTailWarning,
            match=f'probe="{probe}" is heavy-tailed at subset_size 4 with 2 columns',
        ):
            rlp_loss(r, z, X, probe=probe, subsets=PLAN[:, :4], intercept=False)


def test_a_clean_call_warns_of_nothing():
    r, z = vector(N), torch.zeros(N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rlp_loss(r, z, X)
        rlp_loss(r, z, X, probe="draw", subsets=PLAN, intercept=False)
        rlp_loss(r, z, X, probe="draw", subsets=PLAN[:, :4], ridge=0.1)
        rlp_loss(r, z, X, probe="sum", subsets=PLAN)


def test_draws_come_from_the_generator_only():
    r, z = vector(N), torch.zeros(N)
    before = torch.get_rng_state()
    options = {"probe": "draw", "subsets": PLAN, "intercept": False}
    a, b = (
        rlp_loss(r, z, X, generator=torch.Generator().manual_seed(3), **options) for _ in range(2)
    )
    assert torch.equal(a, b)
    assert torch.equal(before, torch.get_rng_state())


def test_memory_that_is_used_again_mixes_up_neither_batches_nor_threads():
    """A small batch is factored in memory of its thread: other shapes, threads and modes of torch
    do not disturb it."""
    g = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(20, d, generator=g), torch.randn(20, generator=g)) for d in (3, 5, 3, 2)
    ] * 50

    def values(_=None):
        return [float(rlp_loss(y, torch.zeros(20), x)) for x, y in batches]

    pred = batches[0][1].clone().requires_grad_()

    def in_strange_modes_first():
        with torch.inference_mode(), torch.device("meta"):
            rlp_loss(pred, batches[1][1], batches[0][0])
        rlp_loss(pred, batches[1][1], batches[0][0]).backward()

    with ThreadPoolExecutor(1) as new_thread:
        new_thread.submit(in_strange_modes_first).result()
    assert torch.isfinite(pred.grad).all()
    plan = torch.arange(20)[None]
    slow = [float(rlp_loss(y, torch.zeros(20), x, subsets=plan)) for x, y in batches]
    assert_close(np.array(values()), np.array(slow), dtype=torch.float32)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == values() for found in pool.map(values, range(8)))


@pytest.mark.parametrize("C", [0, 1, 3])
def test_the_quick_way_names_what_is_not_finite(C):
    shape = (N, C) if C else (N,)
    for bad in (float("nan"), float("inf")):
        for name, place in (("pred", 0), ("target", 1), ("features", 2)):
            given = [torch.zeros(shape), torch.zeros(shape), X.clone()]
            given[place].view(-1)[3] = bad
            with pytest.raises(ValueError, match=f"{name} must be finite, got {bad} at"):
                rlp_loss(*given)


def test_the_quick_way_is_in_full_precision_under_autocast():
    pred, target = vector(N, 1), torch.zeros(N, 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = rlp_loss(pred, target, X)
    assert_close(found, rlp_loss(pred, target, X), dtype=torch.float32)


@pytest.mark.parametrize("offset", [1e2, 1e5, 1e8, 1e10])
def test_the_quick_way_takes_care_of_an_offset(offset):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r = vector(40).double()
    same = (x + offset) - offset  # what is left of the digits
    assert_close(
        rlp_loss(r, torch.zeros_like(r), x + offset), rlp_loss(r, torch.zeros_like(r), same), 1e-11
    )


def test_what_is_traced_looks_at_its_features():
    """Memory that is used again must not become a constant of the trace."""
    pred, target, other = (
        vector(N),
        torch.zeros(N),
        torch.randn(N, 2, generator=torch.Generator().manual_seed(2)),
    )
    expected = rlp_loss(pred, target, other)
    graph = make_fx(lambda p, t, x: rlp_loss(p, t, x, check_finite=False))(pred, target, X)
    assert_close(graph(pred, target, other), expected, dtype=torch.float32)


def test_fake_tensors_leave_nothing_behind():
    with FakeTensorMode():
        assert rlp_loss(torch.zeros(N + 1), torch.zeros(N + 1), torch.zeros(N + 1, 2)).shape == ()
    assert torch.isfinite(rlp_loss(vector(N + 1), torch.zeros(N + 1), vector(N + 1, 2)))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, r"give class numbers as one_hot\(target, pred.shape\[1\]\)",
         lambda: rlp_loss(vector(N, 3), torch.zeros(N, dtype=torch.int64), X)),
        (ValueError, r"flatten the others into rows, as pred.flatten\(0, -2\) does",
         lambda: rlp_loss(vector(2, 4, 3), vector(2, 4, 3), vector(2, 4, 3))),
        (TypeError, "features must be a torch.Tensor, got dict; put all columns into one",
         lambda: rlp_loss(vector(N), vector(N), {"a": X})),
        (TypeError, "n_rows must be a whole number, got a TensorDataset; pass its length, 9",
         lambda: BalancedBatchSampler(torch.utils.data.TensorDataset(torch.zeros(9)), 3, 2)),
    ],
)  # fmt: skip
def test_messages_name_the_remedy(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_what_is_not_finite_blames_the_rate_for_predictions_only():
    bad, zero = torch.full((N,), float("nan")), torch.zeros(N)
    for given, ends in (
        ((bad, zero, X), "or lower the learning rate"),
        ((zero, zero, X / 0), "data"),
    ):
        with pytest.raises(
            ValueError, match=f"clean the data.*{ends}$|clean the {ends}$"
        ) as caught:
            rlp_loss(*given)
        assert ("learning rate" in str(caught.value)) == (given[0] is bad)


def test_warnings_count_the_columns_in_words():
    with pytest.warns(
        MSEEquivalentWarning, match=r"and 5 columns \(4 features \+ intercept\) RLP equals MSE"
    ):
        rlp_loss(vector(5), torch.zeros(5), vector(5, 4))
