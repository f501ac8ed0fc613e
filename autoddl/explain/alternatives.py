"""Why an op has its signature: what the step would take with others, and what decides.

Each other signature has two numbers. With the rest *fixed* all other ops keep theirs, and only the
redistributions around follow, which misleads where neighbours would follow, too. *Re-planned* is the best
that a search finds in which this one op has that signature, or the fixed one where that is shorter.

    fc1 cut by columns, the rest as planned: + 3.1 ms; fc2 then goes by rows: + 0.2 ms
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.calls import uncollected
from autoddl.errors import InfeasibleError
from autoddl.explain.asked import Asked, asked_for
from autoddl.explain.certainty import are_tied
from autoddl.explain.reopened import Reopened
from autoddl.explain.waits import COMPUTE, links_s
from autoddl.explain.words import words_of
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.solve import ProblemSearch
from autoddl.search.budget import Budget
from autoddl.search.network.cost_network import Domain
from autoddl.search.reductions.restriction import Restriction, everything

SHOWN = 3  # others that are re-planned
MEMORY, COMMUNICATION, NOTHING = "memory", "communication", "nothing"
NO_BUDGET, NO_ROOM = "not re-planned", "no plan with it fits into memory"


@dataclass(frozen=True)
class Alternative:
    """Another choice: the step with the rest fixed and its memory, the step re-planned, or why not.

    What `decides` against it is communication, compute or memory, by the re-planned step if there is one,
    or nothing where it is as short. It is `tied` where the calibration can't tell the two apart.
    """

    signature: str
    words: str
    fixed_s: float
    fixed_bytes: int
    fits: bool
    replanned_s: float | None
    note: str
    decides: str
    tied: bool

    @property
    def step_s(self) -> float:
        """Return the step re-planned, with the rest fixed where it was not."""
        return self.fixed_s if self.replanned_s is None else self.replanned_s


@dataclass(frozen=True)
class Why:
    """What was chosen for an op, input or parameter among so many `choices`, and the best others."""

    name: str
    signature: str
    words: str
    choices: int
    step_s: float
    memory_bytes: int
    others: tuple[Alternative, ...]


def why(found: Reopened, name: str, budget: Budget | None) -> tuple[Why, ...]:
    """Return why the main ops of a module, or a tensor, have their states.

    Others come by their steps with the rest fixed. A search for each of the first is given the `budget`,
    none if that is None.

    Raises:
        AutoDDLError: there is no such name.
    """
    return tuple(_why(found, asked, budget) for asked in asked_for(found.problem, name))


def _why(found: Reopened, asked: Asked, budget: Budget | None) -> Why:
    now, domain = chosen(found, asked), domain_of(found, asked)
    fixed = fixed_steps(found, asked)
    del fixed[now]
    best = sorted(fixed, key=lambda choice: fixed[choice].step_s)[:SHOWN]
    return Why(
        asked.name, text(found, asked, now), words(found, asked, now), len(domain.choices),
        found.chosen.step_s, found.chosen.memory.total,
        tuple(alternative(found, asked, n, fixed=fixed[n], pinned=[n], budget=budget) for n in best),
    )  # fmt: skip


def chosen(found: Reopened, asked: Asked) -> int:
    """Return the plan's choice of a variable."""
    return int(found.chosen.assignment[found.simulated[asked[:2]]])


def domain_of(found: Reopened, asked: Asked) -> Domain:
    """Return what a variable chooses from."""
    return found.problem.variables.of(found.variables[asked[:2]])


def fixed_steps(
    found: Reopened, asked: Asked, some: Sequence[int] | None = None
) -> dict[int, Assigned]:
    """Return the plan with other choices of a variable, those to and from which boxings lead."""
    every = range(len(domain_of(found, asked).choices)) if some is None else some
    tried = {choice: found.with_choice(asked[:2], choice) for choice in every}
    return {n: one for n, one in tried.items() if math.isfinite(sum(one.costs_s))}


def alternative(
    found: Reopened, asked: Asked, choice: int, *, fixed: Assigned, pinned: Sequence[int],
    budget: Budget | None,
) -> Alternative:  # fmt: skip
    """Return what a choice would cost; re-planned is the best step with any of the `pinned` ones."""
    limit = found.request.limit_bytes
    fits = limit is None or fixed.memory_bytes <= limit
    again, note = None, NO_BUDGET
    if budget is not None:
        again = replanned(found, asked, pinned, budget)
        if fits and (again is None or fixed.step_s < again.step_s):
            again = fixed
        note = NO_ROOM if again is None else ""
    judged = fixed if again is None else again
    decides = (
        MEMORY if note == NO_ROOM or (again is None and not fits) else decider(found.chosen, judged)
    )
    return Alternative(
        text(found, asked, choice), words(found, asked, choice), fixed.step_s, fixed.memory.total,
        fits, None if again is None else again.step_s, note, decides, are_tied(found.chosen, judged),
    )  # fmt: skip


def replanned(
    found: Reopened, asked: Asked, pinned: Sequence[int], budget: Budget
) -> Assigned | None:
    """Return the best plan that a search finds in which a variable has one of some choices.

    It is the search of `optimize` for a plan without stages on this mesh. None: nothing fits into memory.
    """
    problem, domains = found.problem, everything(found.problem)
    domains[found.variables[asked[:2]]] = np.array(pinned, dtype=np.int64)
    part = Restriction.apply(problem, domains).network
    one = Candidate(1, 1, problem.mesh, problem.setting.streams)
    with uncollected():
        try:
            solution = ProblemSearch(part, found.request, budget.begin()).solution(one)
        except InfeasibleError:
            return None
    return solution.found.assigned(0)


def decider(plan: Assigned, other: Assigned) -> str:
    """Return what takes most of the seconds that another step is longer."""
    if other.step_s <= plan.step_s * (1 + 1e-9):
        return NOTHING
    before, after = parts_s(plan), parts_s(other)
    return max(before, key=lambda part: after[part] - before[part])


def parts_s(one: Assigned) -> Mapping[str, float]:
    """Return the seconds of a step in which it waits for compute, and for communication."""
    if one.problem.compute_stream:
        return dict(zip((COMPUTE, COMMUNICATION), one.costs_s, strict=True))
    compute_s = links_s(one.timeline)[COMPUTE]
    return {COMPUTE: compute_s, COMMUNICATION: one.step_s - compute_s}


def text(found: Reopened, asked: Asked, choice: int) -> str:
    """Return a choice as states: of an op "matmul: (S0) × (B) → (S0)"."""
    states = domain_of(found, asked).choices[choice]
    if asked.kind != "op":
        return str(states[asked.operand])
    op = found.plan.program.op[asked.name]
    ins, outs = ([str(states[o]) for o, _ in side] for side in (op.inputs, op.outputs))
    return f"{op.type}: {' × '.join(ins)} → {', '.join(outs)}"


def words(found: Reopened, asked: Asked, choice: int) -> str:
    """Return what an op does under a choice; of an input or parameter nothing more than its state."""
    if asked.kind != "op":
        return ""
    op, problem = found.plan.program.op[asked.name], found.problem
    states = domain_of(found, asked).choices[choice]
    return str(words_of(problem.program, op, states, problem.mesh, found.plan.variables))
