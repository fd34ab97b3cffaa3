"""`--track`: the curves of each stored cell go to MLflow or TensorBoard too, whichever command trains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rlploss.lab.results import CellResult
from rlploss.lab.study import AnyCell
from rlploss.tracking import Logger, MLflowLogger, TensorBoardLogger

_LOGGER: ContextVar[Logger | None] = ContextVar("logger", default=None)


@contextmanager
def tracking(track: str | None) -> Iterator[None]:
    """Inside, cells that are stored are written to `mlflow:URI` or `tensorboard:DIR` as well."""
    if track is None:
        yield
        return
    kind, _, where = track.partition(":")
    makers: dict[str, Callable[[str], Logger]] = {"mlflow": MLflowLogger, "tensorboard": TensorBoardLogger}
    if not where or kind not in makers:
        raise ValueError(f"--track takes mlflow:URI or tensorboard:DIR, got {track!r}; try tensorboard:runs")
    with makers[kind](where) as logger:
        token = _LOGGER.set(logger)
        try:
            yield
        finally:
            _LOGGER.reset(token)


def note(cell: AnyCell, result: CellResult, say: Callable[[str], object]) -> None:
    """One run per network of the cell: its settings, its curve, and its single numbers at the end."""
    logger = _LOGGER.get()
    if logger is None:
        return
    logger.tell = say
    for network in result.networks:
        names = [name for name in network.curve if name != "step"]
        steps = [int(step) for step in network.curve.get("step", ())]
        rows = [(step, {name: network.curve[name][i] for name in names}) for i, step in enumerate(steps)]
        if network.values:
            rows.append((steps[-1] if steps else 0, dict(network.values)))
        which = f" · variant {network.variant}" if network.variant else ""
        logger.write(f"{cell}{which} · seed {network.seed}", rows, cell.spec())
