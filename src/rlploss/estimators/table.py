"""Raw frames to numbers: one scikit-learn transformer, the first step of every pipeline on a table.

Use it so:

    columns = read_columns(frame)                  # once, for the whole table, without the target
    encoder = TableEncoder(columns, task="regression")
    model = Pipeline([("table", encoder), ("model", estimator)]).fit(frame, y).predict(new_frame)

To read the texts of a table only once, split `read_frame(frame, columns)` instead of the frame: an
encoder gives the same numbers for both. `fit_transform(X, y)` gives training rows (of a split, of a
fold) as models should see them: the mean targets of categories come from other rows than their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import TargetEncoder
from sklearn.utils.validation import check_is_fitted

from rlploss._scaling import Array, mean_and_scale
from rlploss.estimators.cells import STYLES, Style
from rlploss.estimators.kinds import Column, read_column

OTHER_UNITS = 10  # values that are all so many times smaller than the usual one have other units
FEWEST_ROWS_TO_JUDGE = 5


class TableWarning(UserWarning):
    """New rows are unlike the table that a model was trained on."""


def read_columns(frame: pd.DataFrame, styles: Sequence[Style] = STYLES) -> tuple[Column, ...]:
    """Return what each column of a frame is, decided without any target."""
    return tuple(read_column(values, styles) for _, values in frame.items())


def read_frame(frame: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Return the columns that are used as floats, timestamps and texts; those that the frame lacks
    are missing in every row.
    """
    nothing = pd.Series([None] * len(frame), frame.index, dtype=object)
    return pd.DataFrame(
        {
            column.name: column.read(frame.get(column.name, nothing))
            for column in columns
            if column.used
        },
        index=frame.index,
    )


def frame_of(X: Any, names: Sequence[str] = ()) -> pd.DataFrame:
    """Return a frame or array as a pandas frame; columns of an array are called `names`, or x0, x1
    and so on.
    """
    if isinstance(X, pd.DataFrame):
        return X.rename(columns=str)
    if hasattr(X, "to_dict") and hasattr(X, "columns"):  # polars, without needing pyarrow
        return pd.DataFrame({str(name): X[name].to_list() for name in X.columns})
    if hasattr(X, "toarray"):
        raise ValueError("X must be dense, got a sparse matrix; pass X.toarray()")
    array = np.asarray(X)
    if array.ndim != 2:
        raise ValueError(f"X must have two dimensions (rows, columns), got shape {array.shape}")
    given = len(names) == array.shape[1]
    return pd.DataFrame(array, columns=list(names if given else default_names(array.shape[1])))


def default_names(n: int) -> list[str]:
    """Return the names of columns that have none."""
    return [f"x{i}" for i in range(n)]


