"""Equal seconds: the last second that both arms have reached, whoever went on beyond it."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.paper.world import PROVENANCE

from rlploss.lab.study import StoredCell, TrainedNetwork
from rlploss.paper import rules

SEEDS = 8


def arm(last, curve, *, per_second=1.0):
    """Networks that are looked at every second until the `last`; `curve` gives the error then."""
    seconds = np.arange(1.0, last + 1.0)
    networks = []
    for seed in range(SEEDS):
        noise = np.random.default_rng([seed, int(last)]).normal(scale=0.001, size=len(seconds))
        points = {"seconds": seconds, "step": per_second * seconds, "mse": curve(seconds) + noise}
        curves = {name: values.tolist() for name, values in points.items()}
        networks.append(TrainedNetwork(seed, 0, curves, float(last), {}))
    return StoredCell(tuple(networks), PROVENANCE, 1.0)


def judged(ours, theirs, protocol):
    place = rules.Place(
        SimpleNamespace(name="fig-time", stored_arms=lambda *_: {"rlp": ours, "mse": theirs}),
        SimpleNamespace(studies=("fig-time",), pairs=(("rlp", "mse"),)),
        task="wine",
        protocol=protocol,
        metric="mse",
    )
    (placed,) = rules.ahead_in_time(place)
    return placed.comparison


def falls(seconds):
    return 1.0 / seconds


def flat(seconds):
    return np.full_like(seconds, 0.3)


@pytest.mark.parametrize("protocol", ["released", "steps"])
@pytest.mark.parametrize(
    ("ours", "theirs", "better"),
    [
        (arm(9, falls), arm(2, flat), False),  # at 2 s we stand at 0.5; at 9 s we would be ahead
        (arm(2, flat), arm(9, falls), True),
        (arm(9, falls), arm(6, flat), True),
        (arm(6, flat), arm(9, falls), False),
    ],
)
def test_curves_that_cross_are_compared_where_the_shorter_one_ends(ours, theirs, better, protocol):
    found = judged(ours, theirs, protocol)
    assert found.significant
    assert found.better is better
    assert found.word == ("better" if better else "worse")


def test_equal_steps_are_steps_and_not_seconds():
    """Theirs takes ten steps a second: after as many steps as ours it has had a tenth of the
    time."""
    ours, theirs = arm(20, flat), arm(20, falls, per_second=10.0)
    assert judged(ours, theirs, "released").word == "worse"
    assert judged(ours, theirs, "steps").word == "better"
