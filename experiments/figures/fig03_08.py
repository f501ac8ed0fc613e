"""AutoDDL's figures 3 and 8, found by search: `python -m experiments.figures.fig03_08`.

Figure 3 is an attention layer on 16 of its 64 nodes (the four replicas do the same), figure 8 the
dense layers of VGG13 on 16, 32 and 64. Both are planned for the least communication, first with the
axes of the mesh in any order and then as OneFlow executes them, in every arrangement of the axes.
Costs are elements that each device receives, forward and backward, beside the closed form
2 · Σ (T/P) · (K(b − 1) + N(s − 1)). In figure 3, and in the rows that say so, no weight is replicated:
free ones may be moved to mend the order, which is cheap where a layer is small. Needs OneFlow, and
five minutes on one core.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import click
import numpy as np
import pandas as pd
from msgspec import structs

from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device, Link
from autoddl.sbp.boxing import COLLECTIVES
from autoddl.sbp.layers import Layer, linear_layers
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp
from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import COMMUNICATION, space
from autoddl.search.reductions.restriction import everything, restricted
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import coordinate
from experiments.lib import cli, frames
from experiments.lib.frames import Row
from experiments.lib.oneflow_problems import build

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
        name="counting", memory_bytes=2**60, peak_flops={"float32": 1e24},
        memory_bytes_per_s=1e24, op_overhead_s=0.0, kernels={},
    )  # fmt: skip
    return Profile(
        name="counting", source="formulas", kind="data sheet", device_type="cpu",
        levels=(LEVEL,), links=links, devices={ALIKE: device},
    )  # fmt: skip


def problem(program: Program, mesh: str, engine: str | None) -> CostNetwork:
    """Return the problem of planning for the least communication; costs are elements."""
    axes = Mesh.parse(mesh, (LEVEL,))
    profile = structs.replace(counting(prod(axes.shape)), device_type=program.device)
    return space(build(program, axes, profile, engine=engines.model(engine)), COMMUNICATION).network


def layers(program: Program) -> list[Layer]:
    """Return the layers of the figures: all linear ones but the first, which only makes their input."""
    return linear_layers(program)[1:]


def grids(p: CostNetwork, assignment: Sequence[int]) -> tuple[Grid, ...]:
    """Return the process grid of every layer in the forward pass."""
    place, ops = p.program.columns.place, p.variables.op.tolist()
    nodes = [ops.index(place[layer.op.name]) for layer in layers(p.program)]
    return tuple(_grid(p, p.variables.of(v).choices[assignment[v]], v) for v in nodes)


def _grid(p: CostNetwork, choice: NdSignature, node: int) -> Grid:
    (operand, tensor), *_ = p.program.ops[p.variables.op[node]].outputs
    made, rank = choice[operand], len(p.program.tensor[tensor].shape)
    sums = prod(n for n, sbp in zip(p.mesh.shape, made, strict=True) if sbp.is_partial)
    return Grid(prod(_cut(p, made, d) for d in range(rank - 1)), _cut(p, made, rank - 1), sums)


def held(p: CostNetwork, pairs: Pairs) -> CostNetwork:
    """Return the problem in which the layers have these grids (b, s), forward and backward."""
    wanted = {a.parameter: (a, pair) for a, pair in zip(layers(p.program), pairs, strict=True)}

    def fits(tensor: str, state: NdSbp) -> bool:
        if tensor not in wanted:
            return True
        layer, pair = wanted[tensor]
        return pair == (_cut(p, state, layer.out), _cut(p, state, layer.fan_in))

    return _restricted(p, fits)


def weights_cut(p: CostNetwork) -> CostNetwork:
    """Return the problem in which no weight is replicated, neither stored nor where it is read.

    AutoDDL never gathers weights. In figure 3 it would pay: a step has 128 times as many tokens as
    the layers have features, so that activations are what is dear to move.
    """
    weights = {layer.parameter for layer in linear_layers(p.program)}
    live = [axis for axis, size in enumerate(p.mesh.shape) if size > 1]
    return _restricted(
        p, lambda tensor, state: tensor not in weights or all(state[a].is_split for a in live)
    )


def _restricted(p: CostNetwork, fits: Callable[[str, NdSbp], bool]) -> CostNetwork:
    """Return the problem in which tensors are made and read only in states that fit."""
    domains, factors = everything(p), p.factors
    for factor, (tensor, table) in enumerate(zip(factors.tensor, factors.table, strict=True)):
        name, possible = p.program.tensors[tensor].name, factors.tables[table].states
        good = np.array([fits(name, state) for state in possible])
        for node, states in factors.ends(factor):
            domains[node] = domains[node][good[states[domains[node]]]]
    return restricted(p, domains)


def _cut(p: CostNetwork, state: NdSbp, dim: int) -> int:
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
class FigureCase:
    """A program with the grids of a figure; `change` says what the figure leaves out."""

    figure: str
    program: Program
    mesh: str
    pairs: Pairs
    change: Callable[[CostNetwork], CostNetwork]
    finer: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Return the number of nodes."""
        return prod(Mesh.parse(self.mesh, (LEVEL,)).shape)

    def row(self, order: str, mesh: str, budget_s: float) -> Row:
        """Return the plan of least communication, exact search going on where a descent ends.

        There are elements per device and a bound that none is below, beside the closed form.
        """
        p = self.change(problem(self.program, mesh, None if order == ANY else ONEFLOW))
        start = coordinate.search(p, SearchOptions(budget=budget_s), restarts=RESTARTS).assignment
        found = exact.search(p, SearchOptions(budget=budget_s, starts=[start]))
        return {
            "figure": self.figure, "devices": self.devices, "order": order, "mesh": mesh,
            "grids": [str(grid) for grid in grids(p, found.assignment)],
            "elements": found.cost_s, "bound": found.lower_bound_s,
            "closed_form": closed_form(self.program, self.pairs, self.devices),
        }  # fmt: skip

    def arranged(self) -> list[str]:
        """Return the mesh with its axes in every order, and finer ones."""
        sizes = itertools.permutations(self.mesh.split("x"))
        return [*("x".join(order) for order in dict.fromkeys(sizes)), *self.finer]


