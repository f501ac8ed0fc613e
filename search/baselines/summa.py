"""SUMMA, as Optimus trains with it: activations and weights cut in two dims."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autoddl.sbp.layers import embeddings
from autoddl.sbp.state import B, NdSbp, S, Sbp
from autoddl.search.baselines.axes import (
    Axes,
    batch,
    columns,
    even,
    layer_states,
    live,
    state,
    subsets,
)
from autoddl.search.baselines.held_states import HeldStates
from autoddl.search.baselines.operand_states import linear_layers_of, operand_states
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
    linear, axes = problem.derived(linear_layers_of), live(problem.mesh.cuts)
    if not linear:
        return []
    tensor = problem.program.tensor
    shapes = {tensor[name].shape for a in linear for name in (a.input, a.op.outputs[0][1])}
    inside = _inside(problem, shapes)
    return [_layout(problem, rows, shapes, inside) for rows in subsets(axes, len(axes) - 1)]


def _inside(
    problem: CostNetwork, shapes: Collection[tuple[int, ...]]
) -> Mapping[str, Mapping[str, int]]:
    """Return the features' dims by op and operand, of what has a layer's input or output shape."""
    program, found = problem.program, dict[str, Mapping[str, int]]()
    others = {p.gradient for p in program.parameters} | {p.tensor for p in program.parameters}
    ops = problem.variables.op
    for op in map(program.ops.__getitem__, ops[ops >= 0].tolist()):
        kept = [(o, program.tensor[t].shape) for o, t in op.operands if t not in others]
        dims = {operand: len(shape) - 1 for operand, shape in kept if shape in shapes}
        if dims and op.phase != "optimizer":
            found[op.name] = dims
    return found


def _layout(
    problem: CostNetwork,
    rows: Axes,
    shapes: Collection[tuple[int, ...]],
    inside: Mapping[str, Mapping[str, int]],
) -> HeldStates:
    """Return the layout whose rows are some axes, and whose columns are the others."""
    program, mesh = problem.program, problem.mesh.cuts
    tensor, widths = program.tensor, {shape[-1] for shape in shapes}

    def cut(name: str, on: Sbp, off: Sbp) -> NdSbp:
        return even(tensor[name].shape, state(mesh, rows, on, off), mesh)

    held = {}
    for name in program.inputs:  # numbers are cut in their last dim as well, ids are not
        shape, dtype = tensor[name].shape, tensor[name].dtype
        features = len(shape) > 1 and dtype.startswith(("float", "bfloat"))
        held[name] = cut(name, S(0) if shape else B, S(len(shape) - 1) if features else B)
    variables = problem.variables
    for node in variables.where("parameter").tolist():
        name = variables.name[node]  # what is added to features or scales them, by the columns
        shape = tensor[name].shape
        held[name] = cut(name, B, S(len(shape) - 1) if shape and shape[-1] in widths else B)
    layers = []
    for layer in (*problem.derived(linear_layers_of), *embeddings(program)):
        held[layer.parameter] = cut(layer.parameter, S(layer.fan_in), S(layer.out))
        by_columns = columns(layer.out, layer.features)
        layers.append((layer, layer_states(mesh, rows, batch(), by_columns)))
    activations = {
        op: {operand: state(mesh, rows, S(0), S(dim)) for operand, dim in dims.items()}
        for op, dims in inside.items()
    }
    return HeldStates(held, {**activations, **operand_states(problem, layers)})
