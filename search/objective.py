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
from autoddl.search.columns import Nodes
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
    """What is searched: `problem` has only some choices of a whole one.

    Node n may have `domains[domain[n]]`.
    """

    problem: Problem
    domains: Sequence[Ints]
    domain: Ints

    def whole(self, assignment: Sequence[int]) -> Assignment:
        """Return the assignment of the whole problem that one of the space stands for."""
        begins = np.cumsum([0, *map(len, self.domains)])[self.domain]
        return tuple(np.concatenate(self.domains)[begins + assignment].tolist())


def space(problem: Problem, objective: str) -> Space:
    """Return the space of an objective: the problem itself for the time of a step."""
    nodes = problem.node_columns
    domains = [np.arange(len(form.choices)) for form in nodes.forms]
    if objective == TIME:
        return Space(problem, domains, nodes.form)
    known: dict[int, Ints] = {}
    for number, node in zip(*np.unique(nodes.form, return_index=True), strict=True):
        key = id(nodes.forms[number].choices)
        if key not in known:
            known[key] = _shared(problem, problem.nodes[node])
        domains[number] = known[key]
    fewer = restricted(problem, [domains[number] for number in nodes.form.tolist()])
    return Space(_free(fewer), domains, nodes.form)


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
    nodes, forms = problem.node_columns, []
    for form in nodes.forms:
        nothing = zeros.setdefault(id(form.compute_s), np.zeros(len(form.choices)))
        forms.append(form._replace(compute_s=nothing))
    return replace(problem, nodes=Nodes(nodes._replace(forms=forms)))
