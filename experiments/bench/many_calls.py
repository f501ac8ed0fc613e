"""How memory grows over calls of `optimize` in one process: `python -m experiments.bench.many_calls`.

A tuner, or a service that plans, calls it thousands of times. The bar: from the hundredth call to the
last the resident memory grows by at most 5 %.
"""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path

import click

from autoddl.api import optimize
from autoddl.engine import engines
from autoddl.engine.limits import ONEFLOW
from autoddl.sbp.program import Program
from experiments.lib import cli
from experiments.models import build

BAR = 0.05
FIRST = 100  # calls, after which caches are full
MESHES = ("4", "2x2", "8", "2x4")


@click.command(help=__doc__)
@click.option("--calls", default=1000, show_default=True)
@click.option(
    "--every", default=100, show_default=True, help="print the memory after so many calls"
)
def command(calls: int, every: int) -> int:
    """Plan a small model again and again, on four meshes in turn."""
    program, memory = _program(), {}
    for number in range(1, calls + 1):
        optimize(program, mesh=MESHES[number % len(MESHES)], budget=1.0, seed=number)
        if number % every == 0 or number == FIRST:
            gc.collect()
            memory[number] = _resident_bytes()
            print(f"{number:6d} calls  {memory[number] / 2**20:8.1f} MiB", flush=True)
    grown = memory[max(memory)] / memory[FIRST] - 1
    print(f"grown by {grown:.1%} since call {FIRST}; the bar is {BAR:.0%}")
    return cli.MISSED if grown > BAR else 0


def _program() -> Program:
    graph, inputs = build("mlp", "toy")
    return engines.load(ONEFLOW).capture(graph, *inputs)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.many_calls"))
