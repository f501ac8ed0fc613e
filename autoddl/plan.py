"""A plan: which state every tensor has on the mesh, what it costs, and how to run it.

Plans are frozen values, saved as versioned JSON and tied to the fingerprint of their graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp, broadcast, shard_slices
from autoddl.search.problem import TENSOR, Problem
from autoddl.search.result import SearchResult

if TYPE_CHECKING:
    from autoddl.engine.step import Step

FORMAT = "autoddl.plan"
FORMAT_VERSION = 1
OUTPUT = "output"  # stands for the graph's outputs among the readers of a redistribution


@dataclass(frozen=True)
class InputPlan:
    """One input of the graph: its logical shape and its state on the mesh."""

    name: str
    shape: tuple[int, ...]
    state: NdSbp
    mesh: Mesh

    def local_slice(self, rank: int) -> tuple[slice, ...]:
        """Return which part of the logical batch a rank needs, one slice per dim."""
        return shard_slices(self.shape, self.state, self.mesh.shape, self.mesh.coords(rank))


@dataclass(frozen=True)
class Redistribution:
    """A tensor that some readers want in another state: the states after each boxing.

    `readers` are (op, operand) pairs, or (OUTPUT, "") for what the graph returns.
    """

    tensor: str
    path: tuple[NdSbp, ...]
    readers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Layer:
    """One row of the table: a module, the signature of its main op, seconds and bytes per device."""

    module: str
    signature: str
    compute_s: float
    communication_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Estimate:
    """What one assignment costs per step and device, under the plan's profile."""

    name: str
    compute_s: float
    communication_s: float
    memory_bytes: int

    @property
    def step_s(self) -> float:
        """Return compute plus communication, in seconds."""
        return self.compute_s + self.communication_s


@dataclass(frozen=True)
class Plan:
    """States for all tensors of one program on one mesh, with their predicted costs.

    `signatures` maps ops to operand states, `variables` parameters and optimizer states to theirs.
    `search` tells how the plan was found (solver, seed, seconds, lower bound).
    """

    fingerprint: str
    device: str
    mesh: Mesh
    profile: str
    memory_limit_bytes: int | None
    signatures: Mapping[str, NdSignature]
    variables: Mapping[str, NdSbp]
    inputs: tuple[InputPlan, ...]
    redistributions: tuple[Redistribution, ...]
    layers: tuple[Layer, ...]
    estimate: Estimate
    baselines: tuple[Estimate, ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, graph: Any) -> Step:
        """Return a callable with the graph's signature that runs this plan on all ranks.

        Call it on every rank, before the first step. The model's parameters become global tensors.

        Raises:
            AutoDDLError: the plan is for another graph, device type or number of ranks.
        """
        from autoddl.engine.step import Step

        return Step(self, graph)

    def check_graph(self, program: Program) -> None:
        """Raise AutoDDLError where `program` is not the one that was planned."""
        if program.device != self.device:
            raise AutoDDLError(
                f"plan: made for device type {self.device!r}, the graph is on {program.device!r}, "
                "whose ops differ; plan again on the cluster, it takes seconds"
            )
        if program.fingerprint != self.fingerprint:
            raise AutoDDLError(
                f"plan: made for graph {self.fingerprint}, this graph is {program.fingerprint} "
                f"({_difference(self, program)}); plan again with autoddl.optimize"
            )

    def save(self, path: str | Path) -> None:
        """Write the plan as versioned JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Return the versioned JSON form."""
        from autoddl import plan_json

        return plan_json.encode(self)

    def __str__(self) -> str:
        from autoddl.table import plan_table

        return plan_table(self)


def load(path: str | Path) -> Plan:
    """Read a plan that `Plan.save` wrote.

    Raises:
        AutoDDLError: the file is missing, truncated, no plan, or of another version.
    """
    from autoddl import plan_json

    try:
        data = json.loads(Path(path).read_text())
    except (OSError, TypeError, ValueError) as error:
        raise AutoDDLError(f"plan file {path}: {error}; plan again with autoddl.optimize") from None
    return plan_json.decode(data, f"plan file {path}")


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


def _difference(plan: Plan, program: Program) -> str:
    """Say in a few words how a program differs from the planned one."""
    for item in plan.inputs:
        tensor = program.tensor.get(item.name)
        if tensor is None:
            return f"it has no input {item.name}"
        if tensor.shape != item.shape:
            return f"input {item.name} has shape {tensor.shape}, planned was {item.shape}"
    ops, planned = set(program.op), set(plan.signatures)
    if ops != planned:
        extra, missing = sorted(ops - planned), sorted(planned - ops)
        return f"op {extra[0]} is new" if extra else f"op {missing[0]} is gone"
    return "shapes or attributes differ"
