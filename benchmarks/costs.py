"""Where the time of a results directory of `rlploss reproduce` went, as the table of
docs/results/costs.md.

    python -m benchmarks.costs out/costs

Seconds of one core by name and network; cells that names share count under the first of them. What
the plan predicted stands beside it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rlploss.lab.store import Store, code_version
from rlploss.lab.text import number
from rlploss.paper import measure
from rlploss.paper.reproduce import stored_results
from rlploss.paper.results import Results
from rlploss.paper.studies import CATALOG, expected_seconds

MODELS = ("regression", "moons", "autoencoder", "lenet5", "measured")
HEADER = ("name", "networks", *MODELS, "all", "predicted")


def costs(results: Results) -> dict[str, dict[str, float]]:
    """Return networks and seconds by name, and their sums under "all"."""
    seen: set[str] = set()
    rows: dict[str, dict[str, float]] = {}
    for name, grid in results.items():
        cells = {part.hash: part for parts in grid.parts.values() for part in parts}
        new = [cells[key] for key in cells.keys() - seen if grid.read(cells[key]) is not None]
        seen |= cells.keys()
        if new:
            seconds = {
                model: sum(grid.read(cell).seconds for cell in new if cell.task.model == model)
                for model in MODELS
            }
            rows[CATALOG[name]["short"]] = {
                "networks": sum(cell.n_replicas for cell in new),
                **seconds,
                "all": sum(seconds.values()),
                "predicted": sum(map(expected_seconds, new)),
            }
    rows["all"] = {key: sum(row[key] for row in rows.values()) for key in HEADER[1:]}
    return rows


def markdown(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table of the page."""
    shown = [
        (name.replace("|", "\\|"), *(number(n) if n else "–" for n in row.values()))
        for name, row in rows.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [HEADER, ["---"] * len(HEADER), *shown])


if __name__ == "__main__":
    version = code_version(*measure.DECIDING)
    with Store(sys.argv[1], code_version=version, create=False) as store:
        print(markdown(costs(stored_results(store))))
