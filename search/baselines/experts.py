"""Expert parallelism: experts on different devices, tokens sent to them and back."""

from __future__ import annotations

from collections.abc import Sequence

from autoddl.sbp.layers import expert_layers
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import B, S
from autoddl.search.baselines.axes import OneAxis, batch, layer_states, live, state, subsets
from autoddl.search.baselines.data_parallel import data_parallel
from autoddl.search.baselines.held_states import HeldStates
from autoddl.search.baselines.operand_states import linear_layers_of, operand_states
from autoddl.search.network.cost_network import CostNetwork

EXPERTS = OneAxis(*[S(0)] * 6)  # the experts are dim 0 of weights, tokens and results


def expert_parallel(problem: CostNetwork) -> Sequence[HeldStates]:
    """Return the layouts with experts cut over some axes, and data parallelism for all else.

    Experts are parameters (experts, in, out) that batched products of (experts, tokens, in) read.
    Their weights stay where they are; tokens, which data parallelism cuts in the batch, are sent to
    their experts by all-to-all, and so are the results and both gradients. On axes that do not
    cut the experts the tokens of an expert stay cut, and its gradient is all-reduced. All choices of
    axes whose devices divide the experts are tried; without experts there is none.

    Source: GShard (Lepikhin et al. 2021) §3; Switch Transformers (Fedus et al. 2022) §5.
    """
    program, mesh = problem.program, problem.mesh.cuts
    layers, axes = expert_layers(program), live(mesh)
    if not layers:
        return []
    (whole,) = data_parallel(problem)
    others = [
        (a, layer_states(mesh, axes, batch(), batch())) for a in problem.derived(linear_layers_of)
    ]
    layouts = []
    for some in subsets(axes, len(axes)):
        weights = {layer.parameter: state(mesh, some, S(0), B) for layer in layers}
        if all(local_shape(program.tensor[w].shape, s, mesh) for w, s in weights.items()):
            experts = [(a, layer_states(mesh, some, EXPERTS, batch(1))) for a in layers]
            operands = operand_states(problem, [*others, *experts])
            layouts.append(HeldStates({**whole.held, **weights}, operands))
    return layouts
