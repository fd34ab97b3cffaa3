"""`RLPLoss` as a module, and the loss under torch's transforms."""

import copy
import itertools
import os
import pickle
import shutil
import warnings

import pytest
import torch
import torch._dynamo.testing
from tests.close import assert_close
from torch import nn
from torch.func import functional_call, grad, hessian, vmap

from rlploss import (
    MeanOnlyWarning,
    MSEEquivalentWarning,
    ProjectionBank,
    RLPLoss,
    balanced_subsets,
    rlp_loss,
)
from rlploss.loss.planes import PROBES

pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")


def batch(N=24, d=3, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, d, generator=g, dtype=dtype)
    pred, target = torch.randn(2, N, generator=g, dtype=dtype)
    return x, pred, target


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def test_defaults():
    x, pred, target = batch()
    assert torch.equal(RLPLoss()(pred, target, x), rlp_loss(pred, target, x))
    values = RLPLoss(7, reduction="none", generator=seeded())(pred, target, x)
    assert values.shape == (4,)  # as many as it takes to deal out 24 rows
    plan = balanced_subsets(24, 7, 4, generator=seeded())
    assert plan.flatten().unique().numel() == 24
    assert torch.equal(values, rlp_loss(pred, target, x, subsets=plan, reduction="none"))
    assert RLPLoss(7, 10, reduction="none")(pred, target, x).shape == (10,)


def test_options_reach_the_function():
    x, pred, target = batch()
    for probe, intercept, ridge in itertools.product(PROBES, (False, True), (0.0, 0.5)):
        module = RLPLoss(8, 4, probe=probe, intercept=intercept, ridge=ridge, generator=seeded())
        g = seeded()
        plan = balanced_subsets(24, 8, 4, generator=g)
        expected = rlp_loss(
            pred,
            target,
            x,
            subsets=plan,
            probe=probe,
            intercept=intercept,
            ridge=ridge,
            generator=g,
        )
        assert torch.equal(module(pred, target, x), expected)
    drawn = RLPLoss(probe="draw")(pred, target, x, probe_points=x[:1])
    assert torch.equal(drawn, rlp_loss(pred, target, x, probe="draw", probe_points=x[:1]))


def test_copies_keep_the_stream_of_subsets():
    x, pred, target = batch()
    module = RLPLoss(8, generator=seeded())
    module(pred, target, x)
    twins = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        module.to("cpu", torch.float64),
    ]
    values = [twin(pred, target, x) for twin in twins]
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    assert module.state_dict() == {}


def test_errors_and_print():
    with pytest.raises(
        ValueError, match="n_subsets=3 needs a subset_size; without one the batch is one subset"
    ):
        RLPLoss(n_subsets=3)
    with pytest.raises(ValueError, match="subset_size must be at least 1, got 0"):
        RLPLoss(0)
    with pytest.raises(ValueError, match=r"a fraction of the batch, must be in \[0, 1\], got 2\.5"):
        RLPLoss(2.5)
    x, pred, target = batch()
    with pytest.raises(
        ValueError,
        match="subset_size must be at most the batch's 24 rows, got 25; use larger batches",
    ):
        RLPLoss(25)(pred, target, x)
    assert "(subset_size=None, n_subsets=None, probe='subset'" in repr(RLPLoss())
    assert "(subset_size=8, n_subsets=3, probe='subset'" in repr(RLPLoss(8, 3))


def test_told_once_per_module():
    x, pred, target = batch(d=30)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = RLPLoss()
        for _ in range(3):
            module(pred, target, x)
    assert [w.category for w in caught] == [MSEEquivalentWarning]
    assert caught[0].filename == __file__
    with pytest.warns(MeanOnlyWarning):
        RLPLoss(probe="sum", intercept=True)  # known at construction


def test_autocast_is_left_inside():
    x, pred, target = batch()
    expected = RLPLoss(intercept=True)(pred, target, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(
            RLPLoss(intercept=True)(pred, target, x), expected, 1e-6
        )  # bfloat16 would be off by 1e-3
        net = nn.Linear(3, 1)
        loss = RLPLoss()(net(x), target[:, None], x)
    assert loss.dtype == torch.float32
    loss.backward()
    assert torch.isfinite(net.weight.grad).all()


COMPILERS = (os.environ.get("CXX", "g++"), "clang++", "cl")  # of which torch's compiler uses one
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)),
    reason="torch.compile needs a C++ compiler; install g++, or set CXX",
)


