"""SUMMA, as Optimus trains with it: activations and weights cut in two dims."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from autoddl.sbp.program import Program
from autoddl.sbp.state import B, NdSbp, P, S, Sbp
from autoddl.search.baselines.held_states import HeldStates, even
from autoddl.search.baselines.layers import (
    Layer,
    LayerStates,
    Product,
    backward_products,
    embeddings,
    in_problem,
    linear_layers_of,
    operand_shape,
    operand_states,
    ops_of,
)
from autoddl.search.network.cost_network import CostNetwork


def summa(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the SUMMA layouts: axes of the mesh are rows, which cut the batch, or columns (features).

    Every linear layer stores its weight cut by the rows along the inputs and by the columns along the
    outputs, and its input cut in batch and features. Y = X W gathers X along the columns and W along
    the rows; dX = dY Wᵀ and dW = Xᵀ dY are reduce-scattered along the columns and the rows. Embedding
    tables are cut likewise. What has a layer's input or output shape stays in both cuts where its
    ops allow it (norms take whole features). Each way of dividing the axes is tried; with one axis
    there is none.

    SUMMA sends the blocks of X and W one after the other and Optimus sends them again in the
    backward pass. Here whole panels are gathered, and kept: the forward pass moves the same
    bytes, the backward pass spares two of its four transfers, and both take more memory.

    Source: Optimus (Xu et al. 2021, arXiv 2104.05343) §3; van de Geijn and Watts 1997.
    """
    live = [axis for axis, size in enumerate(problem.mesh.shape) if size > 1]
    linear = linear_layers_of(problem)
    if not linear:
        return []
    layers, products = (*linear, *embeddings(problem.program)), backward_products(problem)
    here = in_problem(problem, products, layers)
    parts = _Parts(layers, here, _shapes(problem.program, linear), products)
    return [
        _SummaGrid(problem, rows, parts).layout()
        for count in range(1, len(live))
        for rows in itertools.combinations(live, count)
    ]


class _Parts(NamedTuple):
    """What all layouts hold: layers, products, and what has one of some shapes.

    `here` tells of every layer whether its states are those of ops of the problem.
    """

    layers: Sequence[Layer]
    here: Sequence[bool]
    shapes: frozenset[tuple[int, ...]]
    products: Sequence[Product]


def _shapes(program: Program, linear: Sequence[Layer]) -> frozenset[tuple[int, ...]]:
    """Return the shapes of inputs and outputs of layers."""
    kind, number = program.columns.kind.tolist(), program.columns.place
    once = {kind[number[layer.op.name]]: layer for layer in linear}.values()
    outer = [(layer.op, o) for layer in once for o in (layer.x, layer.op.outputs[0][0])]
    return frozenset(operand_shape(program, op, operand) for op, operand in outer)


class _SummaGrid:
    """One way of dividing the axes into rows and columns."""

    def __init__(self, problem: CostNetwork, rows: Sequence[int], parts: _Parts) -> None:
        self.problem, self.program, self.rows = problem, problem.program, rows
        self.mesh, self.parts = problem.mesh.shape, parts
        self.widths = {shape[-1] for shape in parts.shapes}
        self._made: dict[tuple[Sbp, Sbp], NdSbp] = {}
        self._known: dict[tuple[int, int], LayerStates] = {}

    def layout(self) -> HeldStates:
        program, tensor = self.program, self.program.tensor
        held = {name: self._input(name) for name in program.inputs}
        vector, weight = cache(self._vector), cache(self._weight)
        held |= {p.tensor: vector(tensor[p.tensor].shape) for p in program.parameters}
        layers = []
        for layer, here in zip(self.parts.layers, self.parts.here, strict=True):
            shape = tensor[layer.parameter].shape
            held[layer.parameter] = weight(shape, layer.fan_in, layer.out)
            if here:
                layers.append((layer, self._states(layer)))
        operands = operand_states(program, self.parts.products, layers)
        return HeldStates(held, {**self._activations(), **operands})

    def _activations(self) -> dict[str, Mapping[str, NdSbp]]:
        """Hold what has the shape of a layer's input or output cut in the batch and the features."""
        tensor, parameters = self.program.tensor, self.program.parameters
        others = {p.gradient for p in parameters} | {p.tensor for p in parameters}
        found: dict[str, Mapping[str, NdSbp]] = {}
        cut = {shape: self._state(S(0), S(len(shape) - 1)) for shape in self.parts.shapes}
        for op in ops_of(self.problem):
            states = {
                o: cut[tensor[t].shape]
                for o, t in op.operands
                if tensor[t].shape in cut and t not in others
            }
            if states and op.phase != "optimizer":
                found[op.name] = states
        return found

    def _input(self, name: str) -> NdSbp:
        """Return the state of an input: numbers are cut in their last dim as well, ids are not."""
        shape, dtype = self.program.tensor[name].shape, self.program.tensor[name].dtype
        features = len(shape) > 1 and dtype.startswith(("float", "bfloat"))
        return self._even(shape, S(0) if shape else B, S(len(shape) - 1) if features else B)

    def _vector(self, shape: tuple[int, ...]) -> NdSbp:
        """Return the state of what is added to features or scales them: cut by the columns."""
        cut = shape and shape[-1] in self.widths
        return self._even(shape, B, S(len(shape) - 1) if cut else B)

    def _weight(self, shape: tuple[int, ...], fan_in: int, out: int) -> NdSbp:
        return self._even(shape, S(fan_in), S(out))

    def _even(self, shape: tuple[int, ...], rows: Sbp, columns: Sbp) -> NdSbp:
        return even(shape, self._state(rows, columns), self.mesh)

    def _state(self, rows: Sbp, columns: Sbp) -> NdSbp:
        """Return a state by what it is on the axes of the rows and on those of the columns."""
        if (rows, columns) not in self._made:
            self._made[rows, columns] = NdSbp(
                B if size == 1 else rows if axis in self.rows else columns
                for axis, size in enumerate(self.mesh)
            )
        return self._made[rows, columns]

    def _states(self, layer: Layer) -> LayerStates:
        """Return the states of a layer: X whole in its features, W whole in its inputs."""
        rank = len(operand_shape(self.program, layer.op, layer.op.outputs[0][0]))
        if (rank, layer.out) not in self._known:
            cut = self._state(S(0), S(rank - 1))
            self._known[rank, layer.out] = LayerStates(
                x=self._state(S(0), B),
                weight=self._state(B, S(layer.out)),
                y=cut,
                dy=cut,
                dx=self._state(S(0), P),
                dweight=self._state(P, S(layer.out)),
            )
        return self._known[rank, layer.out]
