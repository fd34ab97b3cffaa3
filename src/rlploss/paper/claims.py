"""A verdict, or a reason why there is none, for every claim of the paper: the claims about regression and images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlploss.lab import stats
from rlploss.lab.figures import number
from rlploss.lab.report import Claim
from rlploss.paper import claims_classes, claims_measured, published, studies
from rlploss.paper.panels import TASKS
from rlploss.paper.protocols import ARMS
from rlploss.paper.published import IMAGES, REGRESSION
from rlploss.paper.verdicts import (
    NOT_JUDGED,
    NOT_TESTED,
    TONES,
    Evidence,
    Pair,
    Verdict,
    better_everywhere,
    faster,
    in_full,
    judge,
    missing_words,
    pairs,
    run_tasks,
    scope_of,
)  # fmt: skip
from rlploss.paper.view import Grid, mean_sd

SIX = (*REGRESSION, *IMAGES)
BASELINES = ("mse", "mse_l2")
Rule = Callable[[Evidence], Verdict]


def all_claims(evidence: Evidence) -> list[Claim]:
    """Every claim of `published.toml` with its verdict."""
    made = []
    for name, text in published.claims():
        verdict = RULES[name](evidence)
        folded = verdict.word == NOT_TESTED
        made.append(Claim(name, text, verdict.word, TONES[verdict.word], verdict.scope, verdict.evidence, folded))
    # Judged claims first; within a verdict the paper's order.
    return sorted(made, key=lambda claim: list(TONES).index(claim.verdict))


def not_run(*names: str) -> Verdict:
    """A claim whose studies were not asked for."""
    return Verdict(NOT_TESTED, f"Needs `rlploss reproduce {' '.join(names)}`.")


def _lower(metric: str) -> Rule:
    def rule(evidence: Evidence) -> Verdict:
        grid = evidence.grid("table1", studies.table1)
        if grid is None:
            return not_run("table1")
        return better_everywhere(
            pairs(grid, SIX, BASELINES, metric=metric),
            judged=grid.view.request.at.judged,
            scope=scope_of(grid, SIX, published.epochs),
            reason=missing_words(grid, SIX),
            extra=_printed(grid, SIX, metric),
        )

    return rule


def _printed(grid: Grid, tasks: Sequence[str], metric: str) -> str:
    """One sentence on the algorithms as printed."""
    found = [c for t in tasks if (c := grid.compare(t, "paper", "rlp", "mse", metric)) is not None]
    if not found:
        return ""
    better = sum(c.word == "better" for c in stats.holm(found))
    return f"As printed (one step per epoch): RLP better than full-batch MSE on {better} of {len(found)} datasets."


def california_overfit(evidence: Evidence) -> Verdict:
    """Overfitting: the rise of the test error from epoch 100 to the end."""
    grid = evidence.grid("table1", studies.table1)
    if grid is None:
        return not_run("table1")
    if not grid.has("california", "released", "rlp"):
        return Verdict(NOT_TESTED, missing_words(grid, ("california",)))
    full = published.epochs("california")
    if not in_full(grid, "california", full) or not grid.view.request.at.judged:
        return Verdict(NOT_JUDGED, f"Needs {full} epochs.")
    rises: dict[tuple[str, str], stats.Comparison] = {}
    for protocol, axis, early in (("released", "epoch", 100.0), ("steps", "step", 100_000.0)):
        for arm in (*BASELINES, "rlp"):
            stored = grid.stored("california", protocol, arm)
            if stored is not None:
                rises[protocol, arm] = stats.compare(stored.final("mse"), stored.at("mse", axis, early))

    def holds(protocol: str) -> bool | None:
        if any((protocol, arm) not in rises for arm in (*BASELINES, "rlp")):
            return None
        overfit = all(rises[protocol, a].word == "worse" for a in BASELINES)
        return overfit and rises[protocol, "rlp"].word == "better"

    words = "; ".join(
        f"{protocol} {ARMS[arm]}: final error {number(c.effect)} times that a fifth of the way ({c.word})"
        for (protocol, arm), c in rises.items()
    )
    return judge(holds("released"), holds("steps"), words + ".")


def _spread(dataset: str) -> Rule:
    def rule(evidence: Evidence) -> Verdict:
        grid = evidence.grid("table1", studies.table1)
        if grid is None:
            return not_run("table1")
        full = published.epochs(dataset)
        if not grid.has(dataset, "released", "rlp"):
            return Verdict(NOT_TESTED, missing_words(grid, (dataset,)))
        if not in_full(grid, dataset, full) or not grid.view.request.at.judged:
            return Verdict(NOT_JUDGED, f"Needs {full} epochs.")

        def ratios(protocol: str) -> list[tuple[str, stats.Comparison]]:
            ours = grid.final(dataset, protocol, "rlp")
            found = [(b, grid.final(dataset, protocol, b)) for b in BASELINES]
            if ours is None:
                return []
            kept = [(b, stats.variance_ratio(ours, theirs)) for b, theirs in found if theirs is not None]
            return list(zip([b for b, _ in kept], stats.holm([c for _, c in kept]), strict=True))

        both = {p: ratios(p) for p in ("released", "steps")}
        held, at_steps = (
            all(c.word == "better" for _, c in both[p]) if both[p] else None for p in ("released", "steps")
        )
        words = "; ".join(
            f"{p}, against {ARMS[b]}: sd ratio {number(c.effect)} [{number(c.low)}, {number(c.high)}], {c.word}"
            for p, found in both.items()
            for b, c in found
        )
        return judge(held, at_steps, words + ".")

    return rule


def wine_20_epochs(evidence: Evidence) -> Verdict:
    """Epochs (and steps) until the mean test MSE is 0.6."""
    grid = evidence.grid("table1", studies.table1)
    if grid is None:
        return not_run("table1")
    if not grid.has("wine", "released", "rlp"):
        return Verdict(NOT_TESTED, missing_words(grid, ("wine",)))

    def first(protocol: str, arm: str, axis: str) -> float:
        stored = grid.stored("wine", protocol, arm)
        if stored is None:
            return float("nan")
        hit = np.flatnonzero(stored.matrix("mse").mean(axis=0) <= 0.6)
        return float(stored.axis(axis)[hit[0]]) if hit.size else float("inf")

    epochs = {arm: first("released", arm, "epoch") for arm in ("rlp", *BASELINES)}
    steps = {arm: first("steps", arm, "step") for arm in ("rlp", *BASELINES)}
    words = "Epochs until 0.6: " + ", ".join(f"{ARMS[a]} {_count(v)}" for a, v in epochs.items())
    words += "; steps until 0.6: " + ", ".join(f"{ARMS[a]} {_count(v)}" for a, v in steps.items()) + "."
    full = in_full(grid, "wine", published.epochs("wine"))
    judged = grid.view.request.at.judged and (full or epochs["rlp"] > 20)
    if not full:
        words += " The baselines were not run for 200 epochs."
    held = epochs["rlp"] <= 20 and all(epochs[b] > 100 for b in BASELINES)
    known = [b for b in BASELINES if steps[b] == steps[b]]
    at_steps = all(steps["rlp"] < steps[b] for b in known) if known else None
    return judge(held, at_steps, words, judged=judged)


def _count(value: float) -> str:
    if value != value:
        return "not run"
    return f"{value:,.0f}" if np.isfinite(value) else "never"


def _bounds(dataset: str, upper: float, lower: float, target: str) -> Rule:
    """RLP's final error below `upper` while both baselines stay above `lower`, each up to its interval."""

    def rule(evidence: Evidence) -> Verdict:
        grid = evidence.grid("table1", studies.table1)
        if grid is None:
            return not_run("table1")
        if not grid.has(dataset, "released", "rlp"):
            return Verdict(NOT_TESTED, missing_words(grid, (dataset,)))
        full = published.epochs(dataset)
        finals = {
            (p, a): f
            for p in ("released", "steps")
            for a in ("rlp", *BASELINES)
            if (f := grid.final(dataset, p, a)) is not None
        }

        def holds(protocol: str) -> bool | None:
            if any((protocol, a) not in finals for a in ("rlp", *BASELINES)):
                return None
            ours = stats.summary(finals[protocol, "rlp"])
            reached = (ours.mean if ours.n == 1 else ours.low) <= upper
            theirs = [stats.summary(finals[protocol, b]) for b in BASELINES]
            return reached and all((s.mean if s.n == 1 else s.high) >= lower for s in theirs)

        words = "; ".join(f"{p} {ARMS[a]} {mean_sd(f)}" for (p, a), f in finals.items())
        judged = grid.view.request.at.judged and in_full(grid, dataset, full)
        scope = "" if in_full(grid, dataset, full) else f"needs {full} epochs"
        return judge(holds("released"), holds("steps"), f"{target} Measured: {words}.", scope, judged=judged)

    return rule


