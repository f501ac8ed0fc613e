"""The choices that a plan has made, in the problem that it solves or one like it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoddl.errors import AutoDDLError
from autoddl.plan.value import PlanValue
from autoddl.search.network.cost_network import CostNetwork


def is_of(plan: PlanValue, problem: CostNetwork) -> bool:
    """Tell whether a plan solves a problem, whatever the prices: one stage of its program on its mesh."""
    same = plan.compute_stream == problem.compute_stream and not plan.pipelined
    same = same and plan.mesh == problem.mesh
    return same and plan.program.fingerprint == problem.program.fingerprint


def choices_of(plan: PlanValue, problem: CostNetwork) -> Iterator[int]:
    """Yield the choice of each variable.

    Raises:
        AutoDDLError: the plan has states that are none of the problem's choices.
    """
    variables, known = problem.variables, dict[int, dict[tuple[object, ...], int]]()
    for kind, name, domain in zip(
        variables.kind.tolist(), variables.name, variables.domain.tolist(), strict=True
    ):
        choices = variables.domains[domain].choices
        operands: Sequence[str] = tuple(choices[0])
        if domain not in known:
            known[domain] = {tuple(c[o] for o in operands): n for n, c in enumerate(choices)}
        sort = variables.kinds[kind]
        if sort == "op":
            key: tuple[object, ...] = tuple(plan.signatures[name][o] for o in operands)
        elif sort == "output":
            key = tuple(choices[0].values())
        else:
            state = (plan.layout.inputs if sort == "input" else plan.variables)[name]
            key = tuple(state for _ in operands)
        if key not in known[domain]:
            raise AutoDDLError(
                f"plan: {sort} {name} has states {', '.join(map(str, key))}, which are "
                "none of those that can be planned; plan again with autoddl.optimize"
            )
        yield known[domain][key]
