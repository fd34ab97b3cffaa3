"""What a comparison says: which arm to use, whether RLP adds anything, and how sure that is, a line
each. Every sentence is chosen from a table of cases.
"""

from __future__ import annotations

import numpy as np

from rlploss.compare.result import Answer, ArmResult, Paired, Results, reverse

WIDE = 10.0  # an interval of a ratio up to this is no longer told in percent

FIRST = {  # by what the leader is shown to be
    "best": "Use {best}{aside}: {how}{against}{why}; {took} to tune and train.",
    "few": (
        "Use {best}{aside} for now: {how}{against}{why}; {n} splits are too few to show that it"
        " is better than predicting {baseline}."
    ),
    "none": (
        "Use none of them: no arm is shown to be better than predicting {baseline} ({how} for"
        " {best}{against}{why})."
    ),
}
# Whether RLP adds anything to a network: by the test of RLP against the best network without it,
# and by who leads. "other": an arm without RLP; "mse": RLP with its dial at the MSE end.
VERDICTS = {
    "better": {
        "rlp": "RLP helps",
        "rlp variant": "RLP helps",
        "mixture": "RLP helps",
        "mse": "RLP's dial helps, most often at its MSE end",
        "other": "RLP helps a network, but {best} is ahead of it on average",
        "nothing": "RLP helps a network, which is of no use here",
    },
    "worse": {
        "rlp": "RLP is ahead of {rival} on average only",
        "rlp variant": "RLP alone does not help",
        "mixture": "RLP alone does not help",
        "mse": "RLP does not help",
        "other": "RLP does not help",
        "nothing": "RLP does not help",
    },
    "level": {
        "rlp": "RLP is not shown to be better than {rival}, either will do",
        "rlp variant": "RLP is not shown to be better than {rival}, either will do",
        "mixture": "RLP alone adds nothing",
        "mse": "RLP adds nothing",
        "other": "RLP adds nothing",
        "nothing": "RLP adds nothing",
    },
    "undecided": dict.fromkeys(
        ("rlp", "rlp variant", "mixture", "mse", "other", "nothing"),
        "Whether RLP adds anything is undecided",
    ),
}
SURE = {  # by the test of the leader against the second
    "better": "{best} is better than the next, {second}, by {by}",
    "worse": "{second} is better than {best} in most splits, not on average ({gap})",
    "level": "{second} cannot be told apart from {best} ({gap})",
    "undecided": "{second} cannot be told apart from {best} ({gap})",
}


def by(c: Paired) -> str:
    """Return how much better ours is: `12 % [5, 19]` of the error, or `2.1 points [0.4, 3.8]` of a
    score.
    """
    if c.scale == "difference":
        value, low, high = map(_round, _amounts(c))
        return f"{value} points [{low}, {high}]"
    value, high, low = (_round(-end) for end in _amounts(c))
    return f"{value}{' %' * (c.scale == 'ratio')} [{low}, {high}]"


def gap(c: Paired) -> str:
    """Return a difference that may as well be none, with its interval."""
    if c.scale == "ratio" and c.corrected_interval[1] > WIDE:
        return (
            f"error {c.effect:.2g} times as large, in an interval too wide to be of use: more"
            " splits narrow it"
        )
    value, low, high = _amounts(c)
    forms = {"ratio": f"error {value:+.2g} %", "difference": f"{value:+.2g} points"}
    return f"{forms.get(c.scale, f'error {value:+.2g}')} [{_round(low)}, {_round(high)}]"


def _amounts(c: Paired) -> list[float]:
    """Return the difference and the ends of its interval: in percent of the error or points, with
    no -0 and no 1e-15.

    An error of 0 has no percent: the differences are then in the error's own unit.
    """
    if c.scale == "gap":
        return [c.effect, *c.corrected_interval]
    none = 1.0 if c.scale == "ratio" else 0.0
    return [round(100 * (end - none), 6) + 0.0 for end in (c.effect, *c.corrected_interval)]


