import pytest

from rlploss.paper import published


def test_tables_are_complete():
    for dataset in published.DATASETS:
        for trained in ("mse", "mse_l2", "rlp"):
            for measured in ("mse", "rlp"):
                assert published.value("table1", dataset, trained, measured).sd > 0
            assert published.value("table2", dataset, trained, "mse").mean > 0
    assert published.value("table1", "linear", "rlp", "mse") == published.Value(2.6e-6, 1.7e-6)
    assert published.value("table1", "moons", "rlp", "mse") is None
    assert published.value("table2", "linear", "mae", "mse") is None


def test_hyperparameters_of_every_experiment():
    assert published.hyper("wine", "small") == published.Hyper("adamw", 5e-3, 1e-2, 0.25)
    assert len(published.hyper_rows()) == 28
    assert published.protocol("subsets")["time"] == 2000
    with pytest.raises(KeyError):
        published.hyper("wine", "nothing")


def test_claims_have_distinct_names():
    names = [claim.id for claim in published.claims()]
    assert len(names) == len(set(names)) == 29
