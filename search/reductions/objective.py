"""AutoDDL's objective: the least communication among plans in which devices share all products.

Without a price for compute, plans in which every device does everything would be the best. AutoDDL
rules them out by its signatures, in which all devices share each matrix product (p0 · b · s = P), and
so does this space: a product or convolution leaves each device the fewest flops that are possible.
Other ops are free. They take little of the time, and to have all devices do the same (a norm behind
an all-reduce, as in Megatron) is what spares communication.

Source: AutoDDL §4.2-4.4.
"""

from __future__ import annotations

import numpy as np

from autoddl.perfmodel.roofline import OpWork
from autoddl.sbp.rules.registry import find
from autoddl.search.network.cost_network import CostNetwork, Ints
from autoddl.search.reductions.prices import COMMUNICATION_ONLY
from autoddl.search.reductions.restriction import Restriction

TIME = "time"  # of a step in which ops and boxings overlap
SUM = "sum"  # of compute and communication
COMMUNICATION = "communication"
OBJECTIVES = (TIME, SUM, COMMUNICATION)
PRODUCTS = ("matmul", "conv")  # families of ops
ROUNDING = 1e-9  # relative; by so much flops may seem more


def space(network: CostNetwork, objective: str) -> Restriction:
    """Return the space of an objective: the network itself where compute counts."""
    if objective != COMMUNICATION:
        return Restriction.identity(network)
    variables = network.variables
    first = np.unique(variables.domain, return_index=True)[1]
    shared = {variables.domain[v]: _shared(network, v) for v in first.tolist()}
    found = Restriction.apply(network, [shared[d] for d in variables.domain.tolist()])
    return Restriction(COMMUNICATION_ONLY.apply(found.network), found.domains)


def _shared(network: CostNetwork, variable: int) -> Ints:
    """Return the choices of a product that leave each device the fewest flops, all of other variables."""
    choices, number = network.variables.of(variable).choices, network.variables.op[variable]
    every = np.arange(len(choices))
    if number < 0:
        return every
    op, mesh = network.program.ops[number], network.mesh.cuts
    rule = find(op.type)
    if rule is None or rule.family not in PRODUCTS:
        return every
    flops = np.array([OpWork.of(network.program, op, choice, mesh).flops for choice in choices])
    return np.flatnonzero(flops <= flops.min() * (1 + ROUNDING))
