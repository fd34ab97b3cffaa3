"""Claims about classification, digits and elapsed time."""

from __future__ import annotations

from collections.abc import Callable

from rlploss.lab import stats
from rlploss.lab.figures import number
from rlploss.paper import published, studies
from rlploss.paper.panels import TASKS
from rlploss.paper.verdicts import (
    NOT_TESTED,
    Evidence,
    Pair,
    Verdict,
    better_everywhere,
    faster,
    judge,
    missing_words,
    pairs,
    run_tasks,
    scope_of,
)  # fmt: skip
from rlploss.paper.view import Grid, mean_sd

Rule = Callable[[Evidence], Verdict]


def _not_run(name: str) -> Verdict:
    return Verdict(NOT_TESTED, f"Needs `rlploss reproduce {name}`.")


def mnist_ten_epochs(evidence: Evidence) -> Verdict:
    """Accuracy after 10 epochs: RLP 96 %, cross entropy 86 %."""
    grid = evidence.grid("fig-mnist-classes", studies.mnist_classes)
    if grid is None:
        return _not_run("fig-mnist-classes")
    task = "mnist_classes"
    at: dict[tuple[str, str], stats.Array] = {}
    for protocol in ("released", "steps", "corrected"):
        for arm in ("ce", "rlp"):
            stored = grid.stored(task, protocol, arm)
            if stored is not None:
                axis, value = ("step", 1000.0) if protocol == "steps" else ("epoch", 10.0)
                at[protocol, arm] = stored.at("accuracy", axis, value)
    if ("released", "rlp") not in at or ("released", "ce") not in at:
        return Verdict(NOT_TESTED, missing_words(grid, (task,)) or "No runs.")
    stored = grid.stored(task, "released", "rlp")
    enough = stored is not None and stored.axis("epoch")[-1] >= 10
    held = _ahead(at, "released")
    words = "; ".join(f"{p} {'RLP' if a == 'rlp' else 'cross entropy'} {mean_sd(v)}" for (p, a), v in at.items())
    against = _ahead(at, "corrected")
    scope = ""
    if held and against is False:
        scope = "only against the released double soft-max, not against cross entropy on logits"
    judged = grid.view.request.at.judged and enough
    return judge(held, _ahead(at, "steps"), f"Accuracy after 10 epochs: {words}.", scope, judged=judged)


def _ahead(at: dict[tuple[str, str], stats.Array], protocol: str) -> bool | None:
    if (protocol, "rlp") not in at or (protocol, "ce") not in at:
        return None
    return stats.compare(at[protocol, "rlp"], at[protocol, "ce"], lower_is_better=False).word == "better"


def _classes(name: str, cells: studies.Cells, tasks: tuple[str, str]) -> Rule:
    def rule(evidence: Evidence) -> Verdict:
        grid = evidence.grid(name, cells)
        if grid is None:
            return _not_run(name)
        settings = (("ce", "rlp"), ("ce_mixup", "rlp_mixup"))

        def found(protocols: tuple[str, str]) -> list[Pair]:
            return [
                pair
                for base, ours in settings
                for metric in ("accuracy", "f1")
                for pair in pairs(grid, tasks, (base,), ours=ours, metric=metric, protocols=protocols)
            ]

        both = [faster(grid, run_tasks(grid, tasks, ours), base, "accuracy", ours) for base, ours in settings]
        also = tuple(False if any(v[k] is False for v, _ in both) else None for k in (0, 1))
        fixed = [p.epochs for p in found(("corrected", "corrected-steps")) if p.epochs is not None]
        ahead = sum(c.word == "better" for c in stats.holm(fixed))
        words = f"Against cross entropy on logits RLP is better in {ahead} of {len(fixed)}." if fixed else ""
        return better_everywhere(
            found(("released", "steps")),
            judged=grid.view.request.at.judged,
            scope=scope_of(grid, tasks, lambda task: _full(task)),
            reason=missing_words(grid, tasks),
            extra=" ".join([words, *(text for _, text in both if text)]).strip(),
            also=(also[0], also[1]),
        )

    return rule


def _full(task: str) -> int:
    family = {"mnist_classes-small": "mnist_classes", "moons-small": "moons_small"}.get(task, task)
    return int(published.protocol(family)["epochs"])


def elapsed_time(evidence: Evidence) -> Verdict:
    """Test MSE at the last second that both arms have reached."""
    grid = evidence.grid("fig-time", studies.elapsed)
    if grid is None:
        return _not_run("fig-time")
    found = []
    for task in studies.THREE:
        ours, theirs = (grid.stored(task, "released", arm) for arm in ("rlp", "mse"))
        if ours is None or theirs is None:
            found.append(Pair(TASKS[task], None, None))
            continue
        compared = []
        for axis in ("seconds", "step"):
            common = min(float(ours.axis(axis)[-1]), float(theirs.axis(axis)[-1]))
            compared.append(stats.compare(ours.at("mse", axis, common), theirs.at("mse", axis, common)))
        found.append(Pair(TASKS[task], *compared))
    given = published.protocol("time")
    full = dict(zip(given["datasets"], given["rlp_epochs"], strict=True))
    return better_everywhere(
        found,
        judged=grid.view.request.at.judged,
        scope=scope_of(grid, studies.THREE, lambda task: int(full[task])),
        reason=missing_words(grid, studies.THREE),
        extra="Here “equal epochs” stands for equal seconds: the error at the last second that both have reached.",
    )


def reconstructions(evidence: Evidence) -> Verdict:
    """Test MSE of the digits after 5, 10 and 50 epochs."""
    grid = evidence.grid("fig-reconstructions", studies.reconstructions)
    if grid is None:
        return _not_run("fig-reconstructions")
    found = []
    for epoch in (5, 10, 50):
        compared = [_after(grid, protocol, epoch) for protocol in ("released", "steps")]
        found.append(Pair(f"epoch {epoch}", *compared))
    values = "; ".join(
        f"{name} after {epoch}: {number(float(stored.at('mse', 'epoch', epoch).mean()))}"
        for arm, name in (("rlp", "RLP"), ("mse", "MSE"))
        if (stored := grid.stored("mnist", "released", arm)) is not None
        for epoch in (5, 10, 50)
        if stored.axis("epoch")[-1] >= epoch
    )
    return better_everywhere(
        found,
        judged=grid.view.request.at.judged,
        scope=scope_of(grid, ("mnist",), lambda task: 50),
        reason=missing_words(grid, ("mnist",)),
        extra=f"Test MSE: {values}." if values else "",
    )


def _after(grid: Grid, protocol: str, epoch: int) -> stats.Comparison | None:
    ours, theirs = (grid.stored("mnist", protocol, arm) for arm in ("rlp", "mse"))
    if ours is None or theirs is None or ours.axis("epoch")[-1] < epoch:
        return None
    if protocol == "released":
        return stats.compare(ours.at("mse", "epoch", epoch), theirs.at("mse", "epoch", epoch))
    steps = float(ours.axis("step")[ours.axis("epoch") <= epoch][-1])
    return stats.compare(ours.at("mse", "step", steps), theirs.at("mse", "step", steps))


RULES: dict[str, Rule] = {
    "mnist-classification": mnist_ten_epochs,
    "moons": _classes("fig-moons", studies.moons, ("moons", "moons-small")),
    "mnist-classification-sizes": _classes(
        "fig-mnist-classes", studies.mnist_classes, ("mnist_classes", "mnist_classes-small")
    ),
    "elapsed-time": elapsed_time,
    "reconstructions": reconstructions,
}
