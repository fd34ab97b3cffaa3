"""The loss under the transforms of torch: each works, or is refused in one sentence (docs/loops.md
has the table)."""

import io

import pytest
import torch
import torch._dynamo.testing
import torch.autograd.forward_ad as forward_mode
from tests.close import assert_close
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from rlploss import ProjectionBank, RLPLoss, balanced_subsets, rlp_loss, two_speed_loss

pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(N=32, d=3, seed=0, device="cpu"):
    g = seeded(seed)
    sizes = ((N, 1), (N, 1), (N, d))
    return tuple(torch.randn(size, generator=g).to(device) for size in sizes)


class Loss(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, pred, target, x):
        return self.loss(pred, target, x)


# Activations that are computed again


def recomputed(loss, backend, seed):
    """The gradient of a checkpointed block, and that of the same block without a checkpoint."""
    torch._dynamo.reset()
    _, target, x = batch()
    layer = nn.Linear(3, 1)
    grads = []
    for again in (True, False):

        def block(x):
            return loss(torch.tanh(layer(x)), target, x).sin()

        def step(x, block=block, again=again):
            return checkpoint(block, x, use_reentrant=False) if again else block(x)

        run = step if backend is None else torch.compile(step, backend=backend, fullgraph=True)
        torch.manual_seed(seed)
        leaf = x.clone().requires_grad_()
        grads.append(torch.autograd.grad(run(leaf), layer.weight)[0])
    return grads


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.parametrize("probe", ["subset", "draw"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_are_replayed_where_activations_are_computed_again(backend, probe, seed):
    again, once = recomputed(RLPLoss(8, probe=probe), backend, seed)
    assert_close(again, once, 1e-5, dtype=torch.float32)


def test_a_generator_is_refused_where_activations_are_computed_again():
    message = "activation checkpointing would draw other subsets .* leave generator=None"
    with pytest.raises(RuntimeError, match=message):
        recomputed(RLPLoss(8, generator=seeded()), None, 0)
    _, target, x = batch()
    layer, plan = nn.Linear(3, 1), torch.arange(32).view(4, 8)

    def block(x):
        loss = rlp_loss(layer(x), target, x, subsets=plan, probe="draw", generator=source)
        return loss.sin()

    source = seeded()
    with pytest.raises(RuntimeError, match=message):
        checkpoint(block, x.requires_grad_(), use_reentrant=False).backward()


# Compiled, traced and exported code


@pytest.mark.parametrize("probe", ["subset", "draw"])
def test_a_generator_is_refused_in_compiled_code(probe):
    torch._dynamo.reset()
    loss = RLPLoss(8, probe=probe, generator=seeded())
    with pytest.raises(Exception, match="a generator cannot be part of compiled or exported code"):
        torch.compile(loss, fullgraph=True, backend="eager")(*batch())
    torch.compile(loss, backend="eager")(*batch())  # runs it uncompiled


@pytest.mark.parametrize(
    "loss",
    [
        RLPLoss(),
        RLPLoss(intercept=False),
        RLPLoss(8),
        RLPLoss(0.5),
        RLPLoss("auto"),
        RLPLoss(8, probe="draw"),
        RLPLoss(probe="expected"),
        lambda p, y, x: rlp_loss(p, y, x, weight=x[:, 0] ** 2),
        lambda p, y, x: two_speed_loss(p, y, x, 0.5),
    ],
)
def test_batches_of_other_sizes_are_no_new_graphs(loss):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    fast = torch.compile(loss, fullgraph=True, backend=counter, dynamic=True)
    for n in (20, 21, 25, 32, 40, 50):
        assert torch.isfinite(fast(*batch(n)))
    assert counter.frame_count <= 2  # the second for any number of rows


@pytest.mark.filterwarnings("ignore")  # tracing is deprecated, and warns of sizes
@pytest.mark.parametrize("loss", [RLPLoss(), RLPLoss(8)])
def test_a_trace_would_keep_the_number_of_rows(loss):
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace would keep the number of rows"):
        torch.jit.trace(Loss(loss), batch())


def test_an_exported_loss_follows_the_number_of_rows():
    rows = ({0: torch.export.Dim.AUTO},) * 3
    for loss in (RLPLoss(), RLPLoss(intercept=False)):
        program = torch.export.export(Loss(loss), batch(), dynamic_shapes=rows)
        assert_close(program.module()(*batch(50)), loss(*batch(50)), dtype=torch.float32)


def test_an_exported_loss_with_subsets_outlives_its_module():
    rows = ({0: torch.export.Dim("rows", min=9, max=4096)},) * 3
    program = torch.export.export(Loss(RLPLoss(8)), batch(), dynamic_shapes=rows)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    torch.manual_seed(0)
    values = [float(again(*batch(50))) for _ in range(2)]
    assert values[0] != values[1]


# torch.func


def test_grad_and_vmap_of_a_loss_that_draws_subsets():
    pred, target, x = batch()
    for probe in ("subset", "draw"):
        grad = torch.func.grad(lambda p, probe=probe: RLPLoss(8, probe=probe)(p, target, x))(pred)
        assert grad.norm() > 0
    source, twin = seeded(), seeded()
    loss = RLPLoss(8, generator=source)
    value = torch.func.grad_and_value(lambda p: loss(p, target, x))(pred)[1]
    number = int(torch.randint(2**62, (1,), generator=twin))
    plan = balanced_subsets(32, 8, 4, generator=torch.Generator().manual_seed(number))
    assert_close(value, rlp_loss(pred, target, x, subsets=plan), dtype=torch.float32)
    many = torch.stack([pred, pred])

    def f(p):
        return RLPLoss(8)(p, target, x)

    with pytest.raises(RuntimeError, match="'same' or 'different' randomness"):
        torch.vmap(f)(many)
    a, b = torch.vmap(f, randomness="same")(many)
    assert a == b


@pytest.mark.parametrize(("M", "K"), [(12, 4), (6, 4), (3, 4), (8, 400)])
@pytest.mark.parametrize("which", [None, 1])
def test_forward_mode_on_kept_factors(M, K, which):
    pred, target, x = (t.double() for t in batch())
    bank = ProjectionBank(x, balanced_subsets(32, M, K, generator=seeded()))
    rows = slice(None) if which is None else bank.subsets[which]
    pred, change = pred[rows].requires_grad_(), target[rows] + 1

    def f(p):
        return bank.loss(p, target[rows], which)

    slope = (torch.autograd.grad(f(pred), pred)[0] * change).sum()
    assert_close(torch.func.jvp(f, (pred.detach(),), (change,))[1], slope)
    with forward_mode.dual_level():
        dual = forward_mode.unpack_dual(f(forward_mode.make_dual(pred.detach(), change)))
        assert_close(dual.tangent, slope)


# Tensors without numbers


@pytest.mark.parametrize(
    "loss",
    [
        RLPLoss(),
        RLPLoss(8),
        RLPLoss(8, probe="draw"),
        lambda p, y, x: two_speed_loss(p, y, x, 0.5, weight=x[:, 0]),
    ],
)
def test_meta_and_fake_tensors_give_shapes(loss):
    assert loss(*batch(device="meta")).is_meta
    with FakeTensorMode() as mode:
        fakes = [torch.randn(t.shape) for t in batch()]
        assert loss(*fakes).shape == ()
    if not isinstance(loss, RLPLoss) or loss.subset_size is None:
        assert loss(*fakes).fake_mode is mode


def test_a_bank_of_tensors_without_numbers_is_refused():
    message = "a ProjectionBank factors the numbers of its features"
    plan = torch.arange(32).view(4, 8)
    with pytest.raises(RuntimeError, match=message):
        ProjectionBank(batch(device="meta")[2], plan)
    with FakeTensorMode(), pytest.raises(RuntimeError, match=message):
        ProjectionBank(torch.randn(32, 3), plan)


# Types


@pytest.mark.parametrize("M", [8, 5])
def test_a_bank_in_a_model_stays_in_float32(M):
    pred, target, x = batch()
    bank = ProjectionBank(x, balanced_subsets(32, M, 4, generator=seeded()))
    expected = bank.loss(pred, target)
    for change in (nn.Module.bfloat16, nn.Module.half):
        model = change(nn.Sequential(nn.Linear(3, 1), bank))
        assert model[0].weight.dtype.itemsize == 2
        assert torch.equal(model[1].loss(pred, target), expected)
    assert bank.double().rows.dtype == torch.float64


# Which rows are dealt


@pytest.mark.parametrize(("N", "M"), [(31, 16), (33, 16), (32, 16), (16, 16), (17, 16)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_row_gets_a_gradient(N, M, seed):
    pred, target, x = batch(N, seed=seed)
    RLPLoss(M)(pred.requires_grad_(), target, x).backward()
    assert (pred.grad != 0).all()


@pytest.mark.parametrize(
    ("size", "N", "M"), [(0.5, 31, 15), (1.0, 31, 31), (0.01, 31, 1), ("auto", 300, 100),
                         ("auto", 60, 30), ("auto", 10, 6), ("auto", 5, 5)],
)  # fmt: skip
def test_a_size_may_be_a_share_of_the_batch(size, N, M):
    values = RLPLoss(size, 3 if M < N - 1 else 1, reduction="none", generator=seeded())(*batch(N))
    plan = balanced_subsets(N, M, len(values), generator=seeded())
    assert torch.equal(values, rlp_loss(*batch(N), subsets=plan, reduction="none"))
