"""What each module of a program costs: the rows of a printed plan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autoddl.perfmodel.pipeline.pipeline_step import COMPUTE
from autoddl.plan.value import ModuleCost
from autoddl.planner.costs.staged_assignment import Staged
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
    program = staged.program
    compute, communication = dict[str, float](), dict[str, float]()
    main: dict[str, tuple[float, Op]] = {}
    held: dict[str, int] = {}
    count, again = staged.micro_batches, stage in staged.recomputed
    times = {"forward": count * (2 if again else 1), "backward": count, "once": 1}

    def add(seconds: dict[str, float], module: str, spent_s: float) -> None:
        seconds[module] = seconds.get(module, 0.0) + spent_s

    modules = _Modules(staged)
    for op, (where, phase, price) in zip(program.ops, staged.prices[COMPUTE], strict=True):
        if where != stage:
            continue
        module = modules.of_op(op)
        add(compute, module, times[phase] * price.seconds)
        if op.phase == "forward" and price.seconds > main.get(module, (-1.0, op))[0]:
            main[module] = price.seconds, op
    for where, module, phase, spent_s in modules.boxings():
        if where == stage:
            add(communication, module, times[phase] * spent_s)
    for tensor, spent_s in staged.buffered[stage]:
        add(compute, modules.of_tensor(tensor), count * spent_s)
    for tensor, spent_s in staged.sums():
        if staged.where(tensor) == stage:
            add(compute, modules.of_tensor(tensor), count * spent_s)
    for tensor, size, kind in staged.sizes():
        if staged.where(tensor) == stage:
            copies = staged.in_flight[stage] if kind == "activation" and not again else 1
            module = modules.of_tensor(tensor)
            held[module] = held.get(module, 0) + copies * size
    signatures = staged.layout.signatures
    return tuple(
        ModuleCost(
            module or "(graph)",
            _text(main[module][1], signatures[main[module][1].name]) if module in main else "",
            compute.get(module, 0.0),
            communication.get(module, 0.0),
            held.get(module, 0),
        )
        for module in dict.fromkeys((*compute, *communication, *held))
    )


class _Modules:
    """The modules to which the costs of a staged assignment belong."""

    def __init__(self, staged: Staged) -> None:
        self.staged, self.program = staged, staged.program
        self.updated = {p.update: p.tensor for p in self.program.parameters}

    def of_op(self, op: Op) -> str:
        """Return that of an op; of an update that of its parameter."""
        parameter = self.updated.get(op.name)
        return op.module if parameter is None else parameter.rpartition(".")[0]

    def of_tensor(self, name: str) -> str:
        """Return that of what makes a tensor, or stores it."""
        producer = self.program.producer.get(name)
        if producer is not None:
            return self.of_op(producer)
        return "" if name in self.program.inputs else name.rpartition(".")[0]

    def boxings(self) -> Iterator[tuple[int, str, str, float]]:
        """Yield the stage, module, phase and seconds of what is redistributed inside stages or sent."""
        for item, phase, spent_s in self.staged.boxings():
            reader = item.readers[0][0]
            module = "" if reader == OUTPUT else self.of_op(self.program.op[reader])
            yield self.staged.stage(item), module, phase, spent_s
        for sent, phase, spent_s in self.staged.sendings():
            yield sent.source, self.of_tensor(sent.tensor), phase, spent_s


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
