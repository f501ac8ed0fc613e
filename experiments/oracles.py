"""AutoDDL's figures 3 and 8, found by search: `python -m experiments.oracles`.

Figure 3 is an attention layer on 16 of its 64 nodes (the four replicas do the same), figure 8 the
dense layers of VGG13 on 16, 32 and 64. Both are planned for the least communication, first with the
axes of the mesh in any order and then as OneFlow executes them, in every arrangement of the axes.
Costs are elements that each device receives, forward and backward, beside the closed form
2 · Σ (T/P) · (K(b − 1) + N(s − 1)). In figure 3, and in the rows that say so, no weight is replicated:
free ones may be moved to mend the order, which is cheap where a layer is small. Needs OneFlow, and
five minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from autoddl.perfmodel.profile import Device, Link, Profile
from autoddl.sbp.boxing import COLLECTIVES
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.engines import ONEFLOW
from autoddl.sbp.state import NdSbp
from autoddl.search import coordinate, exact
from autoddl.search.baselines.layers import Layer, linear_layers
from autoddl.search.builder import build
from autoddl.search.objective import COMMUNICATION, space
from autoddl.search.problem import Problem
from autoddl.search.restrict import restricted

LEVEL = "node"
ANY = "any"
PROVEN = 1e-6  # relative; so far bounds may be below the costs of optimal plans
RESTARTS = 4
VGG_WIDTHS = (25088, 4096, 4096, 1000)
VGG_BATCH = 8  # per device
VGG_MESHES = {16: "4x2x2", 32: "4x4x2", 64: "8x4x2"}  # every split into powers of two is in them
PRIME = {16: ("2x2x2x2",)}  # larger ones take long
VGG_GRIDS = {
    16: ((2, 8), (4, 4), (2, 8)),
    32: ((2, 16), (4, 8), (2, 16)),
    64: ((4, 16), (8, 8), (4, 16)),
}
ATTENTION_MESH = "4x2x2"
ATTENTION = {"batch": 256, "length": 1024, "width": 8192, "heads": 64}
ATTENTION_GRIDS = ((8, 2), (4, 4))
MEGATRON_GRIDS = ((16, 1), (1, 16))

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Grid:
    """How many devices cut a product Y = X W: `p0` the rows of X, `b` the columns of W, `s` the sums."""

    p0: int
    b: int
    s: int

    def __str__(self) -> str:
        return f"({self.b},{self.s})" if self.p0 == 1 else f"({self.p0};{self.b},{self.s})"


def counting(devices: int) -> Profile:
    """Return a profile in which a second is one float32 element that every device receives.

    There is one level of `devices` equal nodes, without latency; work on a node takes no time.
    """
    sizes = [n for n in range(2, devices + 1) if devices % n == 0]
    links = tuple(
        Link(collective=c, level=LEVEL, group_size=n, alpha_s=0.0, beta_s_per_byte=0.25)
        for c in COLLECTIVES
        for n in sizes
    )
    device = Device(
        name="counting", memory_bytes=2**60, peak_flops={"float32": 1e30},
        memory_bytes_per_s=1e30, op_overhead_s=0.0, kernels={},
    )  # fmt: skip
    return Profile(
        name="counting", source="formulas", kind="data sheet", device_type="cpu",
        levels=(LEVEL,), links=links, device=device,
    )  # fmt: skip


def problem(program: Program, mesh: str, engine: str | None) -> Problem:
    """Return the problem of planning for the least communication; costs are elements."""
    axes = Mesh.parse(mesh, (LEVEL,))
    profile = replace(counting(prod(axes.shape)), device_type=program.device)
    return space(build(program, axes, profile, engine=engine), COMMUNICATION).problem


def layers(program: Program) -> list[Layer]:
    """Return the layers of the figures: all linear ones but the first, which only makes their input."""
    return linear_layers(program)[1:]


def grids(p: Problem, assignment: Sequence[int]) -> tuple[Grid, ...]:
    """Return the process grid of every layer in the forward pass."""
    nodes = [p.position["op", layer.op.name] for layer in layers(p.program)]
    return tuple(_grid(p, p.nodes[node].choices[assignment[node]], node) for node in nodes)


def _grid(p: Problem, choice: NdSignature, node: int) -> Grid:
    (operand, tensor), *_ = p.program.op[p.nodes[node].name].outputs
    made, rank = choice[operand], len(p.program.tensor[tensor].shape)
    sums = prod(n for n, sbp in zip(p.mesh.shape, made, strict=True) if sbp.is_partial)
    return Grid(prod(_cut(p, made, d) for d in range(rank - 1)), _cut(p, made, rank - 1), sums)


def held(p: Problem, pairs: Pairs) -> Problem:
    """Return the problem in which the layers have these grids (b, s), forward and backward."""
    wanted = {a.parameter: (a, pair) for a, pair in zip(layers(p.program), pairs, strict=True)}

    def fits(tensor: str, state: NdSbp) -> bool:
        if tensor not in wanted:
            return True
        layer, pair = wanted[tensor]
        return pair == (_cut(p, state, layer.out), _cut(p, state, layer.fan_in))

    return _restricted(p, fits)


def weights_cut(p: Problem) -> Problem:
    """Return the problem in which no weight is replicated, neither stored nor where it is read.

    AutoDDL never gathers weights. In figure 3 it would pay: a step has 128 times as many tokens as
    the layers have features, so that activations are what is dear to move.
    """
    weights = {layer.parameter for layer in linear_layers(p.program)}
    live = [axis for axis, size in enumerate(p.mesh.shape) if size > 1]
    return _restricted(
        p, lambda tensor, state: tensor not in weights or all(state[a].is_split for a in live)
    )


def _restricted(p: Problem, fits: Callable[[str, NdSbp], bool]) -> Problem:
    """Return the problem in which tensors are made and read only in states that fit."""
    domains = [np.arange(len(node.choices)) for node in p.nodes]
    for edge in p.edges:
        good = np.array([fits(edge.tensor, state) for state in edge.table.states])
        for node, states in ((edge.producer, edge.source), *edge.readers):
            domains[node] = domains[node][good[states[domains[node]]]]
    return restricted(p, domains)


def _cut(p: Problem, state: NdSbp, dim: int) -> int:
    """Return into how many pieces a dim is cut."""
    return prod(p.mesh.shape[axis] for axis in state.cutting(dim))


def closed_form(program: Program, pairs: Pairs, devices: int) -> float:
    """Return the elements that a device receives, forward and backward, on grids without p0."""
    total = 0.0
    for layer, (b, s) in zip(layers(program), pairs, strict=True):
        operands = dict(layer.op.inputs)
        *rows, inner = program.tensor[operands[layer.x]].shape
        outer = program.tensor[layer.op.outputs[0][1]].shape[-1]
        total += 2 * prod(rows) / devices * (inner * (b - 1) + outer * (s - 1))
    return total


@dataclass(frozen=True)
class Row:
    """One plan: elements per device and a bound that none is below, beside the closed form."""

    figure: str
    devices: int
    order: str
    mesh: str
    grids: tuple[str, ...]
    elements: float
    bound: float
    closed_form: float

    @property
    def more(self) -> float:
        """Return by how much the plan moves more than the closed form, relatively."""
        return self.elements / self.closed_form - 1


@dataclass(frozen=True)
class Case:
    """A program with the grids of a figure; `change` says what the figure leaves out."""

    figure: str
    program: Program
    mesh: str
    pairs: Pairs
    change: Callable[[Problem], Problem]
    finer: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Return the number of nodes."""
        return prod(Mesh.parse(self.mesh, (LEVEL,)).shape)

    def row(self, order: str, mesh: str, budget_s: float) -> Row:
        """Return the plan of least communication, exact search going on where a descent ends."""
        p = self.change(problem(self.program, mesh, None if order == ANY else ONEFLOW))
        start = coordinate.search(p, budget=budget_s, restarts=RESTARTS).assignment
        found = exact.search(p, budget=budget_s, starts=[start])
        return Row(
            self.figure, self.devices, order, mesh,
            tuple(str(grid) for grid in grids(p, found.assignment)),
            found.cost_s, found.lower_bound_s,
            closed_form(self.program, self.pairs, self.devices),
        )  # fmt: skip

    def arranged(self) -> list[str]:
        """Return the mesh with its axes in every order, and finer ones."""
        sizes = itertools.permutations(self.mesh.split("x"))
        return [*("x".join(order) for order in dict.fromkeys(sizes)), *self.finer]


