"""Megatron: linear layers in pairs, the first cut by columns and the second by rows."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from autoddl.sbp.program import Op, Program
from autoddl.sbp.state import B, NdSbp, P, S, Sbp
from autoddl.search.baselines.data_parallel import batch_cut
from autoddl.search.baselines.layers import (
    Layer,
    Product,
    States,
    backward_products,
    bias_of,
    contractions,
    linear_layers,
    operand_shape,
    operand_states,
)
from autoddl.search.baselines.layout import Layout, even
from autoddl.search.problem import Problem

Cuts = Mapping[str, bool]  # ops of the layers that are cut: by columns, else by rows


def megatron(problem: Problem) -> Sequence[Layout]:
    """Return the Megatron layouts: tensor parallel on some axes, data parallel on the others.

    A linear layer is cut by rows where its input comes out of layers that are cut by columns, and
    by columns elsewhere, if a layer cut by rows follows; the last one (the head) is cut by columns or
    whole. Weights stay where they are: a row's partial sums, and those of a column's input gradient,
    are reduced. All choices of tensor-parallel axes are tried: the best two-dimensional grid.

    Source: Megatron-LM §3; AutoDDL §5 (best two-dimensional grid).
    """
    program, mesh = problem.program, problem.mesh.shape
    live = [axis for axis, size in enumerate(mesh) if size > 1]
    layers = linear_layers(program)
    found: list[Cuts] = []
    first = _flow(program, {a.op.name: a for a in layers}, {a.op.name for a in layers})
    for head in (False, True):
        cuts = _paired(program, layers, head, first)
        if cuts and cuts not in found:
            found.append(cuts)
    products = backward_products(problem)
    return [
        _layout(program, mesh, axes, ([a for a in layers if a.op.name in cuts], products), cuts)
        for count in range(1, len(live) + 1)
        for axes in itertools.combinations(live, count)
        for cuts in found
    ]


def _layout(
    program: Program, mesh: Sequence[int], axes: Sequence[int],
    parts: tuple[Sequence[Layer], Sequence[Product]], cuts: Cuts,
) -> Layout:  # fmt: skip
    layers, products = parts

    @cache
    def state(data: Sbp, tensor: Sbp) -> NdSbp:
        return NdSbp(
            B if size == 1 else tensor if axis in axes else data for axis, size in enumerate(mesh)
        )

    @cache
    def states_of(by_columns: bool, weight: Sbp, features: Sbp) -> States:
        whole, cut = state(S(0), B), state(S(0), features)
        return States(
            x=whole if by_columns else cut,
            weight=state(B, weight),
            y=cut if by_columns else state(S(0), P),
            dy=cut if by_columns else whole,
            dx=state(S(0), P) if by_columns else cut,
            dweight=state(P, weight),
        )

    held = batch_cut(program, mesh, [axis for axis in range(len(mesh)) if axis not in axes])
    held |= {p.tensor: state(B, B) for p in program.parameters}
    states = []
    for layer in layers:
        by_columns = cuts[layer.op.name]
        weight = S(layer.out if by_columns else layer.fan_in)
        shape = program.tensor[layer.parameter].shape
        held[layer.parameter] = even(shape, state(B, weight), mesh)
        bias = bias_of(program, layer) if by_columns else None
        if bias is not None:
            held[bias] = even(program.tensor[bias].shape, state(B, S(0)), mesh)
        features = S(len(operand_shape(program, layer.op, layer.x)) - 1)
        states.append((layer, states_of(by_columns, weight, features)))
    return Layout(held, operand_states(program, products, states))


def _paired(
    program: Program, layers: Sequence[Layer], head: bool, first: tuple[set[str], set[str]]
) -> Cuts:
    """Return the cuts by where the features of each layer's input come from.

    `first` is the flow when all layers are cut by columns.
    """
    by_name = {layer.op.name: layer for layer in layers}
    columns = set(by_name)
    while True:
        rows, closed = first if columns == set(by_name) else _flow(program, by_name, columns)
        kept = {name for name in columns if name in closed}
        if head and layers and layers[-1].op.name not in rows:
            kept.add(layers[-1].op.name)
        if kept | rows == columns | rows:
            break
        columns = kept
    return {name: name not in rows for name in (columns | rows)}


def _flow(
    program: Program, layers: Mapping[str, Layer], columns: Collection[str]
) -> tuple[set[str], set[str]]:
    """Return the layers with cut inputs, and the layers cut by columns whose outputs end there.

    Of every tensor it is known which layers cut its features: none where it was made whole again,
    nothing at all where no parameter is behind it (masks, say).
    """
    cut: dict[str, frozenset[str]] = {}
    rows: set[str] = set()
    closed: set[str] = set()
    products = {op.name for op in contractions(program, "forward")}
    for op in program.ops:
        layer = layers.get(op.name)
        if op.phase != "forward" or not _behind_parameters(program, op, cut):
            continue
        if layer is None:
            after = _merged(program, op, cut, op.name in products)
        elif before := cut.get(dict(op.inputs)[layer.x]):
            after = frozenset()
            rows.add(op.name)
            closed |= before
        else:
            after = frozenset({op.name} & set(columns))
        cut |= {tensor: after for _, tensor in op.outputs}
    return rows, closed


def _merged(
    program: Program, op: Op, cut: Mapping[str, frozenset[str]], product: bool
) -> frozenset[str]:
    """Return which layers cut the output: none where it is added to, or multiplied with, a whole one."""
    whole = [tensor for _, tensor in op.inputs if tensor in cut and not cut[tensor]]
    if whole:
        sizes = [program.tensor[t].elements for _, t in op.outputs]
        if product or any(program.tensor[tensor].elements in sizes for tensor in whole):
            return frozenset()
    return frozenset[str]().union(*[cut.get(t, ()) for _, t in op.inputs])


def _behind_parameters(program: Program, op: Op, known: Collection[str]) -> bool:
    return any(t in known or program.tensor[t].role == "parameter" for _, t in op.inputs)
