"""Time the algebra against its bars: redistributions, path look-ups, candidates.

`python -m experiments.bench_algebra [--json FILE] [--count 100000] [--seed 0] [--program FILE]` prints
each figure beside its bar. Every redistribution runs on simulated ranks and is compared with the whole.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from autoddl import abstract_parameters, capture
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile, load
from autoddl.perfmodel.redistribute import Redistributor
from autoddl.sbp.canonical import canonical
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numeric import assemble, run_path, shard
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import nd_signatures
from autoddl.sbp.rules.engines import ONEFLOW
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.shards import check_state
from autoddl.sbp.state import P_MAX, P_MIN, B, NdSbp, P, S, ordered

MESHES = ("2", "4", "8", "2x2", "2x3", "2x4", "4x2", "2x2x2", "2x1x3")
SIZES = (4, 6, 8, 12, 16, 7)


def main() -> int:
    """Measure, print, and return 1 where a redistribution failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    profile = load(None)
    figures: dict[str, Any] = {"seed": args.seed}
    figures |= random_redistributions(args.count, args.seed, profile)
    figures |= look_ups(profile)
    figures |= candidates()
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    _print(figures)
    return 1 if figures["failures"] else 0


def random_redistributions(count: int, seed: int, profile: Profile) -> dict[str, Any]:
    """Redistribute random tensors between random states and compare every device's data."""
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
    return {
        "redistributions": count,
        "failures": failures,
        "steps": steps,
        "redistributions_s": time.perf_counter() - start,
    }


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


def look_ups(profile: Profile) -> dict[str, Any]:
    """Time the paths between all state pairs of a rank-4 tensor on a 3-axis mesh, cold and warm."""
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
    return {"states": len(states), "cold_s": cold_s, "warm_s": warm_s}


def candidates() -> dict[str, Any]:
    """Time the candidate signatures of all ops of a captured 24-layer GPT on a 2-axis mesh."""
    program = _captured()
    mesh = Mesh.parse("4x8")
    start = time.perf_counter()
    known: dict[Any, int] = {}
    total = 0
    for op in program.ops:
        tensors = tuple((operand, program.tensor[name]) for operand, name in op.operands)
        key = op.type, op.attrs, tuple((operand, t.shape, t.dtype) for operand, t in tensors)
        if key not in known:
            view = OpView.of(op, program.shapes(op))
            known[key] = len(nd_signatures(view, mesh.shape, engine=ONEFLOW))
        total += known[key]
    seconds = time.perf_counter() - start
    return {"ops": len(program.ops), "candidates": total, "candidates_s": seconds}


def _captured() -> Program:
    from experiments.models import gpt

    with abstract_parameters():
        graph, inputs = gpt.build(**gpt.SIZES["medium"], optimizer="adam")
    return capture(graph, *inputs)


def _print(figures: dict[str, Any]) -> None:
    table = Table(title="algebra")
    for name in ("what", "measured", "bar"):
        table.add_column(name)
    rows = [
        (
            f"{figures['redistributions']:,} random redistributions, {figures['steps']:,} steps",
            f"{figures['redistributions_s']:.0f} s, {len(figures['failures'])} failures",
            "300 s, 0 failures",
        ),
        (
            f"paths of all pairs of {figures['states']} states (rank 4, three axes), cold",
            f"{figures['cold_s']:.2f} s",
            "2 s",
        ),
        ("warm look-up of a path", f"{figures['warm_s'] * 1e6:.2f} µs", "2 µs"),
        (
            f"{figures['candidates']:,} candidates of {figures['ops']:,} ops on 4x8",
            f"{figures['candidates_s']:.2f} s",
            "2 s",
        ),
    ]
    for what, measured, bar in rows:
        table.add_row(what, measured, bar)
    Console().print(table)
    for failure in figures["failures"][:20]:
        Console().print(failure, markup=False)


if __name__ == "__main__":
    sys.exit(main())
