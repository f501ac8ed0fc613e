"""AutoDDL's objective: the least communication among plans in which devices share all products.

Without a price for compute, plans in which every device does everything would be the best. AutoDDL
rules them out by its signatures, in which all devices share each matrix product (p0 · b · s = P), and
so does this space: a product or convolution leaves each device the fewest flops that are possible.
Other ops are free. They take little of the time, and to have all devices do the same (a norm behind
an all-reduce, as in Megatron) is what spares communication.

Source: AutoDDL §4.2-4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoddl.perfmodel.compute import local_flops
from autoddl.sbp.rules.registry import find
from autoddl.search.problem import Floats, Ints, Node, Problem
from autoddl.search.restrict import restricted
from autoddl.search.result import Assignment

TIME = "time"
COMMUNICATION = "communication"
OBJECTIVES = (TIME, COMMUNICATION)
PRODUCTS = ("matmul", "conv")  # families of ops
ROUNDING = 1e-9  # relative; by so much flops may seem more


@dataclass(frozen=True, eq=False)
class Space:
    """What is searched: `problem` has the choices `domains`, by node, of a whole one; None are all."""

    problem: Problem
    domains: tuple[Ints, ...] | None = None

    def whole(self, assignment: Sequence[int]) -> Assignment:
        """Return the assignment of the whole problem that one of the space stands for."""
        if self.domains is None:
            return tuple(assignment)
        pairs = zip(self.domains, assignment, strict=True)
        return tuple(int(domain[choice]) for domain, choice in pairs)


def space(problem: Problem, objective: str) -> Space:
    """Return the space of an objective: the problem itself for the time of a step."""
    if objective == TIME:
        return Space(problem)
    known: dict[int, Ints] = {}
    domains = []
    for node in problem.nodes:
        key = id(node.choices)
        if key not in known:
            known[key] = _shared(problem, node)
        domains.append(known[key])
    return Space(_free(restricted(problem, domains)), tuple(domains))


def _shared(problem: Problem, node: Node) -> Ints:
    """Return the choices of a product that leave each device the fewest flops, all of other nodes."""
    every = np.arange(len(node.choices))
    if node.kind != "op":
        return every
    op, mesh = problem.program.op[node.name], problem.mesh.shape
    rule = find(op.type)
    if rule is None or rule.family not in PRODUCTS:
        return every
    flops = np.array([local_flops(problem.program, op, choice, mesh) for choice in node.choices])
    return np.flatnonzero(flops <= flops.min() * (1 + ROUNDING))


def _free(problem: Problem) -> Problem:
    """Return the problem with no price for compute; nodes that share arrays still do."""
    zeros: dict[int, Floats] = {}
    nodes = []
    for node in problem.nodes:
        nothing = zeros.setdefault(id(node.compute_s), np.zeros(len(node.choices)))
        nodes.append(replace(node, compute_s=nothing))
    return replace(problem, nodes=tuple(nodes))
