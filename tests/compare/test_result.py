"""Results in numbers and in words: paired tests, who is best, and three lines that agree."""

import itertools
import math
import re

import numpy as np
import pytest
from scipy import stats as scipy_stats
from tests.seeds import SEED

from rlploss.compare.metrics import METRICS, choose_metric, measure, metric_of
from rlploss.compare.read import TableError
from rlploss.compare.result import (
    Answer,
    ArmResult,
    Reached,
    Results,
    answer,
    levels,
    paired,
    reverse,
)
from rlploss.compare.words import FIRST, SURE, VERDICTS, by, gap, lines, standing, verdict
from rlploss.lab import stats

RMSE, ACCURACY = metric_of("regression", "rmse"), metric_of("classification", "accuracy")
LABELS = {
    "mean": ("the mean", "baseline"),
    "ridge": ("ridge regression", "model"),
    "boosting": ("gradient boosting", "model"),
    "mse": ("MSE", "network"),
    "mae": ("MAE", "network"),
    "mse+l2": ("MSE+L2", "network"),
    "rlp": ("RLP", "rlp"),
    "rlp+l2": ("RLP+L2", "rlp"),
    "rlp-cv": ("RLPRegressorCV", "mixture"),
}


def arm(name, n=4, *, at_mse=False, **fields):
    label, role = LABELS.get(name, (name, "network"))
    details = {"subset_size": np.full(n, 0.0 if at_mse else 30.0)} if role == "rlp" else {}
    fields = {"predicted": [np.zeros((2, 1))] * n, "seconds": [0.1] * n, **fields}
    return ArmResult(name, label, role, details=details, **fields)


def answer_of(values, metric=RMSE):
    """The answer to values by arm."""
    reached = {name: Reached(np.asarray(of_splits)) for name, of_splits in values.items()}
    names = dict.fromkeys(name for name in (*LABELS, *values) if name in values)
    return answer([arm(name) for name in names], reached, metric=metric, overlap=1 / 3)


def around(mean, spread=0.002, seed=0):
    return mean * np.exp(spread * np.random.default_rng(seed).normal(size=10))


# The second line


def test_sentences():
    level = {"mse+l2": around(1.0, 0.05, 1), "rlp": around(1.0, 0.05, 2), "boosting": around(0.88)}
    text = standing(answer_of(level))
    assert re.fullmatch(
        r"RLP cannot be told apart from MSE\+L2 \(error [+-][\d.]+ % \[-\d.*, [\d.]+\]\) on this"
        r" table; "
        r"gradient boosting is better by 1\d % \[[\d.]+, [\d.]+\]\.",
        text,
    ), text
    better = {"mse": around(1.0), "rlp": around(0.5, seed=1), "ridge": around(0.9)}
    assert standing(answer_of(better)).startswith(
        "RLP is better than MSE by 50 % [50, 50] on this table; RLP is better than ridge"
    )
    worse = {"mse": around(0.5), "rlp": around(1.0, seed=1), "mean": around(0.9)}
    text = standing(answer_of(worse))
    assert text.startswith("MSE is better than RLP by 50 % [50, 50] on this table")
    assert "it is not shown to be better than predicting the mean" in text


def test_no_difference_is_told_without_rounding():
    none = stats.Contrast(1.1e-17, -0.018, 0.018, 1.0, 10, True, "difference")
    assert gap(none) == "+0 points [-1.8, 1.8]"
    wide = stats.Contrast(-1.1e-17, -math.inf, math.inf, 1.0, 10, True, "difference")
    assert gap(wide) == "+0 points [?, ?]"


def test_errors_without_a_ratio_are_told_in_their_own_unit():
    c = stats.compare(np.array([0.0, 2e-3, 1e-3]), np.array([5.0, 6.0, 5.5]))
    assert by(c) == "5.5 [4.3, 6.7]"
    assert gap(reverse(c)) == "error +5.5 [4.3, 6.7]"


