"""How often the rules of `reproduce` say which word, in made-up worlds where the truth is known.

    python -m benchmarks.verdict_worlds [--runs 1000]

A claim makes 12 or 54 comparisons (Table 1, a sweep), each from 3, 5 or 30 seeds. Errors are
log-normal over seeds; what is left between two arms of a seed has a standard deviation of 10 %, or,
with heavy tails, is t with 2 degrees of freedom and that scale. Where one seed is wild, RLP's error
of the last seed is a thousand times as large. Writes benchmarks/results/verdict_worlds.md and
.csv."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import numpy as np

from benchmarks.common import Row
from benchmarks.studies import write_results
from rlploss.lab import stats
from rlploss.paper import claims as verdicts

# by what factor RLP's error is that of the baseline, in the first and second half of the
# comparisons
WORLDS = {
    "10 times better everywhere": (0.1, 0.1),
    "20 % better everywhere": (0.8, 0.8),
    "1 % better everywhere": (0.99, 0.99),
    "better nowhere: equal": (1.0, 1.0),
    "20 % better in half, equal in half": (0.8, 1.0),
    "20 % better in half, worse in half": (0.8, 1.25),
}
TRUE = {"10 times better everywhere", "20 % better everywhere", "1 % better everywhere"}
LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_t(2, size=shape),
    "one wild seed": lambda rng, shape: np.concatenate(
        [rng.normal(size=(shape[0], shape[1] - 1)), np.full((shape[0], 1), 70.0)], axis=1
    ),
}
SEEDS, SIZES = (3, 5, 30), (12, 54)
RULES = ("claim", "claim at equal steps", "same as published", "spread")
WORDS = (verdicts.REPRODUCED, verdicts.UNDECIDED, verdicts.NOT_REPRODUCED)


def claim(
    world: str, law: str, n: int, size: int, rng: np.random.Generator
) -> list[verdicts.Placed]:
    """The comparisons of one claim in a world."""
    first, second = WORLDS[world]
    theirs = np.exp(rng.normal(size=(size, n)))
    factors = np.where(np.arange(size) < size // 2, first, second)[:, None]
    ours = theirs * factors * np.exp(0.1 * LAWS[law](rng, (size, n)))
    return [verdicts.Placed(str(k), stats.compare(ours[k], theirs[k])) for k in range(size)]


def words(world: str, law: str, n: int, size: int, runs: int, seed: int = 0) -> Counter[str]:
    """How often each word is said."""
    rng = np.random.default_rng([seed, n, size])
    return Counter(
        verdicts.judge(verdicts.state(claim(world, law, n, size, rng)), None) for _ in range(runs)
    )


def steps_words(world: str, law: str, n: int, size: int, runs: int) -> Counter[str]:
    """The same for a claim that holds at equal epochs (10 times better) and has this world at equal
    steps."""
    rng = np.random.default_rng([1, n, size])
    found: Counter[str] = Counter()
    for _ in range(runs):
        epochs = claim("10 times better everywhere", law, n, size, rng)
        steps = claim(world, law, n, size, rng)
        found[verdicts.judge(verdicts.state(epochs), verdicts.state(steps))] += 1
    return found


def published_words(shift: float, law: str, n: int, runs: int) -> Counter[str]:
    """Agreement with a published mean ± sd of 30 seeds from a world that is `shift` scales of the
    law away."""
    rng = np.random.default_rng([2, n])
    found: Counter[str] = Counter()
    for _ in range(runs):
        ours, theirs = LAWS[law](rng, (1, n))[0] + shift, LAWS[law](rng, (1, 30))[0]
        found[
            stats.against_published(ours, float(theirs.mean()), float(theirs.std(ddof=1)))[0]
        ] += 1
    return found


def spread_words(factor: float, law: str, n: int, runs: int) -> Counter[str]:
    """Standard deviations compared, ours `factor` times theirs."""
    rng = np.random.default_rng([3, n])
    pairs = ((factor * a, b) for a, b in (LAWS[law](rng, (2, n)) for _ in range(runs)))
    return Counter(stats.spread(a, b).word for a, b in pairs)


def rows(runs: int) -> list[Row]:
    """One row for each world, law, number of seeds and comparisons; shares in percent."""
    made: list[Row] = []

    def add(
        rule: str, world: str, law: str, n: int, size: int, found: Counter[str], wrong: str
    ) -> None:
        shares = {word: f"{100 * count / runs:.1f}" for word, count in found.most_common()}
        told = ", ".join(f"{word} {share}" for word, share in shares.items())
        bad = f"{100 * found[wrong] / runs:.1f}" if wrong else "–"
        made.append(
            {
                "rule": rule,
                "truth": world,
                "law": law,
                "seeds": n,
                "comparisons": size,
                "words, %": told,
                "wrong, %": bad,
            }
        )

    for law in LAWS:
        for n in SEEDS:
            for size in SIZES:
                for world in WORLDS:
                    wrong = (
                        verdicts.NOT_REPRODUCED
                        if world in TRUE - {"1 % better everywhere"}
                        else verdicts.REPRODUCED
                    )
                    wrong = "" if world == "1 % better everywhere" else wrong
                    add("claim", world, law, n, size, words(world, law, n, size, runs), wrong)
            for world in ("20 % better everywhere", "better nowhere: equal"):
                wrong = verdicts.GONE if world in TRUE else verdicts.REPRODUCED
                add(
                    "claim at equal steps",
                    world,
                    law,
                    n,
                    12,
                    steps_words(world, law, n, 12, runs),
                    wrong,
                )
            for shift, wrong in ((0.0, "different"), (0.5, ""), (2.0, "same")):
                # Heavy tails have no standard deviation to be away by: only equality has a truth
                # there.
                wrong = wrong if law == "normal" or not shift else ""
                add(
                    "same as published",
                    f"{shift:g} scales away",
                    law,
                    n,
                    1,
                    published_words(shift, law, n, runs),
                    wrong,
                )
            for factor, wrong in ((1.0, "better"), (0.3, "worse")):
                found = spread_words(factor, law, n, runs // 5)
                shares = Counter({word: 5 * count for word, count in found.items()})
                add("spread", f"sd ratio {factor:g}", law, n, 1, shares, wrong)
    return made


def main() -> None:
    """Simulate all worlds and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    found = rows(runs)
    rates = {
        rule: max(float(r["wrong, %"]) for r in found if r["rule"] == rule and r["wrong, %"] != "–")
        for rule in RULES
    }
    worst = ", ".join(f"{rule} {rate:.1f} %" for rule, rate in rates.items())
    write_results(
        "verdict_worlds",
        "Verdicts in made-up worlds",
        LEAD.format(runs=runs, worst=worst),
        found,
        found,
    )


LEAD = """\
`python -m benchmarks.verdict_worlds` simulates {runs} claims in each world and counts the words
(of a spread, a fifth of that). “Wrong” is the share of the word that contradicts the truth;
undecided is never wrong. A world that is 1 % better is truly better, and no difference worth
the name (5 %): neither word is wrong there. The largest share of a wrong word over all worlds,
by rule: {worst}."""

if __name__ == "__main__":
    main()
