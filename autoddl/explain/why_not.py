"""Why a tensor is not in some state: what that would cost, or why nothing can put it there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from autoddl.errors import AutoDDLError
from autoddl.explain.alternatives import Alternative, alternative, chosen, domain_of, fixed_steps
from autoddl.explain.asked import Asked, asked_for
from autoddl.explain.reopened import Reopened
from autoddl.explain.words import axis_names, plural
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rules.registry import find
from autoddl.sbp.shards import local_shape
from autoddl.sbp.shares import units
from autoddl.sbp.state import NdSbp
from autoddl.search.budget import Budget
from autoddl.search.network.choices import choices
from autoddl.search.network.wanted_states import Wanted, wanted_states


@dataclass(frozen=True)
class WhyNot:
    """A state that a tensor could have: what it costs beside the plan, or the reason that it can't."""

    tensor: str
    wanted: str
    now: str
    step_s: float
    memory_bytes: int
    reason: str = ""
    cost: Alternative | None = None


def why_not(found: Reopened, name: str, wanted: str, budget: Budget | None) -> WhyNot:
    """Return what a state of a tensor, of a module the result of its main op, would cost.

    What states are `wanted` is said as in pins. Of all choices with one of them that is told whose step
    is the shortest with the rest fixed; re-planned is the shortest of all.

    Raises:
        AutoDDLError: there is no such name, or `wanted` is no state.
    """
    asked = asked_for(found.problem, name)[0]
    domain = domain_of(found, asked)
    try:
        meant = wanted_states(wanted, found.problem.mesh)
    except AutoDDLError as error:
        raise AutoDDLError(f"explain: {error}") from None
    now = domain.choices[chosen(found, asked)][asked.operand]
    plan = found.chosen
    told = WhyNot(asked.tensor, wanted, str(now), plan.step_s, plan.memory.total)
    if meant.has(now):
        return replace(told, reason="the plan has it")
    with_it = [n for n, c in enumerate(domain.choices) if meant.has(c[asked.operand])]
    if not with_it:
        return replace(told, reason=_illegal(found, asked, meant))
    fixed = fixed_steps(found, asked, with_it)
    if not fixed:
        return replace(told, reason="no boxing leads there from its neighbours")
    best = min(fixed, key=lambda choice: fixed[choice].step_s)
    cost = alternative(found, asked, best, fixed=fixed[best], pinned=with_it, budget=budget)
    return replace(told, cost=cost)


def _illegal(found: Reopened, asked: Asked, meant: Wanted) -> str:
    """Return why a tensor can't have a state: of that shape, by the op's rule, or by the engine."""
    problem = found.problem
    mesh, program, engine = problem.mesh, problem.program, problem.setting.engine
    shape, states = program.tensor[asked.tensor].shape, () if meant.others else meant.examples
    uneven = [state for state in states if local_shape(shape, state, mesh.cuts) is None]
    if states and len(uneven) == len(states):
        return _uneven(shape, uneven[0], mesh)
    if asked.kind != "op":
        if any(sbp.is_partial for state in states for sbp in state):
            return f"{asked.kind}s are whole or cut between steps, never parts of a sum"
        return f"nothing reads or updates the {asked.kind} in that state, or it was pinned"
    op = program.op[asked.name]
    free = engine.limits._replace(refused={}, any_order=True, one_axis=frozenset())
    every = choices(program, op, mesh, found.request.lists, found.request.allow, limits=free)
    if any(meant.has(signature[asked.operand]) for signature in every):
        return f"{engine.title} can't execute a {op.type} with that signature, though it is right"
    if find(op.type) is None:
        return f"{op.type} has no rule, so nothing is known but the signature that the plan has"
    possible = domain_of(found, asked).choices
    made = dict.fromkeys(str(signature[asked.operand]) for signature in possible)
    return f"no signature of {op.type} has it; there are {', '.join(made)}"


def _uneven(shape: tuple[int, ...], state: NdSbp, mesh: Mesh) -> str:
    names = axis_names(mesh)
    for sbp in state:
        if sbp.is_split and sbp.dim >= len(shape):
            return f"it has shape {shape}, and no dim {sbp.dim}"
        axes = [axis for axis, each in enumerate(state) if each.dim == sbp.dim and each.is_split]
        count = prod(units(mesh.cuts[axis]) for axis in axes)
        if sbp.is_split and shape[sbp.dim] % count:
            over = " and ".join(plural(names[axis]) for axis in axes)
            by = "units of the " if any(mesh.axes[axis].shares for axis in axes) else ""
            return f"dim {sbp.dim} has {shape[sbp.dim]} elements, which {count} {by}{over} do not divide"
    return f"shape {shape} can't be cut so on mesh {mesh}"
