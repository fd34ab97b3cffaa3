from rlploss.paper import published

# The paper's own tables, row by row as printed: mean±sd in the order of the printed columns.
TABLE1 = """
california 0.915±0.997 0.101±0.127 0.961±1.151 0.106±0.102 0.575±0.314 0.016±0.012
wine 0.542±0.014 0.194±0.386 0.546±0.015 0.169±0.089 0.532±0.011 0.031±0.015
linear 0.227±0.104 0.111±0.059 0.209±0.086 0.087±0.065 2.6e-6±1.7e-6 5.2e-8±9.2e-8
nonlinear 0.075±0.009 0.008±0.004 0.073±0.006 0.008±0.005 0.033±0.012 0.002±0.001
mnist 0.042±0.001 0.047±0.001 0.052±0.011 0.049±0.001 0.018±0.002 4.7e-3±5.0e-4
cifar10 6.0e-4±1.0e-4 6.1e-4±9.8e-6 1.8e-3±1.0e-4 1.8e-3±7.1e-6 2.7e-5±1.0e-6 2.7e-5±1.0e-6
"""

TABLE2 = """
california 4.09±3.00 4.42±3.44 3.04±1.87
wine 1.16±0.26 1.31±0.47 1.15±0.14
linear 0.86±0.19 0.84±0.20 5.0e-4±7.0e-4
nonlinear 0.13±0.02 0.13±0.03 0.09±0.03
mnist 0.23±0.01 0.23±0.01 0.05±0.01
cifar10 0.25±0.01 0.25±0.01 5.6e-4±1.2e-5
"""

# Dataset, experiment, optimiser, learning rate, weight decay of +L2, ψ.
HYPERPARAMETERS = """
california full Adam 0.0001 0.0001 0.25
california small AdamW 0.0005 0.01 0.25
california shift Adam 0.0001 0.0001 0.25
california noise Adam 0.0001 0.0001 0.25
california mae Adam 0.0005 – –
california time Adam 1.0e-6 – –
wine full Adam 0.0001 0.0001 0.25
wine small AdamW 0.005 0.01 0.25
wine shift Adam 0.0001 0.0001 0.25
wine noise Adam 0.0001 0.0001 0.25
wine mae Adam 0.0005 – –
wine time Adam 1.0e-6 – –
linear full Adam 0.0001 0.0001 –
linear small AdamW 0.0005 0.01 –
nonlinear full Adam 0.0001 0.0001 0.25
nonlinear small AdamW 0.0005 0.01 0.25
nonlinear shift Adam 0.0001 0.0001 0.25
nonlinear noise Adam 0.0001 0.0001 0.25
nonlinear mae Adam 0.0005 – –
nonlinear time Adam 1.0e-6 – –
mnist full SGD 0.01 0.0001 –
mnist small SGD 0.01 0.0001 –
cifar10 full SGD 0.01 0.0001 –
cifar10 small SGD 0.01 0.0001 –
moons full Adam 0.001 – 0.2
moons small Adam 0.001 – 0.4
mnist_classes full AdamW 0.002 – 0.2
mnist_classes small AdamW 0.002 – 0.2
"""


def parsed(table):
    for line in table.strip().splitlines():
        name, *cells = line.split()
        yield name, [published.PublishedValue(*map(float, cell.split("±"))) for cell in cells]


def test_tables_are_those_of_the_paper():
    for name, cells in parsed(TABLE1):
        columns = [
            (trained, measured)
            for trained in ("mse", "mse_l2", "rlp")
            for measured in ("mse", "rlp")
        ]
        assert [published.value("table1", name, *column) for column in columns] == cells
    for name, cells in parsed(TABLE2):
        assert [
            published.value("table2", name, trained, "mse") for trained in ("mse", "mse_l2", "rlp")
        ] == cells
    assert (
        set(published.DATASETS)
        == {name for name, _ in parsed(TABLE1)}
        == {name for name, _ in parsed(TABLE2)}
    )
    assert published.value("table1", "moons", "rlp", "mse") is None
    assert published.value("table2", "linear", "mae", "mse") is None


def test_hyperparameters_are_those_of_the_paper():
    rows = [line.split() for line in HYPERPARAMETERS.strip().splitlines()]
    assert [row[:2] for row in rows] == [list(key) for key in published.HYPER]
    for dataset, experiment, optimizer, lr, *rest in rows:
        found = published.HYPER[dataset, experiment]
        assert found.optimizer.split("_")[0] == optimizer.lower()
        assert [found.weight_decay, found.psi] == [
            None if text == "–" else float(text) for text in rest
        ]
        assert found.lr == float(lr)
    assert published.PROTOCOL["adamw_weight_decay"] == 0.0001
    assert published.PROTOCOL["time"]["n_subsets"] == 2000


def test_claims_have_distinct_names():
    names = [claim.id for claim in published.CLAIMS]
    assert len(names) == len(set(names)) == 33
