"""SUMMA, as Optimus trains with it: activations and weights cut in two dims."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from autoddl.sbp.program import Program
from autoddl.sbp.state import B, NdSbp, P, S, Sbp
from autoddl.search.baselines.layers import (
    Layer,
    Product,
    States,
    backward_products,
    embeddings,
    linear_layers,
    operand_states,
)
from autoddl.search.baselines.layout import Layout, even
from autoddl.search.problem import Problem


def summa(problem: Problem) -> Sequence[Layout]:
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
    program, mesh = problem.program, problem.mesh.shape
    live = [axis for axis, size in enumerate(mesh) if size > 1]
    if not linear_layers(program):
        return []
    products = backward_products(program)
    return [
        _Grid(program, mesh, rows, products).layout()
        for count in range(1, len(live))
        for rows in itertools.combinations(live, count)
    ]


class _Grid:
    """One way of dividing the axes into rows and columns."""

    def __init__(
        self, program: Program, mesh: Sequence[int], rows: Sequence[int],
        products: Sequence[Product],
    ) -> None:  # fmt: skip
        self.program, self.mesh, self.rows, self.products = program, mesh, rows, products
        self.linear = linear_layers(program)
        self.shapes = {
            program.shapes(a.op)[o] for a in self.linear for o in (a.x, a.op.outputs[0][0])
        }
        self.widths = {shape[-1] for shape in self.shapes}

    def layout(self) -> Layout:
        program = self.program
        held = {name: self._input(name) for name in program.inputs}
        held |= {p.tensor: self._vector(p.tensor) for p in program.parameters}
        contracted = (*self.linear, *embeddings(program))
        for layer in contracted:
            held[layer.parameter] = self._even(layer.parameter, S(layer.fan_in), S(layer.out))
        layers = [(layer, self._states(layer)) for layer in contracted]
        return Layout(
            held, {**self._activations(), **operand_states(program, self.products, layers)}
        )

    def _activations(self) -> dict[str, Mapping[str, NdSbp]]:
        """Hold what has the shape of a layer's input or output cut in the batch and the features."""
        program = self.program
        others = {p.gradient for p in program.parameters} | {p.tensor for p in program.parameters}
        found: dict[str, Mapping[str, NdSbp]] = {}
        cut = {shape: self._state(S(0), S(len(shape) - 1)) for shape in self.shapes}
        held = {
            t.name: cut[t.shape] for t in program.tensors if t.shape in cut and t.name not in others
        }
        for op in program.ops:
            states = {o: held[t] for o, t in op.operands if t in held}
            if states and op.phase != "optimizer":
                found[op.name] = states
        return found

    def _input(self, name: str) -> NdSbp:
        """Return the state of an input: numbers are cut in their last dim as well, ids are not."""
        tensor = self.program.tensor[name]
        features = len(tensor.shape) > 1 and tensor.dtype.startswith(("float", "bfloat"))
        last = S(len(tensor.shape) - 1) if features else B
        return self._even(name, S(0) if tensor.shape else B, last)

    def _vector(self, name: str) -> NdSbp:
        """Return the state of what is added to features or scales them: cut by the columns."""
        shape = self.program.tensor[name].shape
        return self._even(name, B, S(len(shape) - 1) if shape and shape[-1] in self.widths else B)

    def _even(self, tensor: str, rows: Sbp, columns: Sbp) -> NdSbp:
        return even(self.program.tensor[tensor].shape, self._state(rows, columns), self.mesh)

    def _state(self, rows: Sbp, columns: Sbp) -> NdSbp:
        """Return a state by what it is on the axes of the rows and on those of the columns."""
        return NdSbp(
            B if size == 1 else rows if axis in self.rows else columns
            for axis, size in enumerate(self.mesh)
        )

    def _states(self, layer: Layer) -> States:
        """Return the states of a layer: X whole in its features, W whole in its inputs."""
        program = self.program
        rank = len(program.shapes(layer.op)[layer.op.outputs[0][0]])
        cut = self._state(S(0), S(rank - 1))
        return States(
            x=self._state(S(0), B),
            weight=self._state(B, S(layer.out)),
            y=cut,
            dy=cut,
            dx=self._state(S(0), P),
            dweight=self._state(P, S(layer.out)),
        )
