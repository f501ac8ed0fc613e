"""Time the algebra against its bars: redistributions, path look-ups, candidates.

`python -m experiments.bench.algebra [--count 100000] [--seed 0]` prints each figure beside its bar. Every
redistribution runs on simulated ranks and is compared with the whole.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from autoddl.engine.limits import ONEFLOW, limits_of
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile, load
from autoddl.perfmodel.redistribution import Redistributor
from autoddl.sbp.canonical import canonical
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_tensors import assemble, run_path, shard
from autoddl.sbp.rules.candidates import nd_signatures
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.shards import check_state
from autoddl.sbp.state import P_MAX, P_MIN, B, NdSbp, P, S, ordered
from experiments.lib import cli, frames
from experiments.lib.programs import captured

MESHES = ("2", "4", "8", "2x2", "2x3", "2x4", "4x2", "2x2x2", "2x1x3")
SIZES = (4, 6, 8, 12, 16, 7)


@click.command(help=__doc__)
@click.option("--count", default=100_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@cli.folder("out/algebra")
def command(count: int, seed: int, folder: Path) -> int:
    """Measure, print and write; return 1 where a redistribution failed."""
    profile = load(None)
    done, steps, failures = random_redistributions(count, seed, profile)
    states, cold_s, warm_s = look_ups(profile)
    ops, found, candidates_s = candidates(folder)
    frame = pd.DataFrame(
        [
            (f"{count:,} random redistributions, {steps:,} steps", done, 300.0),
            (f"paths of all pairs of {states} states (rank 4, three axes), cold", cold_s, 2.0),
            ("warm look-up of a path", warm_s, 2e-6),
            (f"{found:,} candidates of {ops:,} ops on 4x8", candidates_s, 2.0),
        ],
        columns=["what", "seconds", "bar"],
    )
    print(frames.text(frame, {"what": "{}", "seconds": "{:.3g}", "bar": "{:.3g}"}))
    print(f"{len(failures)} failures", *failures[:20], sep="\n")
    frames.save(frame, folder, "algebra", seed=seed, failures=failures)
    return cli.MISSED if failures else 0


def random_redistributions(count: int, seed: int, profile: Profile) -> tuple[float, int, list[str]]:
    """Redistribute random tensors between random states and compare every device's data.

    Returns seconds, the number of steps, and what failed.
    """
    rng = np.random.default_rng(seed)
    meshes = [Mesh.parse(notation) for notation in MESHES]
    prices = [Redistributor(mesh, profile) for mesh in meshes]
    shapes = [tuple(rng.choice(SIZES, rng.integers(1, 4)).tolist()) for _ in range(60)]
    failures: list[str] = []
    steps = 0
    start = time.perf_counter()
    for _ in track(range(count), "redistributions", console=Console(stderr=True)):
        price = prices[int(rng.integers(len(prices)))]
        mesh, shape = price.mesh.shape, shapes[int(rng.integers(len(shapes)))]
        reduction = (P, P, P, P_MAX, P_MIN)[int(rng.integers(5))]
        src, dst = (_random_state(shape, mesh, reduction, rng) for _ in range(2))
        whole = rng.normal(size=shape)
        path = price.path(shape, 4, src, dst)
        locals_ = shard(whole, src, mesh, rng)
        locals_ = run_path(locals_, canonical(src, shape, mesh), path, shape, mesh)
        steps += len(path)
        try:
            right = np.allclose(assemble(locals_, dst, mesh, shape), whole, rtol=1e-9, atol=1e-9)
        except AutoDDLError as error:
            right = False
            failures.append(str(error))
        if not right:
            failures.append(f"{src} to {dst} of {shape} on {price.mesh}: wrong data")
    return time.perf_counter() - start, steps, failures


def _random_state(
    shape: tuple[int, ...], mesh: tuple[int, ...], reduction: Any, rng: np.random.Generator
) -> NdSbp:
    """Draw a possible state: any order of cuts, one in five with strides."""
    while True:
        options = (B, reduction, *(S(d) for d in range(len(shape))))
        entries = [options[int(k)] for k in rng.integers(len(options), size=len(mesh))]
        if rng.random() < 0.2:
            entries = [S(e.dim, int(rng.integers(1, 3))) if e.is_split else e for e in entries]
        order = rng.permutation(len(mesh)).tolist() if rng.random() < 0.3 else range(len(mesh))
        state = ordered(entries, order)
        try:
            check_state(state, shape, mesh)
        except AutoDDLError:
            continue
        return state


def look_ups(profile: Profile) -> tuple[int, float, float]:
    """Time the paths between all state pairs of a rank-4 tensor on a 3-axis mesh.

    Returns the number of states, the seconds of all pairs, and those of one that is known.
    """
    shape = (16, 32, 16, 64)
    start = time.perf_counter()
    prices = Redistributor(Mesh.parse("2x2x2"), profile)
    states = prices.table(shape, 4).states
    for src in states:
        for dst in states:
            prices.path(shape, 4, src, dst)
    cold_s = time.perf_counter() - start
    start = time.perf_counter()
    for src in states:
        for dst in states:
            prices.path(shape, 4, src, dst)
    warm_s = (time.perf_counter() - start) / len(states) ** 2
    return len(states), cold_s, warm_s


def candidates(folder: Path) -> tuple[int, int, float]:
    """Time the candidate signatures of all ops of a captured 24-layer GPT on a 2-axis mesh.

    Returns the number of ops, that of candidates, and the seconds.
    """
    program = captured(folder / "medium.json", "gpt", "medium", optimizer="adam")
    mesh = Mesh.parse("4x8")
    start = time.perf_counter()
    known: dict[Any, int] = {}
    total, refused = 0, limits_of(ONEFLOW).refused
    for op in program.ops:
        shapes = program.shapes(op)
        key = op.type, op.attrs, tuple(shapes.items())
        if key not in known:
            view, masked = OpView.of(op, shapes), refused.get(op.type, frozenset())
            known[key] = len(nd_signatures(view, mesh.shape, refused=masked))
        total += known[key]
    return len(program.ops), total, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.algebra"))