def test_intervals_too_wide_to_be_of_use_are_not_told_in_percent():
    wild = np.exp(np.random.default_rng(0).normal(size=2) * 5)
    text = standing(answer_of({"mse": np.ones(2), "rlp": wild}))
    assert "too wide to be of use" in text
    assert len(text) < 200


def test_the_best_rival_is_taken():
    means = {"mse": 1.1, "mae": 1.0, "rlp": 1.0, "ridge": 3.0, "boosting": 2}
    a = answer_of({name: around(mean) for name, mean in means.items()})
    assert [rival.name for rival in a.rivals] == ["mae", "boosting"]
    assert a.best.name in ("mae", "rlp")


def test_without_rlp_the_first_arm_is_compared():
    a = answer_of({"mse": around(1.0), "mae": around(2.0)})
    assert a.ours.name == "mse"
    assert standing(a).startswith("MSE is better than MAE by 50 %")


def test_names_of_others_are_not_changed():
    a = answer_of({"mean": around(1.0), "log_cosh": around(0.5)})
    assert standing(a).startswith("log_cosh is better than the mean by 50 %")


# Paired tests


def error(c):
    """The standard error behind an interval."""
    half = np.log(c.high / c.effect) if c.scale == "ratio" else c.high - c.effect
    return half / scipy_stats.t.ppf(0.975, c.n - 1)


def classes(right, n=142):
    return Reached(np.array([r.mean() for r in right]), [1.0 - r for r in right])


def test_one_row_of_142_is_no_certainty():
    """Three splits that each differ by one test row: p was 4e-28 and the interval a point."""
    theirs = [np.ones(142) for _ in range(3)]
    ours = [np.r_[0.0, np.ones(141)] for _ in range(3)]
    how = {"metric": ACCURACY, "overlap": 1 / 3, "n_rows": 569}
    c = paired(classes(ours), classes(theirs), **how)
    assert c.p > 0.2
    assert c.low < -1 / 142 < c.high
    assert c.high - c.low >= 2 / 142
    same = paired(classes(theirs), classes(theirs), **how)
    assert same.high - same.low >= 2 / 142
    assert not same.significant


@pytest.mark.parametrize("name", ["rmse", "mae"])
def test_the_floor_is_that_of_the_rows(name):
    """Splits that agree by chance do not make the rows tell more: the error is that of a mean over
    different rows."""
    rng, metric = np.random.default_rng(SEED), metric_of("regression", name)
    unit = 0.5 if name == "rmse" else 1.0
    a, b = (rng.chisquare(1, size=(4, 50)) for _ in range(2))
    a, b = a / a.mean(1, keepdims=True) * 0.81, b / b.mean(1, keepdims=True)
    ours, theirs = (
        Reached(np.array([metric.value(x) for x in rows]), list(rows)) for rows in (a, b)
    )
    c = paired(ours, theirs, metric=metric, overlap=1 / 3, n_rows=200)
    gaps = (a / a.mean(1, keepdims=True) - b / b.mean(1, keepdims=True)) * unit
    assert error(c) >= gaps.std() / np.sqrt(200) * 0.99
    assert c.effect == pytest.approx(0.81**unit)
    far = paired(
        Reached(np.array([1.0, 2, 3]), list(a)),
        Reached(np.array([2.0, 2, 2]), list(b)),
        metric=metric,
        overlap=1 / 3,
        n_rows=200,
    )
    logs = np.log([0.5, 1, 1.5])
    assert error(far) == pytest.approx(
        logs.std(ddof=1) * np.sqrt(1 / 3 + 1 / 3)
    )  # Nadeau and Bengio's stays


