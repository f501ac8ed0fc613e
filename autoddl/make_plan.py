"""From an assignment of a problem to a plan: states by name, redistributions, costs by module."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.layouts import assigned_layout
from autoddl.perfmodel.memory import Layout
from autoddl.perfmodel.memory import estimate as estimate_memory
from autoddl.perfmodel.timeline import Prediction, predict
from autoddl.plan import Estimate, InputPlan, Layer, Plan
from autoddl.redistributions import Redistributions, redistributions_of
from autoddl.sbp.program import Op
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.search.columns import ints
from autoddl.search.problem import Ints, Problem
from autoddl.search.result import Assignment, SearchResult
from autoddl.steps import Step

_ROUNDS = 5  # searches until the whole memory fits


def make_plan(
    problem: Problem,
    result: SearchResult,
    *,
    memory_limit_bytes: int | None = None,
    baselines: Sequence[Estimate] = (),
    search: Mapping[str, Any] | None = None,
    assigned: Assigned | None = None,
) -> Plan:
    """Return the plan that an assignment of `problem` stands for; `assigned` if that is known."""
    assignment, program = result.assignment, problem.program
    assigned = assigned or Assigned(problem, assignment)
    layout = assigned.layout
    inputs = tuple(
        InputPlan(name, program.tensor[name].shape, state, problem.mesh)
        for name, state in layout.inputs.items()
    )
    return Plan(
        fingerprint=program.fingerprint,
        device=program.device,
        mesh=problem.mesh,
        profile=problem.profile.name,
        memory_limit_bytes=memory_limit_bytes,
        signatures=layout.signatures,
        variables=layout.variables,
        inputs=inputs,
        redistributions=assigned.redistributions,
        layers=_layers(problem, assignment),
        estimate=assigned.estimate("plan"),
        baselines=baselines,
        search=dict(search or {}),
        compute_stream=problem.compute_stream,
        program=program,
    )


def layout_of(plan: Plan) -> Layout:
    """Return the states of all tensors of a plan, as the memory model wants them."""
    inputs = {item.name: item.state for item in plan.inputs}
    return Layout(plan.signatures, plan.variables, inputs, plan.redistributions)


def estimate(name: str, problem: Problem, assignment: tuple[int, ...]) -> Estimate:
    """Return what an assignment costs, under a name for the table."""
    return Assigned(problem, assignment).estimate(name)


class Assigned:
    """An assignment of a problem; what it stands for and costs is computed when it is asked for."""

    def __init__(self, problem: Problem, assignment: Sequence[int]) -> None:
        self.problem, self.assignment = problem, tuple(assignment)

    @cached_property
    def layout(self) -> Layout:
        """Return the states of all tensors."""
        return assigned_layout(self.problem, self.assignment, self.redistributions)

    @cached_property
    def redistributions(self) -> Redistributions:
        """Return what readers want in another state, edge by edge."""
        return redistributions_of(self.problem, self.assignment)

    @cached_property
    def prediction(self) -> Prediction:
        """Return what its step costs, and takes when ops and boxings overlap."""
        problem = self.problem
        if not problem.compute_stream:
            return self.step.prediction
        return predict(
            problem.program, problem.mesh, problem.profile, self.layout, prices=problem.prices,
            compute_stream=True,
        )  # fmt: skip

    @cached_property
    def step(self) -> Step:
        """Return its step, in which ops and boxings overlap."""
        return Step(self.problem, self.assignment)

    @cached_property
    def memory_bytes(self) -> int:
        """Return the bytes on the device that needs most, whole (Problem sums up a part)."""
        problem = self.problem
        return estimate_memory(
            problem.program, problem.mesh.shape, self.layout, sizes=problem.sizes,
            compute_stream=problem.compute_stream,
        ).total  # fmt: skip

    @cached_property
    def costs_s(self) -> tuple[float, float]:
        """Return the seconds of compute and of communication."""
        problem = self.problem
        return problem.compute_s(self.assignment), problem.communication_s(self.assignment)

    @property
    def step_s(self) -> float:
        """Return the seconds of a step: compute plus communication, less what overlaps."""
        return sum(self.costs_s) - self.prediction.overlap_s

    @property
    def least_step_s(self) -> float:
        """Return a bound on `step_s` that needs no simulation."""
        return self.step.least_s

    def estimate(self, name: str) -> Estimate:
        """Return a row for the table."""
        found = self.prediction
        return Estimate(
            name, *self.costs_s, self.memory_bytes,
            uncertainty_s=found.uncertainty_s, overlap_s=found.overlap_s,
        )  # fmt: skip


def within_memory(
    problem: Problem,
    find: Callable[[int | None], SearchResult],
    limit: int | None,
    *,
    chooses: bool,
    memory: Callable[[Assignment], int],
    most: float = math.inf,
) -> SearchResult:
    """Return what a search finds whose whole memory is within a limit.

    `find` searches under a limit on the part of the memory that can be summed up op by op. Where the
    whole is too large the search is repeated with less for that part, down to the least there is; the
    lower bound stays that of the first search. `memory` returns the whole of an assignment, in bytes;
    where that is more than `most` times the limit the search is given up.

    Raises:
        InfeasibleError: nothing is found that fits, or a baseline, which has no choice, does not.
    """
    if limit is None:
        return find(None)
    bound, needed, least_s, given_up = limit, [], np.inf, False
    for _ in range(_ROUNDS):
        result = find(bound)
        least_s = min(least_s, result.lower_bound_s)
        needed.append(memory(result.assignment))
        if needed[-1] <= limit:
            return replace(result, lower_bound_s=least_s)
        given_up = needed[-1] > most * limit
        if given_up or not chooses or bound == problem.least_memory_bytes:
            break
        tighter = min(bound, result.memory_bytes) - (needed[-1] - limit)
        last = len(needed) == _ROUNDS - 1
        bound = problem.least_memory_bytes if last else max(tighter, problem.least_memory_bytes)
    what = "the plan with the least memory that was found" if chooses else result.solver
    remedy = "or a smaller batch" if chooses else "or plan with search='coordinate'"
    error = InfeasibleError(
        f"memory {limit:,} B per device on mesh {problem.mesh}: {what} needs {min(needed):,} B, "
        f"{min(needed) - limit:,} B more; give more memory or devices, {remedy}"
    )
    error.needed_bytes, error.hopeless = min(needed), given_up
    raise error


def _layers(problem: Problem, assignment: tuple[int, ...]) -> tuple[Layer, ...]:
    """Sum costs by module; communication counts for the module that wants the other state."""
    flat, ops, point = problem.flat, problem.ops, ints(assignment)
    row_of, modules = _in_turn(problem)
    compute_s, held = flat.compute_s(point), flat.memory_bytes(point)
    payers, paid_s = flat.payments(point)
    sums = [
        np.bincount(numbers, weights=values, minlength=len(modules)).tolist()
        for numbers, values in ((row_of, compute_s), (row_of[payers], paid_s), (row_of, held))
    ]
    forward = np.flatnonzero(np.append(problem.program.columns.phase, "")[ops] == "forward")
    dearest = forward[np.lexsort((-compute_s[forward], row_of[forward]))]
    with_main, where = np.unique(row_of[dearest], return_index=True)
    texts = np.full(len(modules), "", dtype=object)
    texts[with_main] = _texts(problem, point, dearest[where])
    rows = zip(modules, texts.tolist(), *sums, strict=True)
    return tuple([Layer(module, text, c, m, int(size)) for module, text, c, m, size in rows])


def _in_turn(problem: Problem) -> tuple[Ints, list[str]]:
    """Return the row of every node's module, and the modules row by row: as in the forward pass."""
    module, names = problem.modules
    by_turn = np.concatenate((module[problem.ops >= 0], module))
    _, first = np.unique(by_turn, return_index=True)
    in_turn = by_turn[np.sort(first)]
    row = np.zeros(len(names), dtype=np.int64)
    row[in_turn] = np.arange(len(in_turn))
    return row[module], [names[number] or "(graph)" for number in in_turn.tolist()]


def _texts(problem: Problem, point: Ints, nodes: Ints) -> list[str]:
    """Return "matmul: (S0, B) × (B, S1) → (S0, S1)" for some op nodes."""
    columns, ops = problem.node_columns, problem.program.ops
    numbers = problem.ops[nodes]
    kinds, forms = problem.program.columns.kind[numbers], columns.form[nodes]
    choices = point[nodes]
    known: dict[tuple[int, ...], str] = {}
    found = []
    for number, *key in np.stack((numbers, kinds, forms, choices), axis=1).tolist():
        alike = tuple(key)
        if alike not in known:
            _, form, choice = alike
            known[alike] = _text(ops[number], columns.forms[form].choices[choice])
        found.append(known[alike])
    return found


def _text(op: Op, states: NdSignature) -> str:
    ins = " × ".join(str(states[o]) for o, _ in op.inputs)
    outs = ", ".join(str(states[o]) for o, _ in op.outputs)
    return f"{op.type}: {ins} → {outs}"
