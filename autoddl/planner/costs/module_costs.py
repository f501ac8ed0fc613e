"""What each module of a program costs: the rows of a printed plan."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE
from autoddl.plan.value import ModuleCost
from autoddl.planner.costs.staged_assignment import STREAMS, Staged
from autoddl.sbp.layout import OUTPUT
from autoddl.sbp.program import Op
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.search.network.cost_network import CostNetwork, Ints, as_ints
from autoddl.search.network.evaluator import paid_of, unary_of
from autoddl.search.result import Assignment


def module_costs(problem: CostNetwork, assignment: Assignment) -> tuple[ModuleCost, ...]:
    """Sum costs by module; communication counts for the module that wants the other state."""
    net, ops, point = problem.arrays, problem.variables.op, as_ints(assignment)
    row_of, modules = _in_turn(problem)
    compute_s, held = unary_of(net, point)
    paid, paid_s = paid_of(net, point).first(net)
    payers = problem.factors.variable[paid.end]
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
    return tuple([ModuleCost(module, text, c, m, int(size)) for module, text, c, m, size in rows])


def stage_costs(staged: Staged, stage: int) -> tuple[ModuleCost, ...]:
    """Return the same of one stage of a pipeline, for all micro-batches of a step.

    What is in no op of the program counts, too: the forward pass that is run again, copies into buffers,
    sums of gradients. Boxings before a tensor is sent count for the module that makes it.
    """
    program, signatures = staged.program, staged.layout.signatures
    updated = {p.update: p.tensor for p in program.parameters}

    def module(name: str) -> str:
        """Return that of an op, variable or input; of an update that of its parameter."""
        name = updated.get(name, name)
        if name in program.op:
            return program.op[name].module
        return "" if name in program.inputs or name == OUTPUT else name.rpartition(".")[0]

    mine = [item for item in staged.spent if item.stage == stage]
    seconds = {stream: defaultdict[str, float](float) for stream in STREAMS}
    for item in mine:
        seconds[item.stream][module(item.of[0])] += staged.times(item.phase) * item.seconds
    held = defaultdict[str, int](int)
    for maker, size, kind in staged.sizes():
        if staged.stage_of[maker] == stage:
            several = kind == "activation" and stage not in staged.recomputed
            held[module(maker)] += size * (staged.in_flight[stage] if several else 1)
    kind_of = stage, "forward", COMPUTE
    forward = [s for s in staged.planned if (s.stage, s.phase, s.stream) == kind_of]
    dearest_last = sorted(reversed(forward), key=lambda item: item.seconds)
    main = {module(item.of[0]): item.of[0] for item in dearest_last}
    return tuple(
        ModuleCost(
            name or "(graph)",
            _text(program.op[main[name]], signatures[main[name]]) if name in main else "",
            seconds[COMPUTE].get(name, 0.0),
            seconds[BOXING].get(name, 0.0),
            held.get(name, 0),
        )
        for name in dict.fromkeys((*seconds[COMPUTE], *seconds[BOXING], *held))
    )


def _in_turn(problem: CostNetwork) -> tuple[Ints, list[str]]:
    """Return the row of every node's module, and the modules row by row: as in the forward pass."""
    module, names = problem.modules
    by_turn = np.concatenate((module[problem.variables.op >= 0], module))
    _, first = np.unique(by_turn, return_index=True)
    in_turn = by_turn[np.sort(first)]
    row = np.zeros(len(names), dtype=np.int64)
    row[in_turn] = np.arange(len(in_turn))
    return row[module], [names[number] or "(graph)" for number in in_turn.tolist()]


def _texts(problem: CostNetwork, point: Ints, nodes: Ints) -> list[str]:
    """Return "matmul: (S0, B) × (B, S1) → (S0, S1)" for some op nodes."""
    columns, ops = problem.variables, problem.program.ops
    numbers = problem.variables.op[nodes]
    kinds, forms = problem.program.columns.kind[numbers], columns.domain[nodes]
    choices = point[nodes]
    known: dict[tuple[int, ...], str] = {}
    found = []
    for number, *key in np.stack((numbers, kinds, forms, choices), axis=1).tolist():
        alike = tuple(key)
        if alike not in known:
            _, form, choice = alike
            known[alike] = _text(ops[number], columns.domains[form].choices[choice])
        found.append(known[alike])
    return found


def _text(op: Op, states: NdSignature) -> str:
    ins = " × ".join(str(states[o]) for o, _ in op.inputs)
    outs = ", ".join(str(states[o]) for o, _ in op.outputs)
    return f"{op.type}: {ins} → {outs}"
