"""What experts do by hand, as assignments of the same Problem: data parallel and Megatron.

A baseline pins inputs and parameters, lets every op follow its producers, and then refines the ops
that are not contractions, so that it is as good as its definition allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autoddl.sbp.shards import all_states
from autoddl.sbp.state import B, NdSbp, P, S, Sbp
from autoddl.search.cells import roots
from autoddl.search.coordinate import Descent
from autoddl.search.problem import TENSOR, Edge, Floats, Problem
from autoddl.search.result import Assignment

Pins = Mapping[str, NdSbp]
Follow = Callable[[Problem, Sequence[Edge], int, Sequence[int]], int]

REFINED = 2  # so many of the completed layouts, the cheapest, are refined


def data_parallel(problem: Problem) -> Assignment:
    """Return data parallelism: the batch cut over every axis that divides it, parameters whole."""
    return _best(problem, [_pins(problem, tensor_axes=(), columns={})])


def megatron(problem: Problem) -> Assignment:
    """Return the best Megatron layout: tensor parallel on some axes, data parallel on the others.

    Linear layers alternate between column and row parallel within a block; all choices of
    tensor-parallel axes are tried, with the last layer (the head) cut by columns or left whole.

    Source: Megatron-LM §3; AutoDDL §5 (best two-dimensional grid).
    """
    layers = _linear_layers(problem)
    axes = range(problem.mesh.ndim)
    layouts = []
    for count in range(1, problem.mesh.ndim + 1):
        for tensor_axes in itertools.combinations(axes, count):
            for cut_head in (False, True):
                columns = _alternate(problem, layers, cut_head)
                layouts.append(_pins(problem, tensor_axes, columns))
    return _best(problem, layouts)


BASELINES: Mapping[str, Callable[[Problem], Assignment]] = {
    "data parallel": data_parallel,
    "Megatron": megatron,
}


def _linear_layers(problem: Problem) -> list[tuple[str, str | None]]:
    """Return (weight, bias) of every linear layer in the order of the forward pass.

    A weight is a parameter of rank 2 that a forward contraction reads as (out, in).
    """
    program = problem.program
    parameters = {p.tensor for p in program.parameters}
    layers = []
    for index in roots(problem):
        op = program.op[problem.nodes[index].name]
        weights = [t for o, t in op.inputs if t in parameters and o == "b_0"]
        if weights and program.tensor[weights[0]].shape and op.attr.get("transpose_b"):
            bias = weights[0].rpartition(".")[0] + ".bias"
            layers.append((weights[0], bias if bias in parameters else None))
    return layers


def _alternate(
    problem: Problem, layers: Sequence[tuple[str, str | None]], cut_head: bool
) -> dict[str, int]:
    """Return which dim of each parameter the tensor-parallel axes cut: columns 0, rows 1."""
    dims: dict[str, int] = {}
    for number, (weight, bias) in enumerate(layers):
        last = number == len(layers) - 1
        by_columns = number % 2 == 0
        if last and not cut_head and by_columns:
            continue
        dims[weight] = 0 if by_columns else 1
        if by_columns and bias is not None:
            dims[bias] = 0
    return dims


def _pins(problem: Problem, tensor_axes: Sequence[int], columns: Mapping[str, int]) -> Pins:
    program, mesh = problem.program, problem.mesh
    pins = {}
    for node in problem.nodes:
        if node.kind not in ("input", "parameter"):
            continue
        shape = program.tensor[node.name].shape
        wish = []
        for axis in range(mesh.ndim):
            state: Sbp = B
            if mesh.shape[axis] == 1:
                pass
            elif node.kind == "input" and axis not in tensor_axes and shape:
                state = S(0)
            elif axis in tensor_axes and node.name in columns:
                state = S(columns[node.name])
            wish.append(state)
        pins[node.name] = _even(shape, wish, mesh.shape)
    return pins


def _even(shape: Sequence[int], wish: Sequence[Sbp], mesh: Sequence[int]) -> NdSbp:
    """Return the wished state, with B on the axes where it would cut unevenly."""
    state = NdSbp(wish)
    allowed = set(all_states(tuple(shape), mesh, partial=False))
    for axis in reversed(range(len(mesh))):
        if state in allowed:
            break
        state = state.replace(axis, B)
    return state


def _best(problem: Problem, layouts: Sequence[Pins]) -> Assignment:
    """Return the best assignment that holds one of the layouts; contractions follow their pins."""
    incoming: list[list[Edge]] = [[] for _ in problem.nodes]
    for edge in problem.edges:
        for reader in dict.fromkeys(n for n, _ in edge.readers):
            incoming[reader].append(edge)
    held = {*roots(problem), *roots(problem, "backward")}
    held |= {i for i, node in enumerate(problem.nodes) if node.kind in ("input", "parameter")}
    descent = Descent(problem, frozen=frozenset(held))
    follows = (_cheapest, _nearest)
    points = [_complete(problem, incoming, pins, f) for pins in layouts for f in follows]
    points = [descent.refine(p) for p in sorted(points, key=problem.cost_s)[:REFINED]]
    best = min(points, key=problem.cost_s)
    return tuple(descent.settle(best, np.random.default_rng(0)))


def _complete(
    problem: Problem, incoming: Sequence[Sequence[Edge]], pins: Pins, follow: Follow
) -> list[int]:
    """Return the assignment that holds the pins and lets ops follow their producers."""
    point = [0] * len(problem.nodes)
    for index, node in enumerate(problem.nodes):
        if node.kind == "op":
            point[index] = follow(problem, incoming[index], index, point)
        elif node.name in pins and node.kind != "output":
            wanted = [c[TENSOR] for c in node.choices]
            if pins[node.name] in wanted:  # a user's pin leaves only its own state
                point[index] = wanted.index(pins[node.name])
    return point


def _cheapest(problem: Problem, incoming: Sequence[Edge], node: int, point: Sequence[int]) -> int:
    """Return the choice that is cheapest given the producers, which have their choices already."""
    cost = problem.nodes[node].compute_s.copy()
    for edge in incoming:
        source = int(edge.source[point[edge.producer]])
        cost += _redistribution(edge, source, node)
    return int(cost.argmin())


def _nearest(problem: Problem, incoming: Sequence[Edge], node: int, point: Sequence[int]) -> int:
    """Return the choice that leaves its inputs most as they are, partial sums reduced at once."""
    cost = np.zeros(len(problem.nodes[node].choices))
    for edge in incoming:
        source = edge.table.states[int(edge.source[point[edge.producer]])]
        whole = NdSbp(B if s == P else s for s in source)
        cost += _redistribution(edge, edge.table.index[whole], node)
    near = np.flatnonzero(cost <= cost.min() * (1 + 1e-9))
    return int(near[problem.nodes[node].compute_s[near].argmin()])


def _redistribution(edge: Edge, source: int, node: int) -> Floats:
    """Return what the node pays for a tensor, by choice, where the tensor is in state `source`."""
    mine = [edge.table.cost[source, s] for reader, s in edge.readers if reader == node]
    return np.asarray(np.add.reduce(mine))