def nonlinear_lower(evidence: Evidence) -> Verdict:
    """Nonlinear alone."""
    grid = evidence.grid("table1", studies.table1)
    if grid is None:
        return not_run("table1")
    return better_everywhere(
        pairs(grid, ("nonlinear",), BASELINES),
        judged=grid.view.request.at.judged,
        scope=scope_of(grid, ("nonlinear",), published.epochs),
        reason=missing_words(grid, ("nonlinear",)),
    )


def _small(name: str, cells: studies.Cells, wanted: tuple[str, ...]) -> Rule:
    def rule(evidence: Evidence) -> Verdict:
        grid = evidence.grid(name, cells)
        if grid is None:
            return not_run(name)
        also, words = faster(grid, run_tasks(grid, wanted), "mse", "mse")
        return better_everywhere(
            pairs(grid, wanted, BASELINES),
            judged=grid.view.request.at.judged,
            scope=scope_of(grid, wanted, lambda task: int(published.protocol("small")["epochs"])),
            reason=missing_words(grid, wanted),
            extra=words,
            also=also,
        )

    return rule


def _sweep(name: str, cells: studies.Cells) -> Rule:
    def rule(evidence: Evidence) -> Verdict:
        grid = evidence.grid(name, cells)
        if grid is None:
            return not_run(name)
        return better_everywhere(
            pairs(grid, studies.THREE, BASELINES, variants=len(studies.LEVELS)),
            judged=grid.view.request.at.judged,
            scope=scope_of(grid, studies.THREE, published.epochs),
            reason=missing_words(grid, studies.THREE),
        )

    return rule


