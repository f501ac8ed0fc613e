"""Matrix products per second on all ranks of a testbed at once, held against their quotas.

Quotas hold only while a machine is idle: with other jobs beside it a rank of 0.4 of a core is as fast as
one of 0.8. What is measured then tells nothing of unlike devices, and is refused.

`python -m experiments.hap.measured.node_rates BEGIN_S SECONDS` is what each rank runs: products from a
time of the clock on, so that all compute at once, whenever they were started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from autoddl.errors import AutoDDLError
from experiments.lib import ranks
from experiments.testbed import Testbed

SIZE = 192  # three matrices of 144 KiB: in the cache of every core
START_S, SECONDS = 6.0, 3.0  # imports take a second of a core
TOLERANCE = 0.15
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def measured(made: Testbed, seconds: float = SECONDS) -> list[float]:
    """Return the products per second of each node, the mean of its ranks.

    Raises:
        AutoDDLError: a rank fails.
    """
    begin, started = time.time() + START_S, []
    for rank, core in enumerate(made.cores):
        line = [sys.executable, "-m", __name__, str(begin), str(seconds)]
        place = divmod(rank, made.spec.ranks)
        words = made.of_rank(*place, ["taskset", "-c", str(core), *line])
        started.append(
            subprocess.Popen(
                words,
                env={**os.environ, **ranks.environment(), **ONE_THREAD},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    found: list[list[float]] = [[] for _ in range(made.spec.nodes)]
    for rank, process in enumerate(started):
        text, _ = process.communicate(timeout=START_S + seconds + 60)
        if process.returncode:
            raise AutoDDLError(f"rates: rank {rank} ended with {process.returncode}; see above")
        found[rank // made.spec.ranks].append(float(text))
    return [float(np.mean(each)) for each in found]


def check(name: str, quotas: Sequence[float], rates: Sequence[float], tolerance: float) -> None:
    """Raise AutoDDLError where a node's rate, relative to the first one's, is not what its quota says."""
    for quota, rate in zip(quotas[1:], rates[1:], strict=True):
        wanted, got = quota / quotas[0], rate / rates[0]
        if abs(got / wanted - 1) > tolerance:
            raise AutoDDLError(
                f"{name}: nodes with quotas {quotas[0]:g} and {quota:g} have rates 1 : {got:.3f}, not "
                f"1 : {wanted:.3f}, {abs(got / wanted - 1):.0%} off; allowed are {tolerance:.0%}; quotas "
                "hold on an idle machine only: end other jobs and start again, or allow more with "
                "--tolerance"
            )


def main(begin_s: float, seconds: float) -> None:
    """Print how many products per second this process makes from a time of the clock on."""
    matrix = np.full((SIZE, SIZE), 0.5, dtype=np.float32)
    matrix @ matrix
    time.sleep(max(0.0, begin_s - time.time()))
    count, begin = 0, time.perf_counter()
    while (taken := time.perf_counter() - begin) < seconds:
        matrix @ matrix
        count += 1
    print(count / taken)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