def test_rows_that_are_tested_again_are_no_new_rows():
    """Forty rows in ten splits tell as much as forty: the error is √(share / rows), not √(share /
    tests)."""
    rng, n_rows, n_splits = np.random.default_rng(SEED), 40, 10
    ours, theirs = (rng.random((n_splits, n_rows)) < 0.5 for _ in range(2))
    ours[:, :20] = theirs[:, :20]
    ours = np.array([rng.permutation(row) for row in ours])
    share = np.mean((ours != theirs) ** 2.0)
    how = {"metric": ACCURACY, "overlap": 0.0}
    once = paired(classes(ours * 1.0), classes(theirs * 1.0), n_rows=n_rows, **how)
    assert error(once) >= math.sqrt(share / n_rows)
    many = paired(classes(ours * 1.0), classes(theirs * 1.0), n_rows=n_rows * n_splits, **how)
    assert error(many) < math.sqrt(share / n_rows)


def test_false_alarms_are_rare():
    """Two equal classifiers on the same rows: at most about one in twenty is called different."""
    rng, alarms = np.random.default_rng(SEED), 0
    for _ in range(300):
        truth = rng.random((2, 400)) < 0.9
        picks = [rng.permutation(400)[:100] for _ in range(5)]
        ours, theirs = (classes([side[p].astype(float) for p in picks]) for side in truth)
        c = paired(ours, theirs, metric=ACCURACY, overlap=1 / 3, n_rows=400)
        alarms += c.p < 0.05
    assert alarms <= scipy_stats.binom.ppf(0.9999, 300, 0.05)


def test_ties_in_accuracy_go_to_the_lower_log_loss():
    names = ("ridge", "rlp", "mse")
    right = classes([np.r_[np.zeros(3), np.ones(97)]] * 3)
    for best in names:
        ties = {
            name: Reached(right.values, right.rows, 0.1 if name == best else 0.5) for name in names
        }
        a = answer([arm(name) for name in names], ties, metric=ACCURACY, overlap=1 / 3)
        assert a.best.name == best


def test_corrected_intervals_agree_with_corrected_p_values():
    rng = np.random.default_rng(SEED)
    for metric in (RMSE, ACCURACY):
        none = 1.0 if metric is RMSE else 0.0
        for _ in range(40):
            drawn = np.exp(rng.normal(0.0, 0.1, size=(4, 8)) + 0.08 * rng.normal(size=(4, 1)))
            ours, *others = (Reached(values) for values in drawn)
            tests = [paired(ours, other, metric=metric, overlap=1 / 3) for other in others]
            for c, d in zip(tests, stats.holm(tests), strict=True):
                low, high = d.corrected_interval
                assert (low < none < high) == (d.p_holm >= 0.05) or d.p_holm == 1
                assert c.corrected_interval == (c.low, c.high)
                assert low <= c.low
                assert high >= c.high
                back = reverse(d)
                ratio = metric is RMSE
                assert back.effect == pytest.approx(1 / c.effect if ratio else -c.effect)
                assert back.corrected_interval == pytest.approx(
                    (1 / high, 1 / low) if ratio else (-high, -low)
                )
                assert back.better is not d.better


def test_arms_are_ranked_on_the_splits_they_share():
    """The first splits are easy: an arm that was ended there has the lower mean, and is behind all
    the same."""
    easy, hard = np.full(3, 1.0), np.full(7, 10.0)
    values = {
        "mse": 1.3 * easy,
        "mae": np.concatenate([easy, hard]),
        "rlp": 1.1 * np.concatenate([easy, hard]),
    }
    level = levels({n: Reached(v) for n, v in values.items()}, lower_is_better=True)
    assert level["mae"] == pytest.approx(7.3)
    assert level["mse"] == pytest.approx(1.3 * 7.3)
    a = answer_of(values)
    assert (a.best.name, a.second.name) == ("mae", "rlp")
    right = {name: Reached(1 - v / 100) for name, v in values.items()}
    assert levels(right, lower_is_better=False)["mse"] == pytest.approx(1 - 0.073 - 0.003)


# Three lines that agree