def noise_asymptote(evidence: Evidence) -> Verdict:
    """Flattening: the share of the whole rise (β from 0.1 to 0.9) that is left after β = 0.5; less is flatter."""
    grid = evidence.grid("fig-noise", studies.noise)
    if grid is None:
        return not_run("fig-noise")

    def share(task: str, protocol: str, arm: str) -> stats.Array | None:
        ends = [grid.final(task, protocol, arm, "mse", k) for k in (0, 4, 8)]
        if any(e is None for e in ends):
            return None
        first, middle, last = (np.asarray(e) for e in ends)
        whole = float((last - first).mean())  # of the mean curve: a single seed's rise may be nearly nothing
        return np.asarray((last - middle) / whole) if whole > 0 else None

    found = []
    for task in studies.THREE:
        for base in BASELINES:
            compared = []
            for protocol in ("released", "steps"):
                ours, theirs = share(task, protocol, "rlp"), share(task, protocol, base)
                compared.append(None if ours is None or theirs is None else _difference(ours, theirs))
            found.append(Pair(TASKS[task], *compared))
    return better_everywhere(
        found,
        judged=grid.view.request.at.judged,
        scope=scope_of(grid, studies.THREE, published.epochs),
        reason=missing_words(grid, studies.THREE),
        extra="Compared: the share of the rise from β = 0.1 to 0.9 that is left after β = 0.5 (less is flatter).",
    )


def _difference(ours: stats.Array, theirs: stats.Array) -> stats.Comparison:
    # Negated, so that less is better on a difference scale: shares may be negative.
    return stats.compare(-ours, -theirs, lower_is_better=False)


def mixup_regression(evidence: Evidence) -> Verdict:
    """RLP and RLP+mixup against MSE+mixup, in every setting."""
    wanted: list[tuple[str, studies.Cells, int]] = [
        ("fig-mixup-curves", studies.mixup_curves, 1),
        ("fig-mixup-small", studies.mixup_small, 1),
        ("fig-mixup-shift", studies.mixup_shift, 9),
        ("fig-mixup-noise", studies.mixup_noise, 9),
    ]
    found: list[Pair] = []
    absent, short, judged = [], "", True
    for name, cells, variants in wanted:
        grid = evidence.grid(name, cells)
        if grid is None:
            absent.append(name)
            continue
        judged = judged and grid.view.request.at.judged
        for ours in ("rlp", "rlp_mixup"):
            found += pairs(grid, grid.tasks(), ("mse_mixup",), ours=ours, variants=variants)
        if name == "fig-mixup-curves":
            short = scope_of(grid, studies.THREE, published.epochs)
    if len(absent) == len(wanted):
        return not_run(*absent)
    reason = f"Not asked for: {', '.join(absent)}." if absent else ""
    return better_everywhere(found, judged=judged, scope=short, reason=reason)


def mae(evidence: Evidence) -> Verdict:
    """Test MAE against a network trained with MAE."""
    grid = evidence.grid("fig-mae", studies.mae)
    if grid is None:
        return not_run("fig-mae")
    return better_everywhere(
        pairs(grid, studies.THREE, ("mae",), metric="mae"),
        judged=grid.view.request.at.judged,
        scope=scope_of(grid, studies.THREE, lambda task: int(published.protocol("mae")["epochs"])),
        reason=missing_words(grid, studies.THREE),
    )


RULES: dict[str, Rule] = {
    "table1-lower-mse": _lower("mse"),
    "table1-lower-rlp": _lower("rlp"),
    "california-overfit": california_overfit,
    "california-sd": _spread("california"),
    "wine-sd": _spread("wine"),
    "mnist-sd": _spread("mnist"),
    "cifar10-sd": _spread("cifar10"),
    "wine-20-epochs": wine_20_epochs,
    "linear-3e-6": _bounds("linear", 3e-6, 0.2, "RLP below 3e-6, the others above 0.2."),
    "nonlinear-lower": nonlinear_lower,
    "mnist-autoencoder": _bounds("mnist", 0.018 + 0.002, 0.04, "RLP 0.018 ± 0.002, the others above 0.04."),
    "cifar10-autoencoder": _bounds("cifar10", 2.8e-5, 5.0e-4, "RLP 2.7e-5 ± 1e-6, the others above 5e-4."),
    "small-data-50": _small("table2", studies.table2, SIX),
    "small-data-100": _small("fig-small-100", studies.small_100, (*studies.THREE, *IMAGES)),
    "shift": _sweep("fig-shift", studies.shift),
    "noise": _sweep("fig-noise", studies.noise),
    "noise-asymptote": noise_asymptote,
    "mixup-regression": mixup_regression,
    "mae": mae,
    **claims_classes.RULES,
    **claims_measured.RULES,
}