class TableEncoder(TransformerMixin, BaseEstimator):
    """Turn a raw frame, or array, into float64 numbers [n, d], learned from the training rows.

    Numbers are standardised, and their gaps filled with the median; a column says where a value is
    missing if the table had gaps there. Dates count days from the first of the table. Categories
    have a column each, or, where the table has too few rows for that, one with their mean target.
    At `transform`, columns may stand in another order; those that are missing, and values unlike
    those of the training rows, are told as `TableWarning`.

    Parameters
    ----------
    columns : sequence of Column or None
        What the columns of the table are, from `read_columns`. None decides it at `fit`.
    task : "regression" or "classification"
        What the target is, for categories that are encoded by it.
    raw : bool
        Whether rows stay a frame, of floats, timestamps and texts, for a model that takes these.
    random_state : int
        Decides the folds in which mean targets are taken.

    Attributes
    ----------
    columns_ : the columns that are used.
    categories_ : the categories of the training rows, by column.
    origins_ : the original column of each column of numbers.
    median_, mean_, scale_ : of each column of numbers.

    Examples
    --------
    >>> table = pd.DataFrame({"size": ["1,5", "2,5", "4,0"], "city": ["Rome", "Oslo", "Rome"]})
    >>> encoder = TableEncoder().fit(table)
    >>> encoder.get_feature_names_out().tolist()
    ['size', 'city = Rome']
    >>> encoder.transform(table.iloc[:2]).round(2)
    array([[-1.14,  0.71],
           [-0.16, -1.41]])
    """

    def __init__(
        self,
        columns: Sequence[Column] | None = None,
        *,
        task: str = "regression",
        raw: bool = False,
        random_state: int = 0,
    ) -> None:
        self.columns = columns
        self.task = task
        self.raw = raw
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn medians, categories, encodings and scales from training rows."""
        self.fit_transform(X, y)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Learn from training rows and return them as numbers; no mean target knows its own row."""
        frame = frame_of(X, [column.name for column in self.columns or ()])
        columns = read_columns(frame) if self.columns is None else self.columns
        self.columns_ = tuple(column for column in columns if column.used)
        if not self.columns_:
            raise ValueError("no column of X can be used; add numbers, categories or dates")
        self.feature_names_in_ = np.array([column.name for column in columns], dtype=object)
        self.n_features_in_ = len(columns)
        table = read_frame(frame, self.columns_)
        self.categories_ = {
            column.name: sorted(table[column.name].dropna().unique())
            for column in self.columns_
            if column.kind in ("category", "yes/no")
        }
        self.ranges_: dict[str, tuple[float, float, float]] = {}
        if self.raw:
            self._names = self.origins_ = table.columns.tolist()
            return table
        wide = [column.name for column in self.columns_ if column.mean_target]
        means = np.empty((len(table), 0))
        if wide and y is None:
            raise ValueError(f"y must be given to encode the categories of {wide[0]!r}, got None")
        if wide:
            self.means_ = TargetEncoder(
                target_type="continuous" if self.task == "regression" else "auto",
                random_state=self.random_state,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # classes with fewer rows than folds
                means = self.means_.fit_transform(_texts(table[wide]), np.asarray(y))
        parts = self._parts(table, means)
        self._names = [name for _, name, _ in parts]
        self.origins_ = [origin for origin, _, _ in parts]
        numbers = np.column_stack([values for _, _, values in parts])
        empty = np.isnan(numbers).all(axis=0)
        self.median_ = np.nanmedian(np.where(empty, 0.0, numbers), axis=0)
        filled = np.where(np.isnan(numbers), self.median_, numbers)
        self.mean_, self.scale_ = mean_and_scale(filled)
        for column in self.columns_:
            first = numbers[:, self.origins_.index(column.name)]
            if column.kind in ("number", "date") and not np.isnan(first).all():
                usual = float(np.nanmedian(np.abs(first)))
                low, high = float(np.nanmin(first)), float(np.nanmax(first))
                self.ranges_[column.name] = low, high, usual
        return (filled - self.mean_) / self.scale_

    def transform(self, X: Any) -> Any:
        """Return rows as numbers, and warn of what is unlike the training rows."""
        frame = self._frame(X)
        table = read_frame(frame, self.columns_)
        for text in self._told(frame, table):
            warnings.warn(text, TableWarning, stacklevel=2)
        if self.raw:
            return table
        wide = [column.name for column in self.columns_ if column.mean_target]
        means = self.means_.transform(_texts(table[wide])) if wide else np.empty((len(table), 0))
        numbers = np.column_stack([values for _, _, values in self._parts(table, means)])
        return (np.where(np.isnan(numbers), self.median_, numbers) - self.mean_) / self.scale_

    def _told(self, frame: pd.DataFrame, table: pd.DataFrame) -> list[str]:
        """Return what rows lack: columns that are not there, values that cannot be read, and those
        far outside the training rows.
        """
        told = []
        of_all = f"of {len(frame):,} values"
        for column in self.columns_:
            name, values = column.name, table[column.name]
            if name not in frame.columns:
                told.append(f"column {name} is not there; every row counts as missing in it")
                continue
            levels = self.categories_.get(name)
            known = values.notna() if levels is None else values.isin(levels)
            n = int(column.given(frame[name][~known]).sum())
            if n > (len(frame) / 2 if column.mean_target else 0):  # new ones of many are usual
                what = "none of its categories" if levels else f"not read as a {column.kind}"
                told.append(f"column {name}: {n:,} {of_all} are unlike the table's, {what} there")
            if name in self.ranges_ and known.any():
                told += self._outside(column, values[known], of_all)
        return told

    def _outside(self, column: Column, values: pd.Series, of_all: str) -> list[str]:
        """Return what is told of numbers or dates outside the range of the training rows."""
        numbers = next(iter(column.parts(values).values()))
        low, high, usual = self.ranges_[column.name]
        far = int(((numbers < 2 * low - high) | (numbers > 2 * high - low)).sum())
        shown = f"{low:.6g} to {high:.6g}"
        if column.kind == "date":
            day, unit = pd.Timestamp(column.first), pd.Timedelta(days=1)
            shown = f"{day + low * unit:%Y-%m-%d} to {day + high * unit:%Y-%m-%d}"
        units = "; are they in other units?" if column.kind == "number" else ""
        if far:
            other = units if far > len(numbers) / 2 else ""
            return [f"column {column.name}: {far:,} {of_all} lie far outside {shown}{other}"]
        if len(numbers) < FEWEST_ROWS_TO_JUDGE or not units:
            return []
        if np.abs(numbers).max() * OTHER_UNITS < usual:
            most = f"at most {np.abs(numbers).max():.3g}, where the table has {shown}"
            return [f"column {column.name}: all values are {most}{units}"]
        return []

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns of numbers; `origins_` has the original one of each."""
        check_is_fitted(self)
        return np.array(self._names, dtype=object)

    def _frame(self, X: Any) -> pd.DataFrame:
        """Return new rows as a frame; refuse one without any column of the table."""
        check_is_fitted(self)
        names = self.feature_names_in_.tolist()
        frame = frame_of(X, names)
        if not any(column.name in frame.columns for column in self.columns_):
            there, wanted = (", ".join(map(str, some[:8])) for some in (frame.columns, names))
            raise ValueError(
                f"no column of the table is there: the columns must be {wanted}, got {there};"
                " name them so"
            )
        return frame

    def _parts(self, table: pd.DataFrame, means: Array) -> list[tuple[str, str, Array]]:
        """Return every column of numbers with the name of its original column and its own."""
        parts: list[tuple[str, str, Array]] = []
        wide = [column.name for column in self.columns_ if column.mean_target]
        blocks = dict(zip(wide, np.hsplit(means, len(wide)) if wide else (), strict=True))
        classes = self.means_.classes_ if means.shape[1] > len(wide) else [""]
        for column in self.columns_:
            if column.mean_target:
                for label, values in zip(classes, blocks[column.name].T, strict=True):
                    name = f"{column.name}, mean target {label}".rstrip()
                    parts.append((column.name, name, values))
            levels = self.categories_[column.name] if column.one_hot else ()
            for name, values in column.parts(table[column.name], levels).items():
                parts.append((column.name, name, values))
        return parts


def _texts(table: pd.DataFrame) -> NDArray[Any]:
    """Return texts as `TargetEncoder` takes them; missing ones are a category of their own."""
    texts: NDArray[Any] = table.astype(object).where(table.notna(), "\0missing").to_numpy(object)
    return texts
