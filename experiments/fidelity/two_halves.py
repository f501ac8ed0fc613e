"""One batch against its two halves in one graph: `python -m experiments.fidelity.two_halves`.

On two nodes of one rank each, a tensor-parallel MLP (weights cut by columns, then by rows) sums up the
result of each pair of layers over the nodes' link. Computed as two halves that share the weights, one
half can compute while the other's sum is on the way. Both graphs are written by hand here and plan
nothing: this is what the engine's actors reach by themselves, of 2 × as many ops of half the size.
For a batch that computes 60 ms and sends 40 ms the most that can be gained is 100 / 60 = 1.67 times. On
2 cores that other processes shared the halves were 1.09 to 1.17 times as fast forward at 500 Mbit/s,
and 1.10 to 1.12 times in training.

Both graphs are timed by turns in the same processes, so that a slow phase of the machine hits both.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.errors import AutoDDLError
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed
from experiments.lib import cli, frames
from experiments.lib.frames import Row

PAIRS, WIDTH, HIDDEN, BATCH = 4, 512, 2048, 512
STEPS, WARM_UP = 12, 3
REPETITIONS = 3
_RANKS_LIMIT_S = 120.0
WHAT = ("forward", "training")
COLUMNS: frames.Formats = {
    "rate": "{}", "what": "{}", "repetition": "{}", "batch_ms": "{:.1f}", "halves_ms": "{:.1f}",
    "gain": "{:.2f}×",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--what", WHAT)
@click.option("--rates", default="500mbit", show_default=True, help="of the link, with commas")
@click.option(
    "--repetitions", default=REPETITIONS, show_default=True, help="processes of their own"
)
@cli.folder("out/two_halves")
def command(what: tuple[str, ...], rates: str, repetitions: int, folder: Path) -> None:
    """Time both graphs; print and write a row for each repetition."""
    rows = []
    for rate in rates.split(","):
        with measure.running(Bed(f"2x1-{rate}", 2, 1, rate)) as (run, _):
            for name in what:
                for number in range(repetitions):
                    found = _timed(run, name)
                    rows.append({"rate": rate, "what": name, "repetition": number, **found})
    frame = pd.DataFrame(rows)
    print(frames.text(frame, COLUMNS))
    frames.save(frame, folder, "two_halves")


def _timed(run: measure.Run, what: str) -> Row:
    """Return the milliseconds of both graphs, timed by ranks of their own."""
    with tempfile.TemporaryDirectory(prefix="autoddl-") as place:
        result = Path(place) / "found.json"
        error = run("experiments.fidelity.two_halves", ["ranks", what, str(result)], _RANKS_LIMIT_S)
        if error:
            raise AutoDDLError(error)
        batch_s, halves_s = json.loads(result.read_text())
    return {"batch_ms": batch_s * 1e3, "halves_ms": halves_s * 1e3, "gain": batch_s / halves_s}


def _ranks(what: str, file: Path) -> None:
    """Time both graphs by turns; rank 0 writes the medians of the slowest rank's seconds."""
    import oneflow as flow

    mesh = flow.placement("cpu", [0, 1])
    whole = flow.sbp.broadcast
    flow.manual_seed(0)
    graphs = [_graph(flow, mesh, halves, what) for halves in (1, 2)]
    x = flow.randn(BATCH, WIDTH, placement=mesh, sbp=whole)
    samples: list[list[float]] = [[], []]
    results = []
    for _ in range(WARM_UP + STEPS):
        for graph, seconds in zip(graphs, samples, strict=True):
            flow.comm.barrier()
            start = time.perf_counter()
            results.append(float(graph(x).numpy()))
            flow._oneflow_internal.eager.Sync()
            flow.comm.barrier()
            seconds.append(time.perf_counter() - start)
    if abs(results[0] - results[1]) > 1e-4 * abs(results[0]):
        raise AutoDDLError(f"two halves: the losses of the first step differ, {results[:2]}")
    if flow.env.get_rank() == 0:
        file.write_text(json.dumps([statistics.median(s[WARM_UP:]) for s in samples]))


def _graph(flow: Any, mesh: Any, halves: int, what: str) -> Any:
    """Return a graph of the loss, with weights of its own.

    Those of the first layer of a pair are cut by what it makes, of the second by what it sums over.
    """
    whole = flow.sbp.broadcast

    def linear(narrow: int, wide: int, cut: int) -> Any:
        layer = flow.nn.Linear(narrow, wide, bias=False)
        weight = flow.arange(narrow * wide, dtype=flow.float32).sin().reshape(wide, narrow)
        weight = (weight * narrow**-0.5).to_global(placement=mesh, sbp=whole)
        layer.weight = flow.nn.Parameter(weight.to_global(sbp=flow.sbp.split(cut)))
        return layer

    layers = flow.nn.ModuleList([
        flow.nn.ModuleList([linear(WIDTH, HIDDEN, 0), linear(HIDDEN, WIDTH, 1)])
        for _ in range(PAIRS)
    ])  # fmt: skip

    class Loss(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers
            if what == "training":
                self.add_optimizer(flow.optim.SGD(layers.parameters(), lr=1e-4))

        def build(self, x: Any) -> Any:
            parts = x.chunk(halves, dim=0)
            losses = []
            for part in parts:
                for first, second in self.layers:
                    part = second(flow.gelu(first(part))).to_global(sbp=whole)
                losses.append(part.square().mean())
            loss = sum(losses[1:], losses[0]) / halves
            if what == "training":
                loss.backward()
            return loss

    return Loss()


if __name__ == "__main__":
    if sys.argv[1:2] == ["ranks"]:
        _ranks(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(cli.run(command, "fidelity.two_halves"))