def compiled(f, *args, runs=3):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    fast = torch.compile(f, fullgraph=True, backend=counter)
    values = [fast(*args) for _ in range(runs)]
    assert counter.frame_count == 1, "one compile per shape"
    return values[0]


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.slow
@needs_compiler
def test_compile_fullgraph(probe):
    x, pred, target = batch()
    pred.requires_grad_()
    plan = balanced_subsets(24, 9, 4, generator=seeded())
    points = {"draw": x[:4], "expected": x}.get(probe)

    def f(pred, target, x, plan):
        return rlp_loss(
            pred, target, x, subsets=plan, probe=probe, intercept=True, probe_points=points
        )

    loss = compiled(f, pred, target, x, plan)
    expected = f(pred, target, x, plan)
    assert_close(loss, expected, dtype=torch.float32)
    for a, b in zip(
        torch.autograd.grad(loss, pred), torch.autograd.grad(expected, pred), strict=True
    ):
        assert_close(a, b, dtype=torch.float32)


@pytest.mark.slow
@needs_compiler
def test_compile_the_module_with_subsets_of_its_own():
    x, pred, target = batch()
    module = RLPLoss(8, 5)
    fast = torch.compile(module, fullgraph=True, backend="aot_eager")
    values = []
    for _ in range(2):
        torch.manual_seed(0)
        values += [fast(pred, target, x), fast(pred, target, x)]
    assert values[0] != values[1]  # new subsets in every call
    assert values[:2] == values[2:]  # which the seed decides
    compiled(module, pred, target, x)


@pytest.mark.slow
@needs_compiler
def test_compile_the_bank():
    x, pred, target = batch()
    bank = ProjectionBank(x, balanced_subsets(24, 9, 4, generator=seeded()))
    assert_close(compiled(bank.loss, pred, target), bank.loss(pred, target), dtype=torch.float32)


def test_all_subsets_of_a_bank_are_one_graph():
    x, pred, target = batch()
    bank = ProjectionBank(x, balanced_subsets(24, 9, 4, generator=seeded()))
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    fast = torch.compile(bank.loss, fullgraph=True, backend=counter)
    for j in range(4):
        rows = bank.subsets[j]
        which = torch.tensor([j])
        assert_close(
            fast(pred[rows], target[rows], which),
            bank.loss(pred[rows], target[rows], j),
            dtype=torch.float32,
        )
    assert counter.frame_count == 1


@pytest.mark.slow
@needs_compiler
def test_compiled_code_asserts_that_numbers_are_finite():
    x, pred, target = batch()
    fast = torch.compile(RLPLoss(), fullgraph=True)
    fast(pred, target, x)
    pred[3] = float("nan")
    with pytest.raises(
        RuntimeError, match="pred, target and features must be finite, got NaN or inf"
    ):
        fast(pred, target, x)
    bank = ProjectionBank(x, balanced_subsets(24, 24, 1))
    with pytest.raises(RuntimeError, match="pred and target must be finite, got NaN or inf"):
        torch.compile(bank.loss, fullgraph=True)(pred, target)


def test_func_grad_vmap_and_hessian():
    x, pred, target = batch(dtype=torch.float64)
    plan = balanced_subsets(24, 9, 4, generator=seeded())

    def f(pred, target=target, x=x):
        return rlp_loss(pred, target, x, subsets=plan, intercept=True)

    leaf = pred.clone().requires_grad_()
    f(leaf).backward()
    assert_close(grad(f)(pred), leaf.grad)
    H = hessian(f)(pred)
    assert_close(
        pred @ H @ (pred - target), pred @ leaf.grad
    )  # the gradient of a quadratic form is H r
    many = torch.stack([pred, target, pred * 2])
    assert_close(vmap(f)(many), torch.stack([f(p) for p in many]))
    xs = torch.stack([x, x**2, x - 1])
    assert_close(
        vmap(f, (0, None, 0))(many, target, xs),
        torch.stack([f(p, target, q) for p, q in zip(many, xs, strict=True)]),
    )
    many[0, 0] = float("nan")
    assert torch.isnan(vmap(f)(many)[0])  # inside transforms the check is skipped


def test_a_fleet_by_functional_call():
    x, _, target = batch(dtype=torch.float64)
    net = nn.Linear(3, 1).double()
    weights = {k: torch.stack([v, 2 * v]).detach() for k, v in net.named_parameters()}

    def f(weights):
        return rlp_loss(functional_call(net, weights, (x,)), target[:, None], x)

    grads = vmap(grad(f))(weights)
    for i in range(2):
        one = grad(f)({k: v[i] for k, v in weights.items()})
        for k, v in one.items():
            assert_close(grads[k][i], v)


def test_a_network_learns():
    x, _, _ = batch(200)
    target = (x @ torch.tensor([1.0, -2.0, 0.5])).unsqueeze(1) + 1
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    loss = RLPLoss(20, intercept=True, generator=seeded())
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        value = loss(net(x), target, x)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    assert losses[-1] < 0.05 * losses[0]