@click.command(help=__doc__)
@cli.listed("--figures", ("3", "8"))
@click.option("--seconds", default=300.0, show_default=True, help="for each plan")
@cli.folder("out/fig03_08")
def command(figures: Sequence[str], seconds: float, folder: Path) -> None:
    """Plan, print both tables, write them."""
    found: list[Row] = []
    for case in (case for figure in figures for case in _cases(figure)):
        meshes = [(ANY, case.mesh), *((ONEFLOW, mesh) for mesh in case.arranged())]
        for order, mesh in meshes:
            found.append(case.row(order, mesh, seconds))
            print(_text(found[-1]), flush=True)
    frame = pd.DataFrame(found)
    print(on_top(frame))
    frames.save(frame, folder, "fig03_08")


def _cases(figure: str) -> Iterator[FigureCase]:
    from experiments.figures import fig03_08_models

    if figure == "3":
        program = fig03_08_models.attention(**ATTENTION)
        yield FigureCase("3", program, ATTENTION_MESH, ATTENTION_GRIDS, weights_cut)
        yield FigureCase(
            "3, Megatron", program, "16", MEGATRON_GRIDS, lambda p: held(p, MEGATRON_GRIDS)
        )
    if figure == "8":
        for devices, mesh in VGG_MESHES.items():
            program = fig03_08_models.dense(VGG_BATCH * devices, VGG_WIDTHS)
            pairs, prime = VGG_GRIDS[devices], PRIME.get(devices, ())
            yield FigureCase("8", program, mesh, pairs, lambda p: p, prime)
            yield FigureCase("8, weights cut", program, mesh, pairs, weights_cut, prime)


def _text(row: Row) -> str:
    proven = row["bound"] >= row["elements"] * (1 - PROVEN)
    return (
        f"figure {row['figure']:<15} {row['devices']:>3} nodes, {row['order']:>9} order "
        f"{row['mesh']:<7} {' '.join(row['grids']):<20} {row['elements']:>13,.0f} elements, "
        f"{row['elements'] / row['closed_form'] - 1:+7.2%} "
        f"({'optimal' if proven else 'bound {bound:,.0f}'.format(**row)})"
    )


def on_top(frame: pd.DataFrame) -> str:
    """Say what OneFlow's order of the axes costs beyond any order."""
    lines = [
        "what OneFlow's order costs on top, in the best and the worst arrangement of the axes:"
    ]
    for (figure, devices), same in frame.groupby(["figure", "devices"], sort=False):
        free = same[same.order == ANY].elements.item()
        fixed = same[same.order == ONEFLOW].sort_values("elements").iloc[[0, -1]]
        ends = [
            f"{e / free - 1:+.2%} ({m})" for e, m in zip(fixed.elements, fixed.mesh, strict=True)
        ]
        lines.append(f"figure {figure!s:<15} {devices:>3} nodes: {' to '.join(ends)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(cli.run(command, "figures.fig03_08"))
