"""Table 1 of the paper in a few minutes: four datasets, ten seeds, equal epochs and equal steps side by side.

Run it with `make demo`. It prints the table with the published numbers beside ours and writes out/demo/report.html;
a second run trains nothing. The same from the command line:

    rlploss reproduce table1 fig-curves fig-planes --datasets california,wine,linear,nonlinear --out out/demo
"""

import sys

from rlploss.cli import run

if __name__ == "__main__":
    names = ["table1", "fig-curves", "fig-planes"]
    datasets = "california,wine,linear,nonlinear"
    sys.exit(run(["reproduce", *names, "--scale", "quick", "--datasets", datasets, "--out", "out/demo"]))
