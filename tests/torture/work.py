"""What the forked children of the torture runs do, besides command lines."""

from __future__ import annotations

from pathlib import Path


def train_with_checkpoints(path: str, out: str, every: int, steps: int) -> None:
    """A real run of `fit` that writes a checkpoint every few steps, and at its end its bits to
    `out`."""
    import torch

    from rlploss import RLP, Adam, RegressionNet, Steps, fit, seeded

    generator = torch.Generator().manual_seed(0)
    X = torch.randn(60, 3, generator=generator)
    y = torch.sin(2 * X[:, 0]) + X[:, 1]
    model = seeded(lambda: RegressionNet(3, hidden=8), 1)
    more = {"checkpoint": Path(path), "checkpoint_every": Steps(every)} if path else {}
    history = fit(
        model, X, y, RLP(9, n_subsets=40), optimizer=Adam(0.01), budget=Steps(steps), seed=3,
        validation=(X, y), evaluate_every=Steps(25), **more,
    )  # fmt: skip
    bits = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
    curves = [f"{name} {values!r}" for name, values in history.columns.items() if name != "seconds"]
    Path(out).write_text("\n".join([*curves, history.stopped, *bits]))


def interrupted(words: list[str]) -> None:
    """A command line that Ctrl-C reaches at its first access to the cache."""
    _command_that_meets(KeyboardInterrupt(), words)


def loses_its_directory(words: list[str], folder: str, pattern: str) -> None:
    """A command line whose output directory is removed once the progress matches."""
    import re
    import shutil

    from tests.torture.forks import command_line

    from rlploss._progress import ProgressLine

    say = ProgressLine.say

    def remove(self: ProgressLine, text: str) -> None:
        say(self, text)
        if re.search(pattern, text):
            shutil.rmtree(folder)

    ProgressLine.say = remove  # type: ignore[method-assign]  # in this process only
    command_line(words)


def loses_workers(words: list[str], moments: list[float]) -> None:
    """A command line of whose worker processes one is killed so long after the first has begun, and
    again so long after."""
    import multiprocessing
    import random
    import sys
    import threading
    import time

    from tests.torture.forks import command_line

    def kill() -> None:
        for moment in moments:
            while not multiprocessing.active_children():
                time.sleep(0.01)
            time.sleep(moment)
            if workers := multiprocessing.active_children():
                random.choice(workers).kill()
                print("killed a worker", file=sys.stderr, flush=True)

    threading.Thread(target=kill, daemon=True).start()
    command_line(words)


def mistaken(words: list[str]) -> None:
    """A command line in which something of ours goes wrong."""
    _command_that_meets(KeyError("oh"), words)


def _command_that_meets(error: BaseException, words: list[str]) -> None:
    from tests.torture.forks import command_line

    from rlploss import datasets
    from rlploss.datasets import registry

    def fail(*_: object, **__: object) -> None:
        raise error

    datasets.is_cached = registry.fetch = fail
    command_line(words)
