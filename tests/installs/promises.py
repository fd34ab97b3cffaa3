"""What each extra promises, tried in the environment it was installed in: `python promises.py
kernel sklearn`.

This file is copied there, so it imports nothing of the tests. It runs in an empty directory, which
it fills."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import torch

from rlploss import RLP, Adam, RegressionNet, RLPLoss, Steps, fit, seeded

X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
y = X.sum(1)
TINY = ("--splits", "2", "--steps", "20", "--arms", "mse,rlp,mean", "--workers", "inline")
SMOKE = ("reproduce", "table1", "--scale", "smoke", "--datasets", "linear")

IMPORTS = """
from time import process_time as now
start = now()
import torch
torch_is_there = now()
import rlploss
rlploss.fit  # every public name comes with the first
print((now() - start) / (torch_is_there - start))
"""


def absent(*modules):
    """Nothing was installed that nobody asked for."""
    there = [module for module in modules if importlib.util.find_spec(module)]
    assert not there, f"installed without need: {there}"


def command(*words, code=0):
    """What the command `rlploss` says."""
    done = subprocess.run(
        [Path(sys.executable).with_name("rlploss"), *words], capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def learns(engine, **settings):
    """A network learns the sum of three columns."""
    net = seeded(lambda: RegressionNet(3), 0)
    history = fit(
        net,
        X,
        y,
        RLP(subset_size=50),
        budget=Steps(300),
        optimizer=Adam(1e-2),
        validation=(X, y),
        engine=engine,
        **settings,
    )
    assert history.last("mse") < 0.1 * history["mse"][0], history
    assert history.settings["engine"] == engine


def core():
    absent("numba", "scipy", "sklearn", "pandas", "typer", "dask", "mlflow")
    RLPLoss(subset_size=50)(RegressionNet(3)(X), y[:, None], X).backward()
    learns("torch")
    assert "pip install 'rlploss[lab]'" in command("--help", code=1), (
        "the command says what it needs"
    )
    ratio = min(float(subprocess.check_output([sys.executable, "-c", IMPORTS])) for _ in range(5))
    assert ratio < 1.1, f"rlploss with all its names takes {ratio:.2f} times the import of torch"
    print(f"import {ratio:.2f} × torch")


def numba_alone():
    absent("scipy", "sklearn", "pandas", "typer", "dask", "mlflow")


def kernel():
    learns("kernel")


def sklearn():
    from rlploss.estimators import RLPClassifier, RLPRegressor

    for model, target in ((RLPRegressor(), y.numpy()), (RLPClassifier(), y.numpy() > 0)):
        score = model.set_params(random_state=0).fit(X.numpy(), target).score(X.numpy(), target)
        assert score > 0.8, (model, score)


def lab():
    import pandas

    assert "compare" in command("--help")
    frame = pandas.DataFrame(X[:60].numpy(), columns=list("abc")).assign(price=y[:60].numpy())
    frame.to_csv("houses.csv", index=False)
    frame.to_parquet("houses.parquet")
    for table in ("houses.csv", "houses.parquet"):
        out = Path(table).suffix[1:]
        assert "Use " in command("compare", table, "--target", "price", "--out", out, *TINY)
        command("predict", out, table)
        assert Path(out, "report.html").exists()
    command(*SMOKE, "--out", "paper", "--workers", "inline")
    assert Path("paper", "report.html").exists()


def cluster():
    import distributed

    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as here,
        distributed.Client(here) as client,
    ):
        assert client.submit(sum, [1, 2]).result() == 3
        if importlib.util.find_spec("typer"):  # the command is there too
            command(*SMOKE, "--out", "far", "--workers", f"dask:{here.scheduler_address}")
            assert Path("far", "report.html").exists()


if __name__ == "__main__":
    for promise in sys.argv[1:]:
        globals()[promise]()