C = stats.Contrast
TESTS = {  # of RLP against the best network without it
    "better": C(0.8, 0.7, 0.9, 0.001, 4, True, "ratio", 0.001),
    "worse": C(1.2, 1.1, 1.3, 0.001, 4, False, "ratio", 0.001),
    "level": C(1.0, 0.99, 1.01, 0.9, 4, True, "ratio", 0.9),
    "undecided": C(1.0, 0.5, 2.0, 0.9, 4, True, "ratio", 0.9),
}
RLP_ARMS = ("rlp", "rlp+l2", "rlp-cv")


def three_lines(best, test, *, at_mse=False, use="best", ours_is_useless=False):
    """The verdict, and the lines of results whose answer is made up."""
    there = {name: arm(name, at_mse=at_mse) for name in ("mean", "ridge", "mse+l2", *RLP_ARMS)}
    truth = [np.arange(1.0, 3.0)] * 4
    results = Results("regression", RMSE, tuple(there.values()), truth, [6] * 4, 8)
    second = there["mean" if use != "best" else "rlp" if best == "mse+l2" else "mse+l2"]
    lead = TESTS[test] if best == "rlp" else TESTS["undecided"]
    if second.name == "rlp":
        lead = reverse(TESTS[test])
    results.__dict__["answer"] = Answer(
        ours=there["rlp"],
        against=dict.fromkeys(there, TESTS[test]),
        rivals=(there["mse+l2"], there["ridge"]),
        best=there[best],
        leader=there[best],
        second=second,
        lead=lead,
        use=use,
        ours_is_useless=ours_is_useless,
        baseline=there["mean"],
    )
    use_line, second_line, sure = lines(results)
    word = verdict(results.answer)
    assert second_line.startswith(f"{word}: ")
    return use_line, word, sure


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("best", [*RLP_ARMS, "mse+l2", "ridge"])
def test_the_three_lines_agree(best, test):
    """Whatever wins, and whatever RLP adds: no line denies another, and all name the same arm."""
    label = LABELS[best][0]
    use, word, sure = three_lines(best, test)
    rlp_wins = best in RLP_ARMS
    assert use.startswith(f"Use {label}: ")
    assert label in sure
    assert (word == "RLP helps") == (rlp_wins and test == "better")
    if rlp_wins:
        assert word not in ("RLP does not help", "RLP adds nothing")
    assert ("either will do" in word) == (best in ("rlp", "rlp+l2") and test == "level")
    assert ("undecided" in word) == (test == "undecided")
    if best in ("rlp", "mse+l2"):  # the third line is of the same two arms as the second
        assert sure.startswith("Sure: ") == (
            (best, test) in (("rlp", "better"), ("mse+l2", "worse"))
        )
    # RLP with its dial at the MSE end is MSE, in the same words everywhere: nothing is credited to
    # RLP
    use, word, sure = three_lines(best, test, at_mse=True)
    assert label in sure
    if best in ("rlp", "rlp+l2"):
        plain = label.replace("RLP", "MSE")
        assert use.startswith(f"Use {label} (which is {plain} here: its dial stood at the MSE end")
        assert word != "RLP helps"
        assert "either will do" not in word
    # and where nothing is of use, neither is RLP
    for shown in ("none", "few"):
        use, word, sure = three_lines(best, test, use=shown)
        assert use.startswith("Use none of them: " if shown == "none" else f"Use {label} for now: ")
        assert word != "RLP helps"
        assert "either will do" not in word
        assert sure.startswith("Not sure that any is of use: ")
        assert label in sure
    assert three_lines(best, test, ours_is_useless=True)[1] != "RLP helps"


def test_every_case_of_the_tables_has_a_sentence():
    words = ("better", "worse", "level", "undecided")
    assert tuple(VERDICTS) == words
    assert set(SURE) == set(words)
    assert set(FIRST) == {"best", "few", "none"}
    leads = {"rlp", "rlp variant", "mixture", "mse", "other", "nothing"}
    assert all(set(row) == leads for row in VERDICTS.values())
    for word, lead in itertools.product(words, ("mse", "other", "nothing")):
        assert VERDICTS[word][lead] != "RLP helps"