def _round(value: float) -> str:
    if not np.isfinite(value):
        return "?"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def verdict(a: Answer) -> str:
    """Return in a few words whether RLP adds anything to a network, such that they fit the leader;
    nothing where no network without RLP was trained.
    """
    rival = a.rivals[0]
    if a.ours.role != "rlp" or rival.role != "network":
        return ""
    word = a.against[rival.name].word
    if word == "undecided" and a.ours.at_mse == len(a.ours.predicted) > 0:
        word = "level"  # RLP was MSE in every split
    roles = {"rlp": "rlp" if a.leader is a.ours else "rlp variant", "mixture": "mixture"}
    leads = roles.get(a.leader.role, "other")
    if not a.of_use or (word == "better" and a.ours_is_useless):
        leads = "nothing"
    elif a.leader.is_mse:
        leads = "mse"
    return VERDICTS[word][leads].format(best=a.leader.label, rival=rival.label)


def standing(a: Answer) -> str:
    """Return how ours stands to its rivals, with the uncertainty of each test."""
    ours = a.ours.label
    tests = [(rival, a.against[rival.name]) for rival in a.rivals]
    level = [f"{rival.label} ({gap(c)})" for rival, c in tests if not c.significant]
    parts, subject = [], a.ours
    if level:
        parts.append(f"{ours} cannot be told apart from {' or '.join(level)}")
    for rival, c in tests:
        if c.word == "better":
            parts.append(f"{ours} is better than {rival.label} by {by(c)}")
        elif c.word == "worse":
            subject = subject if parts else rival
            than = "" if parts else f" than {ours}"
            parts.append(f"{rival.label} is better{than} by {by(reverse(c))}")
    parts[0] += " on this table"
    if a.ours_is_useless and a.baseline is not None:
        parts.append(f"it is not shown to be better than predicting {a.baseline.label}")
    elif a.ours.at_mse:
        n = len(a.ours.predicted)
        parts.append(f"RLP's dial stayed at MSE in {a.ours.at_mse} of {n} splits")
    text = "; ".join(parts) + "."
    own_name = subject.label == subject.name  # of a reader's loss: not changed
    return text if own_name else text[0].upper() + text[1:]


def lines(results: Results, *, why: str = "", no_rlp: str = "", warned: bool = False) -> list[str]:
    """Return what to use, whether RLP adds anything, how sure that is.

    `why` tells why a metric decides that is not the usual one, `no_rlp` why RLP was not trained,
    and `warned` that warnings may change the answer.
    """
    a, metric = results.answer, results.metric
    best, n = a.leader, len(a.leader.predicted)
    value, seconds = float(results.values(best.name).mean()), float(np.mean(best.seconds))
    against = ""
    if a.baseline is not None and a.baseline is not best:
        base = float(results.values(a.baseline.name)[:n].mean())  # of the splits that both have
        share = 100 * (1 - value / base) if metric.lower_is_better and base > 0 else 0.0
        told = f"against {metric.told(base)} for {a.baseline.label}"
        if metric.lower_is_better:
            told = f"{share:.0f} % better than predicting {a.baseline.label}"
        against = f", {told}" if share >= 0 and a.use != "none" else ""
    first = FIRST[a.use].format(
        best=best.label,
        aside=_aside(best),
        how=f"{metric.words} {metric.told(value)}",
        against=against,
        why=f" ({why})" if why else "",
        took=f"{seconds:.1f} s" if seconds >= 0.1 else "less than 0.1 s",
        n=n,
        baseline="" if a.baseline is None else a.baseline.label,
    )
    word = verdict(a)
    second = " ".join(filter(None, [no_rlp, (f"{word}: " if word else "") + standing(a)]))
    n = min(n, len(a.second.predicted))
    sure = "Sure" if a.lead.word == "better" else "Not sure"
    if not a.of_use:
        sure = "Not sure that any is of use"
    told = SURE[a.lead.word].format(
        best=best.label, second=a.second.label, by=by(a.lead), gap=gap(reverse(a.lead))
    )
    many = f"{n} {'windows of time' if results.windows else 'splits'}"
    return [first, second, f"{sure}: {told} in {many}{'; the warnings may change this' * warned}."]


def _aside(arm: ArmResult) -> str:
    """Return that RLP was MSE, where it was in most splits: nothing is credited to RLP."""
    if not arm.is_mse:
        return ""
    plain = arm.label.replace("RLP", "MSE", 1)
    n = len(arm.predicted)
    return f" (which is {plain} here: its dial stood at the MSE end in {arm.at_mse} of {n} splits)"
