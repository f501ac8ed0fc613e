"""From an assignment of a problem to a plan: states by name, redistributions, costs by module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoddl.plan import OUTPUT, Estimate, InputPlan, Layer, Plan, Redistribution
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp, broadcast
from autoddl.search.problem import TENSOR, Problem
from autoddl.search.result import SearchResult


def make_plan(
    problem: Problem,
    result: SearchResult,
    *,
    memory_limit_bytes: int | None = None,
    baselines: tuple[Estimate, ...] = (),
    search: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan that an assignment of `problem` stands for."""
    assignment = result.assignment
    program = problem.program
    signatures: dict[str, NdSignature] = {}
    variables: dict[str, NdSbp] = {}
    inputs = []
    one = broadcast(problem.mesh.ndim)
    for node, choice in zip(problem.nodes, assignment, strict=True):
        states = node.choices[choice]
        if node.kind == "op":
            signatures[node.name] = states
            variables |= {
                tensor: states[operand]
                for operand, tensor in program.op[node.name].inputs
                if problem.written.get(tensor) == (node.name, operand)
            }
        elif node.kind == "input":
            shape = program.tensor[node.name].shape
            inputs.append(InputPlan(node.name, shape, states[TENSOR], problem.mesh))
        elif node.kind == "parameter":
            variables[node.name] = states[TENSOR]
    for parameter in program.parameters:
        state = variables[parameter.tensor]
        variables |= dict.fromkeys(parameter.states, state)
        if parameter.update is not None:
            follows = {parameter.tensor, parameter.gradient, *parameter.states}
            operands = program.op[parameter.update].inputs
            signatures[parameter.update] = {o: state if t in follows else one for o, t in operands}
    return Plan(
        fingerprint=program.fingerprint,
        device=program.device,
        mesh=problem.mesh,
        profile=problem.profile.name,
        memory_limit_bytes=memory_limit_bytes,
        signatures=signatures,
        variables=variables,
        inputs=tuple(inputs),
        redistributions=_redistributions(problem, assignment),
        layers=_layers(problem, assignment),
        estimate=estimate("plan", problem, assignment),
        baselines=baselines,
        search=dict(search or {}),
    )


def estimate(name: str, problem: Problem, assignment: tuple[int, ...]) -> Estimate:
    """Return what an assignment costs, under a name for the table."""
    return Estimate(
        name,
        problem.compute_s(assignment),
        problem.communication_s(assignment),
        problem.memory_bytes(assignment),
    )


def _redistributions(problem: Problem, assignment: tuple[int, ...]) -> tuple[Redistribution, ...]:
    program = problem.program
    gradient_reader = {p.tensor: (p.update, p.gradient) for p in program.parameters if p.update}
    found = []
    for edge in problem.edges:
        source = int(edge.source[assignment[edge.producer]])
        wanted: dict[int, list[tuple[str, str]]] = {}
        for index, states in edge.readers:
            node = problem.nodes[index]
            readers = wanted.setdefault(int(states[assignment[index]]), [])
            if node.kind == "op":
                operands = [o for o, t in program.op[node.name].inputs if t == edge.tensor]
                here = [
                    (node.name, o)
                    for o in operands
                    if edge.table.index[node.choices[assignment[index]][o]]
                    == int(states[assignment[index]])
                ]
                readers += [pair for pair in here if pair not in readers]
            elif node.kind == "output":
                readers.append((OUTPUT, ""))
            else:
                update, _ = gradient_reader[node.name]
                operand = next(o for o, t in program.op[update].inputs if t == edge.tensor)
                readers.append((update, operand))
        for goal, readers in wanted.items():
            if goal != source:
                path = edge.table.path(edge.table.states[source], edge.table.states[goal])
                found.append(Redistribution(edge.tensor, path, tuple(readers)))
    return tuple(found)


def _layers(problem: Problem, assignment: tuple[int, ...]) -> tuple[Layer, ...]:
    """Sum costs by module; communication counts for the module that wants the other state."""
    order = sorted(range(len(problem.nodes)), key=lambda i: problem.nodes[i].kind != "op")
    rows = {_module(problem, index): _Row() for index in order}  # in the order of the forward pass
    for index, node in enumerate(problem.nodes):
        row = rows[_module(problem, index)]
        seconds = float(node.compute_s[assignment[index]])
        row.compute_s += seconds
        row.memory_bytes += int(node.memory_bytes[assignment[index]])
        forward = node.kind == "op" and problem.program.op[node.name].phase == "forward"
        if forward and seconds > row.main_s:
            row.main_s, row.main = seconds, index
    for edge in problem.edges:
        source = edge.source[assignment[edge.producer]]
        charged: set[int] = set()
        for reader, states in edge.readers:
            goal = int(states[assignment[reader]])
            if goal not in charged:
                charged.add(goal)
                row = rows[_module(problem, reader)]
                row.communication_s += float(edge.table.cost[source, goal])
    return tuple(
        Layer(
            module,
            "" if row.main < 0 else _signature_text(problem, assignment, row.main),
            row.compute_s,
            row.communication_s,
            row.memory_bytes,
        )
        for module, row in rows.items()
    )


@dataclass
class _Row:
    compute_s: float = 0.0
    communication_s: float = 0.0
    memory_bytes: int = 0
    main: int = -1
    main_s: float = -1.0


def _signature_text(problem: Problem, assignment: tuple[int, ...], index: int) -> str:
    """Return "matmul: (S0, B) × (B, S1) → (S0, S1)" for an op node."""
    node = problem.nodes[index]
    op = problem.program.op[node.name]
    states = node.choices[assignment[index]]
    ins = " × ".join(str(states[o]) for o, _ in op.inputs)
    outs = ", ".join(str(states[o]) for o, _ in op.outputs)
    return f"{op.type}: {ins} → {outs}"


def _module(problem: Problem, index: int) -> str:
    node = problem.nodes[index]
    if node.kind == "op":
        return problem.program.op[node.name].module or "(graph)"
    return node.name.rpartition(".")[0] if node.kind == "parameter" else "(graph)"