def test_the_lead_is_the_test_that_the_second_line_tells():
    rng = np.random.default_rng(SEED)
    for _ in range(60):
        drawn = np.exp(rng.normal(0.0, 0.05, size=(4, 8)) + 0.05 * rng.normal(size=(4, 1)))
        a = answer_of(dict(zip(("mse", "mse+l2", "rlp", "ridge"), drawn, strict=True)))
        names = {a.best.name, a.second.name}
        if "rlp" in names:
            (other,) = names - {"rlp"}
            assert a.lead.significant == a.against[other].significant
            assert (a.lead.better is a.against[other].better) == (a.best.name == "rlp")


# Better than nothing


def test_too_few_splits_are_no_reason_to_use_none():
    rng = np.random.default_rng(SEED)
    noise = rng.normal(size=10)
    ridge = np.array([0.5, 0.9, 1.1, 0.4])
    for n, shown in ((2, "few"), (4, "few"), (5, "none")):
        values = {"mean": np.ones(n), "ridge": np.tile(ridge, 3)[:n]}
        assert answer_of(values).use == shown, n
    nothing = {"mean": np.ones(10), "ridge": 1 + 0.2 * (noise - noise.mean())}
    assert answer_of(nothing).use == "none"
    behind = {"mean": np.ones(2), "ridge": np.array([1.2, 1.4])}
    a = answer_of(behind)
    assert (a.use, a.leader.name, a.second.name) == ("none", "ridge", "mean")


def rare(n=100, n_splits=10, share=0.02, signal=1.7):
    """Results on a rare class: the truth, and arms that know nothing or something."""
    rng, truth, guesses, scores = np.random.default_rng(SEED), [], [], []
    for _ in range(n_splits):
        label = (np.arange(n) < max(2, share * n)).astype(int)
        score = signal * label + rng.normal(size=n) - 5
        p = 1 / (1 + np.exp(-score))
        truth.append(label)
        scores.append(np.stack([1 - p, p], axis=1))
        guesses.append(np.full((n, 2), [1 - share, share]))
    seconds = [0.1] * n_splits
    return truth, (
        ArmResult("prior", "the class frequencies", "baseline", guesses, seconds),
        ArmResult("logistic", "logistic regression", "model", scores, seconds),
    )


def test_a_rare_class_is_decided_by_auc_and_does_not_end_in_use_none():
    truth, both = rare(400)
    metric, why = choose_metric("classification", None, truth, ("no", "yes"))
    assert metric.name == "auc"
    assert why == ("AUC decides, because only 2.0 % of the rows are 'yes'; --metric changes that")
    results = Results("classification", metric, both, truth, [1200] * 10, 1600)
    first, _, sure = lines(results, why=why)
    assert re.match(
        r"Use logistic regression: AUC 0\.8\d+, against 0\.500 for the class frequencies \(AUC"
        r" decides, because only",
        first,
    ), first
    assert sure.startswith("Sure: logistic regression is better than the next, the class freq")
    plain = Results("classification", ACCURACY, both, truth, [1200] * 10, 1600)
    assert lines(plain)[0].startswith(
        "Use none of them: no arm is shown to be better than predicting the class frequencies"
        " (accuracy 98.0 %"
    )


