"""Megatron: linear layers in pairs, the first cut by columns and the second by rows."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from autoddl.sbp.state import B, NdSbp, P, S, Sbp
from autoddl.search.baselines.data_parallel import batch_cut
from autoddl.search.baselines.flow import Features, flow, network
from autoddl.search.baselines.held_states import HeldStates, even
from autoddl.search.baselines.layers import (
    Layer,
    LayerStates,
    backward_products,
    bias_of,
    in_problem,
    linear_layers_of,
    operand_shape,
    operand_states,
)
from autoddl.search.network.cost_network import CostNetwork

WHOLE, ROWS, COLUMNS = range(3)
Cuts = tuple[int, ...]  # of all linear layers


def megatron(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the Megatron layouts: tensor parallel on some axes, data parallel on the others.

    A linear layer is cut by rows where its input comes out of layers that are cut by columns, and
    by columns elsewhere, if a layer cut by rows follows; the last one (the head) is cut by columns or
    whole. Weights stay where they are: a row's partial sums, and those of a column's input gradient,
    are reduced. All choices of tensor-parallel axes are tried: the best two-dimensional grid.

    Source: Megatron-LM §3; AutoDDL §5 (best two-dimensional grid).
    """
    layers = linear_layers_of(problem)
    net = network(problem.program, layers)
    found = dict.fromkeys(_paired(net, head) for head in (False, True))
    live = [axis for axis, size in enumerate(problem.mesh.shape) if size > 1]
    made = _Layouts(problem, layers)
    return [
        made.layout(axes, cuts)
        for count in range(1, len(live) + 1)
        for axes in itertools.combinations(live, count)
        for cuts in found
        if any(cuts)
    ]


class _Form(NamedTuple):
    """What the states of a layer depend on; without a bias that shape is ()."""

    out: int
    fan_in: int
    weight: tuple[int, ...]
    bias: tuple[int, ...]
    features: int


_Part = tuple[_Form, int, bool]  # a layer's form, how it is cut, and whether it is the bias of it


class _Layouts:
    """The layouts of a problem whose program has these linear layers."""

    def __init__(self, problem: CostNetwork, layers: Sequence[Layer]) -> None:
        self.program, self.mesh, self.layers = problem.program, problem.mesh.shape, layers
        self.parameters = [p.tensor for p in self.program.parameters]
        self.biases = [bias_of(self.program, layer) for layer in layers]
        self.features: dict[int, int] = {}  # of the input, by kinds of ops
        self.parts: dict[Cuts, Mapping[_Part, Sequence[str]]] = {}
        self.forms = [self._form(*pair) for pair in zip(layers, self.biases, strict=True)]
        self.products = backward_products(problem)
        self.here = np.flatnonzero(in_problem(problem, self.products, layers)).tolist()

    def _form(self, layer: Layer, bias: str | None) -> _Form:
        columns, tensor = self.program.columns, self.program.tensor
        kind = columns.kind[columns.place[layer.op.name]]
        if kind not in self.features:
            self.features[kind] = len(operand_shape(self.program, layer.op, layer.x)) - 1
        vector = () if bias is None else tensor[bias].shape
        shape = tensor[layer.parameter].shape
        return _Form(layer.out, layer.fan_in, shape, vector, self.features[kind])

    def _parts(self, cuts: Cuts) -> Mapping[_Part, Sequence[str]]:
        """Return the weights and biases of layers that are cut; equal ones together."""
        parts: dict[str, _Part] = {}
        for layer, bias, form, cut in zip(self.layers, self.biases, self.forms, cuts, strict=True):
            if cut != WHOLE:
                parts[layer.parameter] = form, cut, False
            if bias is not None and cut == COLUMNS:
                parts[bias] = form, cut, True
        found = defaultdict[_Part, list[str]](list)
        for name, part in parts.items():
            found[part].append(name)
        return found

    def layout(self, axes: Sequence[int], cuts: Cuts) -> HeldStates:
        """Return the layout with layers cut over these axes."""
        mesh = self.mesh

        @cache
        def state(data: Sbp, tensor: Sbp) -> NdSbp:
            kinds = (tensor if axis in axes else data for axis in range(len(mesh)))
            return NdSbp(B if n == 1 else kind for kind, n in zip(kinds, mesh, strict=True))

        @cache
        def states_of(form: _Form, cut: int) -> tuple[NdSbp, NdSbp, LayerStates]:
            by_columns = cut == COLUMNS
            weight = S(form.out if by_columns else form.fan_in)
            inner, outer = state(S(0), S(form.features)), state(S(0), B)
            partial = state(S(0), P)
            states = LayerStates(
                x=outer if by_columns else inner,
                weight=state(B, weight),
                y=inner if by_columns else partial,
                dy=inner if by_columns else outer,
                dx=partial if by_columns else inner,
                dweight=state(P, weight),
            )
            bias = even(form.bias, state(B, S(0)), mesh) if form.bias else state(B, B)
            return even(form.weight, state(B, weight), mesh), bias, states

        held = dict.fromkeys(self.parameters, state(B, B))
        held |= batch_cut(self.program, mesh, [i for i in range(len(mesh)) if i not in axes])
        if cuts not in self.parts:
            self.parts[cuts] = self._parts(cuts)
        for (form, cut, of_bias), names in self.parts[cuts].items():
            weight, vector, _ = states_of(form, cut)
            held |= dict.fromkeys(names, vector if of_bias else weight)
        cut_here = [i for i in self.here if cuts[i] != WHOLE]
        found = [(self.layers[i], states_of(self.forms[i], cuts[i])[2]) for i in cut_here]
        return HeldStates(held, operand_states(self.program, self.products, found))


def _paired(net: Features, head: bool) -> Cuts:
    """Return the cuts by where the features of each layer's input come from."""
    columns = (net.x >= 0).astype(np.int64)
    layers = np.flatnonzero(columns)
    while True:
        rows, closed = flow(net, columns)
        kept = columns & closed
        if head and not rows[layers[-1:]].any():
            kept[layers[-1:]] = 1
        if ((kept | rows) == (columns | rows)).all():
            cuts = np.where(rows, ROWS, np.where(columns, COLUMNS, WHOLE))
            return tuple(cuts[layers].tolist())
        columns = kept
