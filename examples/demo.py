"""Both things that rlploss does, in three minutes: the paper's Table 1 at full length, and what to
use on a table.

Run it with `make demo`. The published numbers stand beside ours at equal epochs and at equal steps.
Linear and Nonlinear have 200 epochs and 30 seeds, as in the paper; Wine
and California follow as far as the time allows. It writes out/demo/report.html; a second run trains
only what is missing. For all columns:

    rlploss reproduce table1 fig-curves --scale paper --datasets california,wine,linear,nonlinear
    --out out/demo
"""

import io
import os
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
from rich.console import Console

from rlploss._progress import duration
from rlploss.compare import compare
from rlploss.lab.executors import parse_workers
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store, code_version
from rlploss.paper import measure, published, reproduce
from rlploss.paper.request import Request
from rlploss.paper.results import Grid, title_of
from rlploss.paper.sections import against_published, mean_sd, plus_minus
from rlploss.paper.studies import ARMS, cells_of, expected_seconds

SECONDS = float(os.environ.get("RLPLOSS_DEMO_SECONDS", "150"))  # for Table 1, on this machine
GROUPS = (("linear", "nonlinear"), ("wine",), ("california",))  # the first is always trained
NAMES = ("table1", "fig-curves", "fig-planes")
COLUMNS = (11, 8, 20, 20, 20)
REQUEST = Request("paper", seeds=30)  # without the 90 more that California has in Table 1


def main(out: Path = Path("out/demo"), request: Request = REQUEST) -> None:
    """Train what fits into the time, write the report, print one screen."""
    started, workers = time.monotonic(), parse_workers("local")
    asked: tuple[str, ...] = ()
    with Store(out, code_version=code_version(*measure.DECIDING)) as store:
        store.refuse_others("reproduce")
        for group in GROUPS:
            cells = cells_of(["table1"], replace(request, datasets=group))
            cells = [
                c for c in cells if c.task.name in group and c.arm.protocol in ("released", "steps")
            ]
            todo = plan(cells, store, cost=expected_seconds, workers=workers)
            if asked and time.monotonic() - started + todo.expected_seconds > SECONDS:
                continue
            asked += group
            for name in NAMES:
                store.write_request(name, asdict(replace(request, datasets=asked)))
            execute(todo, store, train=measure.train, workers=workers, console=Console())
        reproduce.render(store, out, Console(file=io.StringIO()), show=())
        print(screen(reproduce.stored_results(store)["table1"], asked, time.monotonic() - started))
    print(f"Report: {out / 'report.html'}")
    table_of_your_own(out.with_name("demo-compare"))


def table_of_your_own(out: Path) -> None:
    """Show what `rlploss compare examples/diabetes.csv --target progression` answers."""
    print("\nWhat to use on a table: rlploss compare examples/diabetes.csv --target progression")
    frame = pd.read_csv(Path(__file__).with_name("diabetes.csv"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the table: they are in the report
        comparison = compare(frame.drop(columns="progression"), frame["progression"], out=out)
    print(f"{comparison.summary()}\nReport: {comparison.write(out)}")


def screen(grid: Grid, asked: tuple[str, ...], seconds: float) -> str:
    """One table and five sentences, at most 80 columns wide."""
    lines = [_row("test MSE", "", "published", "equal epochs", "equal steps"), "-" * sum(COLUMNS)]
    agreement = []
    found: dict[str, dict[str, str]] = {"released": {}, "steps": {}}
    for dataset in asked:
        for arm in ("mse", "mse_l2", "rlp"):
            value = published.value("table1", dataset, arm, "mse")
            assert value is not None
            ours = [mean_sd(grid.final(dataset, protocol, arm)) for protocol in found]
            name = title_of(dataset) if arm == "mse" else ""
            lines.append(_row(name, ARMS[arm].label, plus_minus(value.mean, value.sd), *ours))
            agreement.append(against_published(grid, dataset, arm, "mse", value).partition(",")[0])
        for protocol, words in found.items():
            c = grid.compare(dataset, protocol, "rlp", "mse")
            words[title_of(dataset)] = "undecided" if c is None else c.word
    epochs, steps = found.values()
    left = [title_of(name) for group in GROUPS for name in group if name not in asked]
    n = len(grid.cells[asked[0], "released", "rlp"].seeds)
    sentences = [
        (
            f"{agreement.count('same')} of {len(agreement)} means match the published ones, "
            f"{agreement.count('different')} do not (Welch's test)."
        ),
        f"Equal epochs: RLP's error is lower on {_listed(epochs, 'better')}.",
        "But an epoch has 1,000 optimiser steps for RLP and 30 to 104 for MSE.",
        f"Equal steps: lower on {_listed(steps, 'better')}, higher on {_listed(steps, 'worse')}.",
        f"All epochs of the paper, {n} seeds, {duration(seconds)}"
        + (f"; no time for {' and '.join(left)}." if left else "."),
    ]
    return "\n".join([*lines, "", *sentences])


def _row(*texts: str) -> str:
    cells = [
        text.replace("\u00a0", " ").ljust(width) for text, width in zip(texts, COLUMNS, strict=True)
    ]
    return "".join(cells).rstrip()


def _listed(words: dict[str, str], wanted: str) -> str:
    """`2 of 4 (Wine, Linear)`; all of them, or none, need no names."""
    names = [title for title, word in words.items() if word == wanted]
    some = 0 < len(names) < len(words)
    return f"{len(names)} of {len(words)}" + (f" ({', '.join(names)})" if some else "")


if __name__ == "__main__":
    main()