def main(argv: Sequence[str] | None = None) -> int:
    """Plan, print both tables, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m experiments.oracles", description=__doc__)
    add = parser.add_argument
    add("--figures", default="3,8", help="default 3,8")
    add("--seconds", type=float, default=300.0, help="for each plan; default 300")
    add("--json", type=Path, default=Path("out/oracles.json"), help="default out/oracles.json")
    args = parser.parse_args(argv)
    cases = [case for figure in args.figures.split(",") for case in _cases(figure)]
    if not cases:
        print(f"oracles: --figures: got {args.figures!r}; allowed are 3 and 8", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for case in cases:
        meshes = [(ANY, case.mesh), *((ONEFLOW, mesh) for mesh in case.arranged())]
        for order, mesh in meshes:
            rows.append(case.row(order, mesh, args.seconds))
            print(_text(rows[-1]), flush=True)
    print(_on_top(rows))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


def _cases(figure: str) -> Iterator[Case]:
    from experiments import oracle_models

    if figure == "3":
        program = oracle_models.attention(**ATTENTION)
        yield Case("3", program, ATTENTION_MESH, ATTENTION_GRIDS, weights_cut)
        yield Case("3, Megatron", program, "16", MEGATRON_GRIDS, lambda p: held(p, MEGATRON_GRIDS))
    if figure == "8":
        for devices, mesh in VGG_MESHES.items():
            program = oracle_models.dense(VGG_BATCH * devices, VGG_WIDTHS)
            pairs, prime = VGG_GRIDS[devices], PRIME.get(devices, ())
            yield Case("8", program, mesh, pairs, lambda p: p, prime)
            yield Case("8, weights cut", program, mesh, pairs, weights_cut, prime)


def _text(row: Row) -> str:
    proven = "optimal" if row.bound >= row.elements * (1 - PROVEN) else f"bound {row.bound:,.0f}"
    return (
        f"figure {row.figure:<15} {row.devices:>3} nodes, {row.order:>9} order {row.mesh:<7} "
        f"{' '.join(row.grids):<20} {row.elements:>13,.0f} elements, {row.more:+7.2%} ({proven})"
    )


def _on_top(rows: Sequence[Row]) -> str:
    """Say what OneFlow's order of the axes costs beyond any order."""
    lines = [
        "what OneFlow's order costs on top, in the best and the worst arrangement of the axes:"
    ]
    for free in (row for row in rows if row.order == ANY):
        same = (free.figure, free.devices)
        fixed = [r for r in rows if r.order == ONEFLOW and (r.figure, r.devices) == same]
        fixed.sort(key=lambda r: r.elements)
        ends = [f"{r.elements / free.elements - 1:+.2%} ({r.mesh})" for r in (fixed[0], fixed[-1])]
        lines.append(f"figure {free.figure:<15} {free.devices:>3} nodes: {' to '.join(ends)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
