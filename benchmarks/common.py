"""How things are timed: competitors take turns in one run, and a claim is a ratio of medians."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

Row = dict[str, object]


def paired(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    *,
    rounds: int = 21,
    repeat: int = 1,
    warm_up: int = 3,
) -> tuple[float, float, float]:
    """Median over rounds of time(candidate)/time(baseline), and the two median times of one call in
    seconds.

    Each round times both, in alternating order, `repeat` calls each: what slows the machine slows
    both."""
    for _ in range(warm_up):
        candidate(), baseline()
    ratios, times = [], ([], [])
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            seconds = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                call = (candidate, baseline)[which]
                start = time.perf_counter()
                for _ in range(repeat):
                    call()
                seconds[which] = (time.perf_counter() - start) / repeat
                times[which].append(seconds[which])
            ratios.append(seconds[0] / seconds[1])
    finally:
        gc.enable()
    return statistics.median(ratios), statistics.median(times[0]), statistics.median(times[1])


def at_most(name: str, ratio: float, limit: float, detail: str) -> Row:
    """A claim that candidate/baseline stays below a limit."""
    return {
        "name": name,
        "ratio": ratio,
        "limit": f"≤ {limit:g}",
        "ok": ratio <= limit,
        "detail": detail,
    }


def at_least(name: str, ratio: float, limit: float, detail: str) -> Row:
    """A claim that something is at least so many times faster."""
    return {
        "name": name,
        "ratio": ratio,
        "limit": f"≥ {limit:g}",
        "ok": ratio >= limit,
        "detail": detail,
    }


def timed(seconds: float) -> str:
    """Seconds as people read them."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
