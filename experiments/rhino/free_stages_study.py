"""Stages on graphs that are no chain (Rhino §5): `python -m experiments.rhino.free_stages_study`.

    proofs  random graphs of up to 9 nodes in up to 3 stages: the program beside brute force over all
            chains of order ideals (300), and the balanced assignments that bounds cut off (600)
    models  UNet, T5, Wide-ResNet and two towers at paper size in 2, 4 and 8 stages: HiGHS's seconds and
            gap, and what free stages gain over the cut of the order of capture, over the best of several
            orders, and when simulated beside the cut that the planner finds
    bytes   the same models by the paper's objective, the fewest bytes of stages that take at most
            (1 + TOLERANCE) · mean each: bytes, and the step beside that of the fastest stages
    towers  two towers of 12 equal layers, captured in turns, with transfers as long as half a layer, one
            and two: what free stages gain over the cut of the order of capture

The states are the fastest of one device (v100-8x) for a micro-batch. The exit code is 1 where the program
misses an optimum, or the derived bounds cut something off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd

from autoddl.engine import engines
from autoddl.errors import InfeasibleError
from autoddl.perfmodel.pipeline.free_stages import HighsLimits, fastest, fewest_bytes
from autoddl.perfmodel.pipeline.stage_graph import SentTensor, StageGraph, contiguous, orders
from autoddl.planner import request
from autoddl.planner.plan_options import Options
from autoddl.planner.stages.cuts import equal_cut
from autoddl.planner.stages.free_cut import in_stages, stage_graph
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.result import SearchOptions
from autoddl.search.solvers.named import SOLVERS
from experiments.lib import cli, frames
from experiments.lib.frames import Row
from experiments.lib.programs import captured
from experiments.rhino.stage_toys import bounds_row, optimum_row

OPTIMA, BOUNDS = 300, 600  # random graphs
EQUAL = 1e-6  # relative
PROFILE, MICRO_BATCHES, STAGES = "v100-8x", 8, (2, 4, 8)
SECONDS, CLOSE = 120.0, 1e-4  # for HiGHS
STATES_S = 10.0  # for the states of a micro-batch
# Size, samples and other sizes of each model; the Wide-ResNet is the first of table 4.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "unet": ("unet", {"samples": 16}),
    "t5": ("t5_base", {"samples": 64}),
    "wide_resnet": ("wide_resnet_250m", {"samples": 64, "channels": 320}),
    "two_towers": ("wide", {}),
}
LAYERS, TRANSFERS = 12, (0.5, 1.0, 2.0)


def proofs() -> list[Row]:
    """Return one row: what the program missed, where it is faster than cuts, and what bounds cut off."""
    optima = pd.DataFrame([optimum_row(seed) for seed in range(OPTIMA)])
    bounds = pd.DataFrame([bounds_row(seed) for seed in range(BOUNDS)])
    found = optima[["tightened_s", "told_s", "plain_s"]]
    missed = (found.sub(optima.best_s, axis=0).abs().gt(EQUAL * optima.best_s, axis=0)).any(axis=1)
    dearer = optima.told_s > optima.contiguous_s * (1 + EQUAL)
    faster = optima.told_s < optima.contiguous_s * (1 - EQUAL)
    return [{
        "graphs": OPTIMA, "missed": int(missed.sum()), "dearer": int(dearer.sum()),
        "faster": int(faster.sum()), "bounded": BOUNDS,
        **{n: int(bounds[n].sum()) for n in ("balanced", "derived", "printed", "repaired")},
    }]  # fmt: skip


class Staging(NamedTuple):
    """The states of a micro-batch of a model on one device, and the graph that stages are chosen from."""

    assigned: Assigned
    links: Links
    graph: StageGraph

    def step_s(self, stage_of: Sequence[int]) -> float:
        """Return the seconds of a simulated step of an assignment of stages."""
        return in_stages(self.assigned, stage_of, MICRO_BATCHES, self.links).timeline.step_s


def staging(name: str, stages: int, folder: Path) -> Staging:
    """Return a model before so many stages, in the fastest states of a micro-batch."""
    size, sizes = MODELS[name]
    program = captured(folder / f"{name}-{size}.json", name, size, **sizes)
    options = Options(cluster=str(stages), profile=PROFILE)
    asked = request.read(program, options, engine=engines.model("oneflow"))
    ways = asked.ways_of(stages, MICRO_BATCHES)
    part = micro_batch(program, MICRO_BATCHES)
    problem = asked.problem(Mesh.parse("1"), part, ways=ways)
    found = SOLVERS["exact"](problem, SearchOptions(budget=STATES_S))
    assigned, links = Assigned(problem, found.assignment), Links(asked.profile, asked.cluster)
    return Staging(assigned, links, stage_graph(assigned, stages, MICRO_BATCHES, links))


def model_row(name: str, stages: int, folder: Path) -> Row:
    """Return what free stages of a model gain, and what it takes to find them."""
    model = staging(name, stages, folder)
    graph = model.graph
    begin = time.perf_counter()
    free = fastest(graph, MICRO_BATCHES, effort=HighsLimits(SECONDS, gap=CLOSE))
    seconds = time.perf_counter() - begin
    assert free is not None and free.contiguous is not None, "nothing limits the memory"
    cut = equal_cut(model.assigned, stages, MICRO_BATCHES, model.links).timeline.step_s
    apart = model.step_s(free.stage_of)
    row: Row = {
        "model": name, "stages": stages, "nodes": len(graph.seconds), "seconds": seconds,
        "gap": free.gap, "step_s": free.value, "over_capture": _captured_s(graph) / free.value - 1,
        "over_orders": free.contiguous / free.value - 1, "cut_s": cut, "free_s": apart,
        "simulated": cut / apart - 1,
    }  # fmt: skip
    print("{model} in {stages} stages: {seconds:.1f} s, gap {gap:.2%}".format(**row), flush=True)
    return row


def bytes_row(name: str, stages: int, folder: Path, tolerance: float) -> Row:
    """Return the fewest bytes of balanced stages, or the least tolerance at which there are some."""
    model, row = staging(name, stages, folder), dict[str, Any](model=name, stages=stages)
    limits, begin = HighsLimits(SECONDS, gap=CLOSE), time.perf_counter()
    try:
        paper = fewest_bytes(model.graph, tolerance, effort=limits)
    except InfeasibleError as error:
        return row | {"told": str(error)}
    seconds = time.perf_counter() - begin
    ours = fastest(model.graph, MICRO_BATCHES, effort=limits)
    assert ours is not None, "nothing limits the memory"
    sent = model.graph.arrivals(ours.stage_of).sum(axis=1) @ model.graph.sent_bytes
    return row | {
        "seconds": seconds, "gap": paper.gap, "mib": paper.value / 2**20, "our_mib": sent / 2**20,
        "paper_s": model.step_s(paper.stage_of), "our_s": model.step_s(ours.stage_of),
    }  # fmt: skip


def _captured_s(graph: StageGraph) -> float:
    """Return the step of the best cut along the order of capture."""
    order = next(orders(graph.edges, len(graph.seconds)))
    cut = contiguous(graph, MICRO_BATCHES, along=[order])
    assert cut is not None, "nothing limits the memory"
    return graph.step_s(cut, MICRO_BATCHES)


def tower_row(stages: int, transfer_s: float) -> Row:
    """Return what free stages gain of two towers of layers of 1 s, which a last node of 1 s joins."""
    count = 2 * LAYERS + 1
    ends = [(n, min(n + 2, count - 1)) for n in range(count - 1)]
    sent = [SentTensor(a, (b,)) for a, b in ends] + [
        SentTensor(b, (a,), back=True) for a, b in ends
    ]
    none = np.zeros(count)
    bytes_of = none.astype(np.int64)
    sent_s = np.full((len(sent), stages), transfer_s)
    sizes = np.ones(len(sent), dtype=np.int64)
    graph = StageGraph(
        np.ones(count), none, none, bytes_of, bytes_of, tuple(sent), sent_s, sizes, count
    )
    free = fastest(graph, MICRO_BATCHES)
    assert free is not None, "nothing limits the memory"
    return {
        "stages": stages, "transfer": transfer_s, "cut_s": _captured_s(graph), "free_s": free.value,
        "gain": _captured_s(graph) / free.value - 1, "orders_s": free.contiguous,
    }  # fmt: skip


def misses(study: str, frame: pd.DataFrame) -> bool:
    """Tell whether rows of a study show what must not be."""
    wrong = {"proofs": ("missed", "dearer", "derived")}
    return any(frame[name].gt(0).any() for name in wrong.get(study, ()))


COLUMNS: dict[str, frames.Formats] = {
    "proofs": dict.fromkeys(
        ("graphs", "missed", "dearer", "faster", "bounded", "balanced", "derived", "printed",
         "repaired"), "{}",
    ),
    "models": {
        "model": "{}", "stages": "{}", "nodes": "{}", "seconds": "{:.1f}", "gap": "{:.2%}",
        "step_s": "{:.4f}", "over_capture": "{:.1%}", "over_orders": "{:.1%}", "cut_s": "{:.4f}",
        "free_s": "{:.4f}", "simulated": "{:.1%}",
    },
    "bytes": {
        "model": "{}", "stages": "{}", "seconds": "{:.1f}", "gap": "{:.2%}", "mib": "{:.1f}",
        "our_mib": "{:.1f}", "paper_s": "{:.4f}", "our_s": "{:.4f}", "told": "{}",
    },
    "towers": {
        "stages": "{}", "transfer": "{:g}", "cut_s": "{:.1f}", "orders_s": "{:.1f}", "free_s": "{:.1f}",
        "gain": "{:.1%}",
    },
}  # fmt: skip


def rows(study: str, folder: Path, tolerance: float = 0.1) -> Iterator[Row]:
    """Yield the rows of a study; programs are kept in the folder.

    Raises:
        AutoDDLError: the tolerance is not above 0.
    """
    if study == "proofs":
        yield from proofs()
    elif study == "towers":
        yield from (tower_row(*point) for point in product((2, 4), TRANSFERS))
    else:
        make = model_row if study == "models" else partial(bytes_row, tolerance=tolerance)
        yield from (make(name, stages, folder) for name, stages in product(MODELS, STAGES))


@click.command(help=__doc__)
@cli.listed("--studies", COLUMNS)
@click.option(
    "--tolerance", type=float, default=0.1, show_default=True, help="of the study of bytes"
)
@cli.folder("out/rhino")
def command(studies: Sequence[str], tolerance: float, folder: Path) -> int:
    """Print and write the tables."""
    missed = False
    for name in studies:
        frame = pd.DataFrame(rows(name, folder, tolerance))
        print(f"\n{name}\n{frames.text(frame, COLUMNS[name])}")
        frames.save(frame, folder, f"free_stages_{name}")
        missed |= misses(name, frame)
    return cli.MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(cli.run(command, "rhino.free_stages_study"))