def test_the_metric_is_chosen():
    even, three = [np.arange(40) % 2] * 2, [np.arange(60) % 3] * 2
    assert choose_metric("classification", None, even, ("a", "b"))[0] is ACCURACY
    assert choose_metric("classification", None, three, tuple("abc"))[0] is ACCURACY
    assert choose_metric("classification", "log loss", even, ("a", "b"))[0].name == "log_loss"
    assert choose_metric("classification", "balanced accuracy", even, "ab")[0].name == "balanced"
    assert choose_metric("regression", None, [np.arange(4.0)])[0] is RMSE
    assert choose_metric("regression", "r2", [np.arange(4.0)])[0].form == "score"
    with pytest.raises(ValueError, match=r"metric must be one of .*, got 'auc'"):
        choose_metric("regression", "auc", [np.arange(4.0)])
    one_class = [np.r_[1, np.zeros(99, int)], np.zeros(100, int)]
    assert choose_metric("classification", None, one_class, "ab")[0].name == "log_loss"
    with pytest.raises(TableError, match="auc needs two classes among the test rows of every"):
        choose_metric("classification", "auc", one_class, "ab")


def test_every_measure_is_that_of_scikit_learn():
    from sklearn import metrics

    rng = np.random.default_rng(SEED)
    truth, p = rng.integers(3, size=60), rng.dirichlet(np.ones(3), size=60).round(1) + 1e-3
    p /= p.sum(1, keepdims=True)
    areas = [metrics.roc_auc_score(truth == label, p[:, label]) for label in range(3)]
    assert measure("classification", p, truth) == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(truth, p.argmax(1)),
            "balanced": metrics.balanced_accuracy_score(truth, p.argmax(1)),
            "auc": np.mean(areas),
            "log_loss": metrics.log_loss(truth, p),
            "brier": np.sum((p - np.eye(3)[truth]) ** 2) / 60,
        }
    )
    y, guess = rng.normal(size=(2, 50))
    assert measure("regression", guess[:, None], y) == pytest.approx(
        {
            "rmse": metrics.root_mean_squared_error(y, guess),
            "mae": metrics.mean_absolute_error(y, guess),
            "r2": metrics.r2_score(y, guess),
        }
    )


def test_the_losses_of_rows_have_the_variance_of_the_auc():
    """Their standard deviation over √n is the spread of the AUC over fresh rows."""
    rng, areas, errors = np.random.default_rng(SEED), [], []
    for _ in range(400):
        truth = (rng.random(200) < 0.2).astype(int)
        score = truth + rng.normal(size=200)
        losses = metric_of("classification", "auc").losses(np.stack([-score, score], 1), truth)
        areas.append(1 - losses.mean())
        errors.append(losses.std() / np.sqrt(200))
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.1)


@pytest.mark.parametrize(("task", "metric"), [(t, m) for t, ms in METRICS.items() for m in ms])
def test_any_metric_may_decide(task, metric):
    """The better arm wins, whichever metric decides, and the first line names the metric."""
    rng = np.random.default_rng(SEED)
    if task == "regression":
        truth = [rng.normal(size=50) for _ in range(6)]
        near, far = ([(t + s * rng.normal(size=50))[:, None] for t in truth] for s in (0.3, 0.6))
        flat = [np.zeros((50, 1))] * 6
    else:
        truth = [np.arange(50) % 2 for _ in range(6)]

        def scores(t, signal):
            p = 1 / (1 + np.exp(-signal * (2 * t - 1) - rng.normal(size=50)))
            return np.stack([1 - p, p], 1)

        near, far = ([scores(t, signal) for t in truth] for signal in (2.0, 1.0))
        flat = [np.full((50, 2), 0.5)] * 6
    seconds = [0.1] * 6
    arms = (
        ArmResult("mean", "the mean", "baseline", flat, seconds),
        ArmResult("ridge", "ridge regression", "model", far, seconds),
        ArmResult("trees", "extra trees", "model", near, seconds),
    )
    results = Results(task, metric, arms, truth, [150] * 6, 200)
    assert results.answer.best.name == "trees"
    assert results.answer.use == "best"
    assert [a.name for a in results.best_first()] == ["trees", "ridge", "mean"]
    assert lines(results)[0].startswith(f"Use extra trees: {metric.words} ")
    mean, low, high = results.spread("trees")
    assert low <= mean <= high
