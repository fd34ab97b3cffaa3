"""What one network reads and how it is scored, step by step: the part of a run that `fit` and `fit_fleet` share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlploss.loss.bank import ProjectionBank
from rlploss.loss.mixup import mixup
from rlploss.training.draws import Draws
from rlploss.training.recipes import Recipe
from rlploss.training.rows import Rows
from rlploss.training.scores import pointwise, projected, row_weight


class Feed(Draws):
    """The rows of every step in an epoch, and the value and gradient of its objective.

    `begin_epoch` draws; `inputs(i)` are the rows of step i in this epoch; `score(i, pred)` is the value and the
    gradient for the network's output on them. With all subsets in one step the inputs are the N rows themselves,
    once each: subsets share rows.
    """

    def __init__(self, recipe: Recipe, rows: Rows, *, window_bytes: int = 2**27) -> None:
        super().__init__(recipe)
        self.rows = rows
        self.x, self.y = rows.x, rows.y
        self.features, self.intercept = rows.features, recipe.intercept
        self.root: Tensor | None = None  # √w [N, 1], which rows and residuals are multiplied by
        if rows.weight is not None:
            self.root = rows.weight.sqrt()
            if recipe.loss == "rlp":
                centre = weighted_centre(rows)
                self.features = weighted_columns(rows.features, self.root, centre, recipe.intercept, recipe.ridge)
                self.intercept = False
        self.bank: ProjectionBank | None = None
        self.sight: Tensor | None = None  # W of every subset [K, q, M], or the quadratic form [N, N]
        self.offset: Tensor | None = None  # what the released autoencoder's loss has on top, per subset [K]
        self.whole = 0.0  # 1/M where `sight` spans what the planes do not see
        n_outputs = self.y.shape[1]
        self.n_outputs = n_outputs
        per_row = (self.x[0].numel() + n_outputs) * self.x.element_size()
        self._window_steps = max(1, window_bytes // (per_row * recipe.rows_per_step))
        self._window: tuple[int, Tensor, Tensor] | None = None  # first step, x, y
        self._blend: Tensor | None = None  # mixed inputs of the whole epoch, where the planes are fitted to them too
        self._short = recipe.subsets_per_step == 1 and not recipe.cutoff
        # whether a step runs the network on all N rows once, because its subsets hold at least as many
        several = recipe.subsets_per_step not in (None, 1) and not recipe.mixup
        self.all_rows = several and recipe.rows_per_step >= recipe.n_rows

    # From draws to tensors

    def release(self) -> None:
        """Let go of what can be made again from the draws."""
        self.bank = self.sight = self._window = self._blend = None

    def forget_rows(self) -> None:
        """Let go of the window of rows."""
        self._window = None

    def _prepare(self) -> None:
        """Build what the steps of this epoch use from what was drawn."""
        if self.recipe.cutoff:
            if self.sight is None:
                self.sight, self.offset = cut_off_rows(self.rows, self.draws["plan"])
        elif self.recipe.loss == "rlp":
            self._prepare_bank()

    def _prepare_bank(self) -> None:
        r, draws = self.recipe, self.draws
        plan, features, pool = draws["plan"].to(self.x.device), self.features, None
        if r.mixup:
            features = self._mixed(self.features, 0, plan.numel())
            self._blend = features if self.x.ndim == 2 else None
            pool = self.features if r.probe in ("draw", "expected") else None
            plan = torch.arange(plan.numel(), device=plan.device).view(plan.shape)
        if self.bank is None:
            self.bank = ProjectionBank(
                features,
                plan,
                probe=str(r.probe),
                intercept=self.intercept,
                ridge=r.ridge,
                draw_from=str(r.draw_from),
                probe_points=pool,
                generator=torch.Generator(),  # its own first points are replaced at once
                check_finite=False,
            )
        bank = self.bank
        if r.probe == "draw":
            bank.redraw(self.features[draws["points"].to(self.x.device)])
        self.whole = 1 / plan.shape[1] if bank.kind == "complement" else 0.0
        self.sight = bank.rows if bank.kind in ("rows", "complement") else None

    def _mixed(self, table: Tensor, low: int, high: int) -> Tensor:
        """Rows low..high of the epoch, mixed with their partners; λ is one number per subset or per step."""
        r = self.recipe
        first, second = self._index(low, high)
        a = table if first is None else table[first]
        if second is None:
            return a
        each = r.subset_size if r.loss == "rlp" else r.batch_size
        assert each is not None
        skip = low // each  # λ of what comes before
        lam = self.draws["lam"][skip : -(-high // each)].to(table).repeat_interleave(each)
        return mixup(a, table[second], lam[low - skip * each : high - skip * each])

    def _index(self, low: int, high: int) -> tuple[Tensor | None, Tensor | None]:
        """Row numbers low..high of the epoch (None: all rows in order), and of their partners (None: no mixup)."""
        names = ("plan", "plan_b") if self.recipe.subset_size is not None else ("order", "partner")
        first, second = self.draws.get(names[0]), self.draws.get(names[1])
        device = self.x.device
        return (
            None if first is None else first.view(-1)[low:high].to(device),
            None if second is None else second.view(-1)[low:high].to(device),
        )

    def gather(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of steps first..last of this epoch, one after another."""
        each = self.recipe.rows_per_step
        low, high = first * each, min(last * each, self.recipe.rows_per_epoch)
        x = self._mixed(self.x, low, high) if self._blend is None else self._blend[low:high]
        return x, self._mixed(self.y, low, high)

    def gather_into(self, first: int, last: int, x: Tensor, y: Tensor) -> None:
        """`gather` without mixup, to where the rows are wanted."""
        each = self.recipe.rows_per_step
        index, _ = self._index(first * each, last * each)
        for table, out in ((self.x, x), (self.y, y)):
            if index is None:
                out.copy_(table)
            else:
                torch.index_select(table, 0, index, out=out)

    def _at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one step, out of a window of steps that is gathered at once."""
        each, size = self.recipe.rows_per_step, self._window_steps
        start = step // size * size
        if self._window is None or self._window[0] != start:
            self._window = (start, *self.gather(start, min(start + size, self.recipe.steps_per_epoch)))
        low = (step - start) * each
        return self._window[1][low : low + each], self._window[2][low : low + each]

    def roots(self, first: int, last: int) -> Tensor | None:
        """√w [n, 1] of the rows of steps first..last; None where all rows count the same."""
        if self.root is None:
            return None
        each = self.recipe.rows_per_step
        index = self._index(first * each, min(last * each, self.recipe.rows_per_epoch))[0]
        return self.root if index is None else self.root[index]

    # One step

    def inputs(self, step: int) -> Tensor:
        """The rows that the network is run on in this step."""
        if self.all_rows:
            return self.x
        x, self._target = self._at(step)
        return x

    def score(self, step: int, pred: Tensor) -> tuple[Tensor, Tensor]:
        """Value (a scalar) and gradient [b, C] for predictions [b, C] on the latest `inputs(step)`."""
        if self.all_rows:
            return self._score_all_rows(step, pred)
        target, loss = self._target, self.recipe.loss
        root = None if self.root is None else self.roots(step, step + 1)
        if loss != "rlp" or self.kind == "mse":
            loss = "mse" if loss == "rlp" else loss
            each = row_weight(loss, pred.shape[0], self.n_outputs)
            return pointwise(loss, pred, target, each if root is None else each * root.square())
        residual = pred - target
        if root is None:
            if self._short and self.sight is not None:
                return projected(residual, self.sight[step], 1 / self.n_outputs, self.whole)
            return self._score_subsets(self._which(step), residual)
        value, back = self._score_subsets(self._which(step), residual * root)
        return value, back * root

    @property
    def kind(self) -> str:
        """How subsets are scored, see `ProjectionBank.kind`."""
        return "rows" if self.bank is None else self.bank.kind

    def _which(self, step: int) -> slice:
        k = self.recipe.subsets_per_step
        assert k is not None
        return slice(step * k, min((step + 1) * k, self._n_subsets))

    def _score_subsets(self, which: slice, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over subsets for their residuals [k·M, C], and its gradient."""
        k = which.stop - which.start
        if self.sight is None:
            return self._score_by_autograd(which, residual)
        scale = 1 / (k * self.n_outputs)
        stack = residual.view(k, -1, self.n_outputs)
        values, back = projected(stack, self.sight[which], scale, self.whole)
        value, back = values.sum(), back.view(residual.shape)
        if self.offset is not None:
            value = value + self.offset[which].mean()
        return value, back

    def _score_all_rows(self, step: int, pred: Tensor) -> tuple[Tensor, Tensor]:
        residual = pred - self.y
        if self.root is not None:
            value, back = self._score_residual(step, residual * self.root)
            return value, back * self.root
        return self._score_residual(step, residual)

    def _score_residual(self, step: int, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient for the residuals of all N rows."""
        if self.bank is not None and self.recipe.steps_per_epoch == 1:  # the bank knows the cheapest way
            return self._score_by_autograd(None, residual)
        which = self._which(step)
        index = self.draws["plan"][which].flatten().to(residual.device)
        gathered = residual[index]
        if self.kind == "mse":
            weight = row_weight("mse", index.numel(), self.n_outputs)
            value, back = pointwise("mse", gathered, torch.zeros_like(gathered), weight)
        else:
            value, back = self._score_subsets(which, gathered)
        return value, torch.zeros_like(residual).index_add_(0, index, back)

    def _score_by_autograd(self, which: slice | None, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The bank's own value, differentiated: for all subsets at once, or where nothing can be kept."""
        assert self.bank is not None
        with torch.enable_grad():
            leaf = residual.detach().requires_grad_()
            value = self.bank.loss(leaf, torch.zeros_like(leaf), which)
            (back,) = torch.autograd.grad(value, leaf)
        return value.detach(), back


def weighted_centre(rows: Rows) -> Tensor:
    """The weighted mean of the features [d] in float64."""
    assert rows.weight is not None
    weight = rows.weight.double()
    return (weight * rows.features.double()).sum(0) / weight.sum()


def weighted_columns(features: Tensor, root: Tensor, centre: Tensor | None, intercept: bool, ridge: float) -> Tensor:
    """√w·[x, 1] of features [n, d] and √w [n, 1]: least squares on them and √w·residual is weighted least squares.

    With an intercept x is centred first, which the planes do not see, for the sake of precision. A ridge must not
    reach the column of ones, so that column is made long: its coefficient, and λ with it, all but vanishes.
    """
    x = features.double()
    if intercept and centre is not None:
        x = torch.nn.functional.pad(x - centre, (0, 1), value=1.0 if ridge == 0 else 1e6)
    return (x * root.double()).to(features.dtype)


def cut_off_rows(rows: Rows, plan: Tensor) -> tuple[Tensor, Tensor]:
    """The released autoencoder's loss, mean of (P_cut·pred − target)², as rows and a constant per subset.

    Its pseudo-inverse of xᵀx in float32 drops directions with σ²/σ₁² below max(d, d)·eps of float32. What is left of
    xx⁺ is still a projection P, so ‖P·pred − target‖² = ‖P(pred − target)‖² + ‖(I − P)target‖².

    NOTE[DIFF]: the eigenvalues are computed in float64 and cut at the same place, so that the rank does not depend on
    the rounding of the machine at hand.
    """
    features, plan = rows.features, plan.to(rows.x.device)
    K, M = plan.shape
    d = features.shape[1]
    cut = d * torch.finfo(torch.float32).eps
    found = []
    for subset in plan:
        x = features[subset].to(torch.float64)
        tall = d <= M
        values, vectors = torch.linalg.eigh(x.mT @ x if tall else x @ x.mT)
        keep = values > cut * values[-1]
        basis = x @ vectors[:, keep] / values[keep].sqrt() if tall else vectors[:, keep]
        found.append((basis.mT / math.sqrt(M)).to(features.dtype))  # [r, M]
    height = max(part.shape[0] for part in found)
    sight = torch.stack([torch.nn.functional.pad(part, (0, 0, 0, height - part.shape[0])) for part in found])
    offset = []
    for part, subset in zip(found, plan, strict=True):
        target = rows.y[subset]
        offset.append(target.square().mean() - (part @ target).square().sum() / target.shape[1])
    return sight, torch.stack(offset)
