"""HiDup's search: states of tensors for two halves of a batch that run in turn, on one mesh axis.

Its own model of a step decides the signatures of the ops of the forward pass; exact search completes
them with what costs least in all: the signatures of the backward pass, how parameters are kept, ops
beside the chain. It proves nothing: the bound that is returned is that of compute alone.

Source: HiDup §4.
"""

from __future__ import annotations

from dataclasses import replace

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.search.baselines.axes import live
from autoddl.search.exact import primal_dual as exact
from autoddl.search.incumbent import Incumbent
from autoddl.search.network.cost_network import CostNetwork, ints
from autoddl.search.reductions.restriction import Restriction, everything
from autoddl.search.result import DEFAULTS, SearchOptions, SearchResult
from autoddl.search.rivals.hidup import pareto
from autoddl.search.rivals.hidup.forward_chain import forward_chain


def search(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> SearchResult:
    """Return HiDup's assignment, or the cheapest of the starts where one is cheaper.

    The budget is that of what completes it; the seed has no effect.

    Raises:
        AutoDDLError: the mesh has two axes and more, or the program is no training step.
        InfeasibleError: what it chooses does not fit into the memory, which its model does not know.
    """
    if len(live(problem.mesh.cuts)) > 1:
        raise AutoDDLError(
            f"search: got 'hidup' on mesh {problem.mesh}; it splits tensors over one axis of a mesh"
        )
    run = Incumbent(problem, options)
    for start in options.starts:
        run.offer(start)
    made = problem.derived(forward_chain)
    assignment = pareto.search(made.chain)
    domains = everything(problem)
    for variable, choice in made.chosen(assignment):
        domains[variable] = ints([choice])
    space = Restriction.apply(problem, domains)
    left = replace(options, budget=run.left_s(), starts=(), progress=None)
    try:
        rest = exact.search(space.network, left)
    except InfeasibleError as error:
        if run.best is None:
            raise InfeasibleError(
                f"search='hidup', which does not know of memory, chooses what does not fit: {error}"
            ) from None
    else:
        run.offer(space.invert(rest.assignment))
        run.evaluations += assignment.kept + rest.evaluations
    return run.result("hidup")
