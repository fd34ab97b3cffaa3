"""What a bank keeps: the rows W of every subset, made once, chunk by chunk, within a limit of bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlploss import _checks
from rlploss.loss.factors import Factors, chunks, factor
from rlploss.loss.functional import draw_rows, rows_outside, tell_from_shapes, tell_full_rank
from rlploss.loss.planes import PROBES, Moment, complement_of, largest_rows, read_at, reader_of, rows_of, second_moment


class KeptRows(nn.Module):
    """The plan, the features and the rows made of them; `ProjectionBank`, which documents it, adds the values."""

    features: Tensor
    subsets: Tensor
    counts: Tensor
    rows: Tensor | None
    points: Tensor | None
    _pool: Tensor | None
    _reader: Tensor | None
    _centre: Tensor | None
    _moment_rows: Tensor | None
    _moment_centre: Tensor | None
    _form: Tensor | None

    def __init__(
        self,
        features: Tensor,
        subsets: Tensor,
        *,
        probe: str = "subset",
        intercept: bool = False,
        ridge: float = 0.0,
        draw_from: str = "train",
        probe_points: Tensor | None = None,
        reduction: str = "mean",
        max_bytes: int = 2**30,
        dense_rows: int = 4096,
        generator: torch.Generator | None = None,
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        self.ridge = _checks.options(probe, ridge, reduction, draw_from, PROBES)
        features = _checks.feature_matrix(features).detach()
        _checks.subset_plan(subsets, features.shape[0])
        pool = None if probe_points is None else _checks.feature_matrix(probe_points).detach()
        N, d = features.shape
        K, M = subsets.shape
        if pool is not None and pool.shape[1] != d:
            raise ValueError(f"probe_points must have {d} columns like the features, got {tuple(pool.shape)}")
        if probe in ("draw", "expected") and pool is None:
            _checks.outside(draw_from, M, N)
        if check_finite:
            _checks.finite(features=features, probe_points=pool)
        self.probe, self.intercept, self.reduction, self.draw_from = probe, intercept, reduction, draw_from
        self.max_bytes = _checks.count("max_bytes", max_bytes, 0)
        self.dense_rows = _checks.count("dense_rows", dense_rows, 0)
        self.generator, self.check_finite = generator, check_finite
        self.n_columns = d + int(intercept)
        self.dtype = features.dtype if features.dtype == torch.float64 else torch.float32
        tell_from_shapes(M, self.n_columns, probe, intercept, self.ridge, _checks.warn)

        moment = None
        if probe == "expected" and (pool is not None or draw_from == "train"):
            moment = second_moment(features if pool is None else pool, intercept=intercept)
        kept: dict[str, Tensor | None] = {
            "features": features,
            "counts": torch.bincount(subsets.flatten(), minlength=N).unsqueeze(1),
            "_pool": pool,
            "_reader": None,
            "_centre": None,
            "_moment_rows": None if moment is None else moment.rows,
            "_moment_centre": None if moment is None else moment.centre,
            "_form": None,
        }
        for name, value in kept.items():
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("subsets", subsets.clone())
        self.register_buffer("points", None)
        self.register_buffer("rows", None)
        self.kind, self._height = self._choose()
        if probe == "draw":
            self._keep_reader()
            self.redraw()
        elif self.kind in ("rows", "complement"):
            self.rows = self._allocate()
            for part in self._parts():
                made = self._make_rows(part)
                self.rows[part, : made.shape[1]] = made

    # What is kept

    @staticmethod
    def bytes_for(
        n_subsets: int,
        subset_size: int,
        n_features: int,
        *,
        probe: str = "subset",
        intercept: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> int:
        """Bytes that a bank of this shape keeps at the most; less where ranks turn out lower."""
        columns = n_features + int(intercept)
        single = _checks.one_of("probe", probe, PROBES) in ("sum", "draw")
        per_row = dtype.itemsize * (1 if single else min(columns, subset_size))
        if probe == "draw":  # new points are read in float64
            per_row += 8 * columns
        return n_subsets * subset_size * per_row

    @property
    def nbytes(self) -> int:
        """Bytes of factors held now (the plan and the features themselves not counted)."""
        return sum(t.numel() * t.element_size() for t in (self.rows, self._reader, self._form) if t is not None)

    @property
    def n_subsets(self) -> int:
        """K."""
        return self.subsets.shape[0]

    @property
    def subset_size(self) -> int:
        """M."""
        return self.subsets.shape[1]

    def extra_repr(self) -> str:
        """For print(bank)."""
        return (
            f"n_subsets={self.n_subsets}, subset_size={self.subset_size}, probe={self.probe!r}, "
            f"intercept={self.intercept}, ridge={self.ridge}, kind={self.kind!r}, nbytes={self.nbytes}"
        )

    def _choose(self) -> tuple[str, int]:
        """The cheapest kind that fits, and how many rows per subset it keeps."""
        K, M = self.subsets.shape
        p = self.n_columns
        height = 1 if self.probe in ("sum", "draw") else min(p, M)
        kind, kept = "rows", height
        if self.probe in ("subset", "sum") and self.ridge == 0 and 2 * p > M:
            rank = torch.cat([self._factors(part, solve=False).rank for part in self._parts()])
            low, high = int(rank.min()), int(rank.max())
            if low == M:
                tell_full_rank(M, p, self.probe, self.intercept, _checks.warn)
            if self.probe == "subset":
                if low == M:
                    return "mse", 0
                height = max(high, 1)
                kind, kept = ("complement", M - low) if M - low < height else ("rows", height)
        need = K * M * (kept * self.dtype.itemsize + (8 * p if self.probe == "draw" else 0))
        return (kind, kept) if need <= self.max_bytes else ("chunks", height)

    def _allocate(self) -> Tensor:
        K, M = self.subsets.shape
        return torch.zeros(K, self._height, M, dtype=self.dtype, device=self.features.device)

    def _parts(self, n_subsets: int | None = None) -> list[slice]:
        n = self.n_subsets if n_subsets is None else n_subsets
        return chunks(n, self.subset_size, self.features.shape[1], intercept=self.intercept)

    def _factors(self, part: slice | Tensor, *, solve: bool) -> Factors:
        x = self.features[self.subsets[part]]
        return factor(x, intercept=self.intercept, ridge=self.ridge, solve=solve)

    def _make_rows(self, part: slice | Tensor) -> Tensor:
        """W of these subsets in the kept type, at most `_height` rows each."""
        factors = self._factors(part, solve=self.probe in ("draw", "expected"))
        if self.kind == "complement":
            return complement_of(factors, self._height).to(self.dtype)
        moment = None
        if self._moment_rows is not None:
            moment = Moment(self._moment_rows, self._moment_centre)
        elif self.probe == "expected":
            outside = self.features[rows_outside(self.subsets[part], self.features.shape[0])]
            moment = second_moment(outside, intercept=self.intercept)
        rows = rows_of(
            factors,
            probe=self.probe,
            intercept=self.intercept,
            ridge=self.ridge,
            points=None if self.points is None else self.points[part],
            moment=moment,
        )
        return largest_rows(rows, self._height).to(self.dtype)  # drops directions that no subset has

    # The points of probe="draw"

    def _keep_reader(self) -> None:
        if self.kind != "rows":
            return
        K, M = self.subsets.shape
        device = self.features.device
        self._reader = torch.empty(K, self.n_columns, M, dtype=torch.float64, device=device)
        if self.intercept:
            self._centre = torch.empty(K, self.n_columns - 1, dtype=torch.float64, device=device)
        for part in self._parts():
            factors = self._factors(part, solve=True)
            self._reader[part] = reader_of(factors)
            if self._centre is not None and factors.centre is not None:
                self._centre[part] = factors.centre

    @torch.no_grad()
    def redraw(self, points: Tensor | None = None) -> Tensor:
        """Take new probe points (K, d) for probe="draw": the ones given, or one random row per subset."""
        if self.probe != "draw":
            raise ValueError(f'redraw is for probe="draw", got probe="{self.probe}"')
        if points is None:
            if self._pool is None:
                N = self.features.shape[0]
                points = self.features[draw_rows(self.subsets, N, self.draw_from, self.generator)]
            else:
                n = self._pool.shape[0]
                points = self._pool[draw_rows(self.subsets, n, "train", self.generator)]
        elif points.shape != (self.n_subsets, self.features.shape[1]):
            wanted = (self.n_subsets, self.features.shape[1])
            raise ValueError(f"points must have shape {wanted}, one per subset, got {tuple(points.shape)}")
        self.points = points
        if self._reader is not None:
            rows = read_at(self._reader, self._centre, points).to(self.dtype)
            # in place where possible: compiled code and views keep seeing the current points
            self.rows = rows if self.rows is None else self.rows.copy_(rows)
        return points

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._form = None  # it was made of the rows that have just been replaced
