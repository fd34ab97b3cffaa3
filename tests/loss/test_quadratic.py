"""The value and the gradient of the loss in closed form, and its form as a value."""

import dataclasses

import pytest
import torch
from tests.close import assert_close

from rlploss import ProjectionBank, RLPLoss, balanced_subsets
from rlploss.loss.planes import PROBES, PlaneForm, probe_rows
from rlploss.loss.quadratic import projected_value, quadratic_value

pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")


def bank_of(kind, dtype=torch.float64):
    d = {"rows": 3, "complement": 8, "mse": 15}[kind]
    g = torch.Generator().manual_seed(0)
    X = torch.randn(30, d, generator=g, dtype=dtype)
    bank = ProjectionBank(
        X, balanced_subsets(30, 12, 5, generator=g), reduction="none", dense_rows=100
    )
    assert bank.kind == kind
    return bank, torch.randn(30, 2, generator=g, dtype=dtype)


@pytest.mark.parametrize("kind", ["rows", "complement", "mse"])
def test_value_and_gradient_of_every_kind(kind):
    bank, R = bank_of(kind)
    a, sign, W = bank.residual_weight, bank.projector_sign, bank.rows
    stack = R[bank.subsets].requires_grad_()
    values = projected_value(stack, W, a)
    (gradient,) = torch.autograd.grad(values.sum(), stack)
    along = torch.zeros(5, 1, 2, dtype=R.dtype) if W is None else W @ stack.detach()
    by_formula = a * stack.square().sum((1, 2)) + sign * along.square().sum((1, 2))
    assert_close(by_formula, values, 1e-12)
    assert_close(by_formula / 2, bank.loss(R, torch.zeros_like(R)), 1e-12)
    assert_close(gradient, 2 * (a * stack + (0 if W is None else sign * W.mT @ along)))
    one = stack.detach()[2].requires_grad_()
    value = projected_value(one, None if W is None else W[2], a)
    assert_close(value, values[2])
    assert_close(torch.autograd.grad(value, one)[0], gradient[2])


@pytest.mark.parametrize("kind", ["rows", "complement", "mse"])
def test_value_and_gradient_of_the_form(kind):
    bank, R = bank_of(kind)
    R = R.requires_grad_()
    value = quadratic_value(R, bank.form())
    (gradient,) = torch.autograd.grad(value, R)
    assert_close(gradient, 2 * bank.form() @ R)
    assert_close(value, (R * (bank.form() @ R)).sum())
    assert_close(value / 2, bank.loss(R, torch.zeros_like(R)).mean())


def test_a_form_is_a_frozen_value_that_checks_itself():
    assert PlaneForm() == PlaneForm("subset", True, 0, "train") != PlaneForm(intercept=False)
    assert [PlaneForm(probe).intercept for probe in PROBES] == [True, True, True, False]
    assert PlaneForm("sum", True).intercept is True
    assert len({PlaneForm(), PlaneForm(), PlaneForm("sum")}) == 2
    assert eval(repr(PlaneForm("draw", ridge=0.5)), {"PlaneForm": PlaneForm}) == PlaneForm(
        "draw", ridge=0.5
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        PlaneForm().ridge = 1.0
    with pytest.raises(
        ValueError, match='probe must be one of "subset", "draw", "expected", "sum", got'
    ):
        PlaneForm("all")
    with pytest.raises(ValueError, match="ridge must be finite and at least 0, got -1"):
        PlaneForm(ridge=-1)
    with pytest.raises(ValueError, match='draw_from must be one of "train", "outside", got'):
        PlaneForm(draw_from="test")
    loss = RLPLoss(probe="sum", ridge=0.1)
    assert loss.plane_form == PlaneForm("sum", False, 0.1)


def test_rows_by_default_are_those_of_the_papers_metric():
    x = torch.randn(4, 9, 3, generator=torch.Generator().manual_seed(0))
    rows = probe_rows(x)
    assert rows.shape == (4, 3, 9)
    assert rows.dtype == torch.float64
    q, _ = torch.linalg.qr(x.double())
    assert_close(rows.mT @ rows, q @ q.mT / 9)


def test_help_says_every_parameter_itself():
    import inspect

    for kind in (RLPLoss, ProjectionBank):
        for name in inspect.signature(kind).parameters:
            # from Python 3.13 on the compiler takes the indentation away
            assert f"\n    {name}:" in inspect.getdoc(kind), (kind, name)
        assert "as in" not in kind.__doc__
