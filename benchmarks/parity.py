"""Whether a changed `compare` finds what it found before: errors, words and columns on twelve
tables.

    python -m benchmarks.parity record FILE.json
    python -m benchmarks.parity check FILE.json

`record` compares diabetes and eleven development tables and writes what came out. `check` does it
again and prints, for every arm, the geometric mean of its error over that of the record, and each
line and column that reads differently."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

from rlploss.compare import compare
from rlploss.datasets.tables import load_table

TABLES = ("airfoil", "baseball", "concrete", "cpu_performance", "ele_1", "laser", "medical_cost")
TABLES += ("qsar-fish-toxicity", "yacht_hydrodynamics", "pima", "saheart")
ROWS, SPLITS, STEPS = 160, 10, 1000
TOLERANCE = 0.02


def load(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """The columns and the target of a table."""
    if name == "diabetes":
        return load_diabetes(return_X_y=True, as_frame=True)
    X, y = load_table(name, progress=False)
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]), y


def measure(name: str) -> dict[str, Any]:
    """What a comparison says of one table."""
    X, y = load(name)
    asked = {"n_splits": SPLITS, "steps": STEPS, "max_rows": ROWS, "workers": "inline"}
    found = compare(X, y, **asked)
    measured = "rmse" if found.task == "regression" else "brier"
    arms = [one.name for one in getattr(found, "arms", None) or found.contenders]
    return {
        "errors": {arm: found.values(arm, measured).tolist() for arm in arms},
        "lines": found.lines(),
        "columns": [[c.name, c.kind, c.does] for c in found.design.columns],
    }


def main() -> None:
    """Record or check every table."""
    what, place = sys.argv[1], Path(sys.argv[2])
    told = json.loads(place.read_text("utf-8")) if what == "check" else {}
    measured: dict[str, dict[str, Any]] = {}
    for name in sys.argv[3:] or ("diabetes", *TABLES):
        measured[name] = measure(name)
        print(name, flush=True)
        for key in ("lines", "columns") if told else ():
            for before, now in zip(told[name][key], measured[name][key], strict=False):
                if before != now:
                    print(f"  was: {before}\n  now: {now}")
    if what == "record":
        place.write_text(json.dumps(measured, indent=1), "utf-8")
        return
    arms = dict.fromkeys(arm for name in measured for arm in told[name]["errors"])
    for arm in arms:
        logs = []
        for name in measured:
            before, now = (found[name]["errors"].get(arm) for found in (told, measured))
            if before and now:  # an arm may have ended after fewer splits
                n = min(len(before), len(now))
                pair = np.log(np.maximum([before[:n], now[:n]], 1e-12)).mean(axis=1)
                logs.append(float(pair[1] - pair[0]))
        if logs:
            ratio = float(np.exp(np.mean(logs)))
            word = "as before" if abs(ratio - 1) <= TOLERANCE else "DIFFERENT"
            spread = float(np.std(logs, ddof=1) / len(logs) ** 0.5)
            print(f"{arm:18} {ratio:.3f} ± {spread:.3f} on {len(logs)} tables, {word}")


if __name__ == "__main__":
    main()
