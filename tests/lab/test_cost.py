"""The one formula of what cells cost. Whether its prices are right is asked in
tests/paper/test_studies.py, of what was measured."""

import pytest

from rlploss.lab import cost


def test_the_formula(monkeypatch):
    monkeypatch.setitem(cost.PRICES, "made up", [1.0, 10.0, 100.0, 1000.0])
    seconds = cost.expected_seconds("made up", 2, evaluations=3, steps=5, rows=7)
    assert seconds == pytest.approx(0.05 + 2 * (1 + 3 * 10 + 5 * (100 + 7 * 1000)))


def test_prices_are_four_numbers_that_are_not_negative():
    for family, prices in cost.PRICES.items():
        assert len(prices) == 4, family
        assert min(prices) >= 0 < max(prices), family
