"""Callbacks that write the curves of a run elsewhere: a CSV file, TensorBoard, MLflow."""

from __future__ import annotations

import csv
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlploss._extras import need

if TYPE_CHECKING:
    from rlploss.training.evaluation import Event

Rows = list[tuple[int, dict[str, float]]]  # of one run: (step, what was measured there)
PER_BATCH = 1000  # numbers that MLflow takes at once


class Logger(AbstractContextManager["Logger"]):
    """A callback of `fit` and `fit_fleet`, and a context manager that closes what it opened.

    Trouble is told once, by a warning or by `tell`; training goes on without the logger.
    """

    def __init__(self, run: str, tell: Callable[[str], object] | None = None) -> None:
        self.run, self.tell, self._broken = run, tell, False

    def __call__(self, event: Event) -> None:
        """Write one evaluation; the replicas of a fleet are runs of their own. Under torchrun rank 0 writes."""
        from rlploss import distributed  # with torch, which is there where something is trained

        if distributed.current().rank > 0:
            return
        run = f"{self.run}-{event.replica}" if event.replica else self.run
        axes = {"epoch": event.epoch, "samples": float(event.samples), "seconds": event.seconds}
        self.write(run, [(event.step, {**axes, **event.metrics})])

    def write(self, run: str, rows: Rows, settings: Mapping[str, Any] | None = None) -> None:
        """Write rows of a run, and its settings."""
        self._try(self._write, run, rows, settings or {})

    def close(self, *_: object) -> None:
        """Close what is open."""
        self._try(self._close)

    __exit__ = close

    def _try(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            if not self._broken:
                work(*arguments)
        except Exception as error:
            self._broken = True
            said = f"{type(self).__name__} failed ({' '.join(str(error).split())[:300]}); training goes on without it"
            warnings.warn(said, RuntimeWarning, stacklevel=3) if self.tell is None else self.tell(said)

    def _write(self, run: str, rows: Rows, settings: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        """Nothing is open."""


class CSVLogger(Logger):
    """One line per evaluation in a CSV file; a file that is there is continued. `close()` has nothing to do.

    Args:
        path: the file.
        run: what stands in its column `run`; further replicas of a fleet are run-1, run-2 and so on.

    >>> logger = CSVLogger("curves.csv")  # for fit(..., callbacks=[logger])
    """

    def __init__(self, path: str | Path, *, run: str = "fit") -> None:
        super().__init__(run)
        self.path = Path(path)

    def _write(self, run: str, rows: Rows, settings: Mapping[str, Any]) -> None:
        with self.path.open("a+", newline="") as file:
            file.seek(0)
            old, header = next(csv.reader(file), None), ["run", "step", *rows[0][1]]
            if old and old != header:
                raise ValueError(f"{self.path} has the columns {', '.join(old)}; give another path")
            table = csv.writer(file)
            table.writerows([] if old else [header])
            table.writerows([run, step, *row.values()] for step, row in rows)


class TensorBoardLogger(Logger):
    """Scalars for `tensorboard --logdir DIRECTORY`, a folder per run. Needs `rlploss[track]`.

    `close()`, or leaving `with`, closes the files.

    Args:
        directory: of the folders.
        run: the name of the folder; further replicas of a fleet are run-1, run-2 and so on.

    >>> logger = TensorBoardLogger("runs")  # for fit(..., callbacks=[logger])
    """

    def __init__(self, directory: str | Path, *, run: str = "fit") -> None:
        need("track", "TensorBoardLogger", "tensorboard")
        super().__init__(run)
        self.directory, self._writers = Path(directory), dict[str, Any]()

    def _write(self, run: str, rows: Rows, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if run not in self._writers:
            folder = re.sub(r"[^\w.=-]+", "-", run).strip("-.") or "run"
            self._writers[run] = SummaryWriter(str(self.directory / folder))
        writer = self._writers[run]
        for name, value in settings.items():
            writer.add_text(name, str(value))
        for step, row in rows:
            for name, value in row.items():
                writer.add_scalar(name, value, step)
        writer.flush()

    def _close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()


class MLflowLogger(Logger):
    """Runs of an MLflow server, or of a local store (`sqlite:///FILE`). Needs `rlploss[track]`.

    `close()`, or leaving `with`, marks the runs as finished.

    Args:
        uri: of the server or store; None is what MLflow is set to.
        experiment: the name under which MLflow has the runs.
        run: the name of the run; further replicas of a fleet are run-1, run-2 and so on.

    >>> logger = MLflowLogger("sqlite:///runs.db")  # for fit(..., callbacks=[logger])
    """

    def __init__(self, uri: str | None = None, *, experiment: str = "rlploss", run: str = "fit") -> None:
        need("track", "MLflowLogger", "mlflow")
        super().__init__(run)
        self.uri, self.experiment = uri, experiment
        self._client: Any = None
        self._runs = dict[str, str]()

    def _write(self, run: str, rows: Rows, settings: Mapping[str, Any]) -> None:
        # A server that does not answer is asked for some seconds, not for the minutes that MLflow would wait.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client = client = self._client or MlflowClient(self.uri)
        if run not in self._runs:
            found = client.get_experiment_by_name(self.experiment)
            where = found.experiment_id if found else client.create_experiment(self.experiment)
            self._runs[run] = client.create_run(where, run_name=run).info.run_id
        now, identity = int(time.time() * 1000), self._runs[run]
        numbers = [Metric(k, v, now, step) for step, row in rows for k, v in row.items() if math.isfinite(v)]
        client.log_batch(identity, params=[Param(k, str(v)[:500]) for k, v in settings.items()])
        for i in range(0, len(numbers), PER_BATCH):
            client.log_batch(identity, metrics=numbers[i : i + PER_BATCH])

    def _close(self) -> None:
        while self._runs:
            self._client.set_terminated(self._runs.popitem()[1])
