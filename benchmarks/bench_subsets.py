"""What a plan of subsets costs: against the permutations it is made of, against its size, against
Python tuples.

Run it alone with `python -m benchmarks.bench_subsets [--quick]`. Every ratio is the median over
paired rounds: both sides are timed in turn within each round, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from rlploss import balanced_subsets

ROUNDS = 15


def paired(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int
) -> tuple[float, float, float]:
    """Return the medians of ours/theirs, of ours and of theirs (seconds) over interleaved rounds,
    after a warm-up."""
    ours()
    theirs()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        ours()
        middle = time.perf_counter()
        theirs()
        times.append((middle - start, time.perf_counter() - middle))
    ratio = statistics.median(mine / other for mine, other in times)
    return ratio, statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def row(name: str, ratio: float, limit: float | None, detail: str) -> dict[str, object]:
    return {
        "name": name,
        "ratio": ratio,
        "limit": limit,
        "ok": limit is None or ratio <= limit,
        "detail": detail,
    }


def measure(quick: bool = False) -> list[dict[str, object]]:
    """Time `balanced_subsets`; `quick` takes 3 rounds instead of 15."""
    rounds = 3 if quick else ROUNDS
    generator = torch.Generator().manual_seed(0)
    n, m, k = 1_000_000, 100, 100_000
    plan = balanced_subsets(n, m, k, generator=generator)
    shuffles = -(-k * m // n)

    def big_plan() -> object:
        return balanced_subsets(n, m, k, generator=generator)

    results = []
    ratio, ours, theirs = paired(
        big_plan, lambda: [torch.randperm(n, generator=generator) for _ in range(shuffles)], rounds
    )
    results.append(
        row(
            "balanced_subsets(1_000_000, 100, 100_000) / the randperm calls it needs",
            ratio,
            2.5,
            f"{ours:.3f} s against {theirs:.3f} s for {shuffles} x randperm({n:,}); {rounds}"
            " rounds",
        )
    )
    for rows in (150, 1_000, 30_000, 1_000_000):
        ratio, ours, theirs = paired(
            lambda rows=rows: balanced_subsets(rows, m, k, generator=generator),
            lambda rows=rows: balanced_subsets(rows, m, k // 10, generator=generator),
            rounds,
        )
        results.append(
            row(
                f"linear in K*M, N = {rows:,}: cost per index at K*M = 1e7 / at 1e6",
                ratio / 10,
                2.0,
                f"{ours * 1e2:.1f} and {theirs * 1e3:.1f} ns per index; {rounds} rounds",
            )
        )
    ratio, ours, theirs = paired(
        big_plan, lambda: {tuple(sorted(line)) for line in plan.tolist()}, rounds
    )
    results.append(
        row(
            "balanced_subsets(1_000_000, 100, 100_000) / a Python set of its sorted tuples",
            ratio,
            None,
            f"{ours:.3f} s against {theirs:.3f} s for the set alone; {rounds} rounds; reported, no"
            " limit",
        )
    )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 15")
    for result in measure(parser.parse_args().quick):
        limit = "no limit" if result["limit"] is None else f"limit {result['limit']}"
        verdict = "ok  " if result["ok"] else "MISS"
        print(f"{verdict} {result['ratio']:.3f} ({limit})  {result['name']}: {result['detail']}")


if __name__ == "__main__":
    main()
