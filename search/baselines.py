"""What experts do by hand, as assignments of the same Problem: data parallel and Megatron.

A baseline pins inputs and parameters, lets every op follow its producers, and then refines the ops
that are not contractions, so that it is as good as its definition allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from autoddl.sbp.state import B, NdSbp, S, Sbp, all_states
from autoddl.search.cells import roots
from autoddl.search.coordinate import Descent
from autoddl.search.problem import TENSOR, Edge, Problem
from autoddl.search.result import Assignment

Pins = Mapping[str, NdSbp]


def data_parallel(problem: Problem) -> Assignment:
    """Return data parallelism: the batch cut over every axis that divides it, parameters whole."""
    return _complete(problem, _pins(problem, tensor_axes=(), columns={}))


def megatron(problem: Problem) -> Assignment:
    """Return the best Megatron layout: tensor parallel on some axes, data parallel on the others.

    Linear layers alternate between column and row parallel within a block; all choices of
    tensor-parallel axes are tried, with the last layer (the head) cut by columns or left whole.

    Source: Megatron-LM §3; AutoDDL §5 (best two-dimensional grid).
    """
    layers = _linear_layers(problem)
    best: Assignment | None = None
    axes = range(problem.mesh.ndim)
    for count in range(1, problem.mesh.ndim + 1):
        for tensor_axes in itertools.combinations(axes, count):
            for cut_head in (False, True):
                columns = _alternate(problem, layers, cut_head)
                found = _complete(problem, _pins(problem, tensor_axes, columns))
                if best is None or problem.cost_s(found) < problem.cost_s(best):
                    best = found
    assert best is not None  # a mesh has at least one axis
    return best


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


def _complete(problem: Problem, pins: Pins) -> Assignment:
    """Return the assignment that holds the pins and lets ops follow their producers."""
    incoming: list[list[Edge]] = [[] for _ in problem.nodes]
    for edge in problem.edges:
        for reader in dict.fromkeys(n for n, _ in edge.readers):
            incoming[reader].append(edge)
    point = [0] * len(problem.nodes)
    pinned = {*roots(problem), *roots(problem, "backward")}
    for index, node in enumerate(problem.nodes):
        if node.name in pins and node.kind in ("input", "parameter"):
            wanted = [c[TENSOR] for c in node.choices]
            if pins[node.name] in wanted:  # a user's pin leaves only its own state
                point[index] = wanted.index(pins[node.name])
            pinned.add(index)
        elif node.kind == "op":
            point[index] = _follow(problem, incoming[index], index, point)
    return tuple(Descent(problem, frozen=frozenset(pinned)).run(point))


def _follow(problem: Problem, incoming: Sequence[Edge], node: int, point: Sequence[int]) -> int:
    """Return the choice that is cheapest given the producers, which have their choices already."""
    cost = problem.nodes[node].compute_s.copy()
    for edge in incoming:
        source = edge.source[point[edge.producer]]
        for reader, states in edge.readers:
            if reader == node:
                cost += edge.table.cost[source, states]
    return int(cost.argmin())
