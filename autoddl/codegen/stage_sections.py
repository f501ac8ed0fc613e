"""The stages of a plan: what each computes, receives and sends.

Example: of blocks 0 to 3 in two stages the second has the argument x, which arrives as blocks_1 in the
state that the plan says, and the result loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoddl.codegen.forward.section import Section, Value, forward_ops
from autoddl.codegen.script_facts import Input
from autoddl.codegen.source.identifiers import first_free, identifier
from autoddl.errors import AutoDDLError
from autoddl.plan.parts import Transfer
from autoddl.plan.value import PlanValue
from autoddl.sbp.rewrites.recomputation import can_repeat
from autoddl.sbp.state import NdSbp

LOSS = "loss"


@dataclass(frozen=True)
class Sent:
    """A tensor on its way from one stage to another: its name in the script, its states at both ends."""

    name: str
    transfer: Transfer
    source: int
    state: NdSbp
    arrival: NdSbp


@dataclass(frozen=True)
class StageSection:
    """One stage: its part of the forward pass; names of what goes in and out, in order."""

    section: Section
    arguments: Mapping[str, str]
    results: tuple[str, ...]

    @property
    def argument_names(self) -> dict[str, str]:
        """Return how the stage's function calls its arguments: x what alone comes from another stage."""
        names = dict(self.arguments)
        arrived = [tensor for tensor in names if tensor in self.section.program.producer]
        if len(arrived) == 1 and "x" not in names.values():
            names[arrived[0]] = "x"
        return names


class StageSections:
    """All stages of a plan with a pipeline."""

    def __init__(self, plan: PlanValue, inputs: Sequence[Input], top: str) -> None:
        self.plan, self.program = plan, plan.program
        self.inputs, self.top = inputs, top
        self.sent = self._sent()
        self.stages = tuple(self._stage(number) for number in range(len(plan.parts)))

    @property
    def loss_state(self) -> NdSbp:
        """Return the state of the loss, on the stage that makes it."""
        stage = next(stage for stage in self.stages if LOSS in stage.results)
        section = stage.section
        return section.state(section.results[stage.results.index(LOSS)])

    def stage_of(self, tensor: str) -> int:
        """Return the stage that makes a tensor, or stores it."""
        producer = self.program.producer.get(tensor)
        name = tensor if producer is None else producer.name
        if name not in self.plan.stage_of:
            raise AutoDDLError(f"codegen: the plan's pipeline has no stage for {name}; plan again")
        return self.plan.stage_of[name]

    def _sent(self) -> tuple[Sent, ...]:
        """Return the transfers of the forward pass, named after the modules that make the tensors."""
        forward = {t for op in forward_ops(self.program) for _, t in op.operands}
        found: list[Sent] = []
        names: dict[Value, str] = {}
        for transfer in self.plan.transfers:
            source = self.stage_of(transfer.tensor)
            if transfer.tensor not in forward or transfer.target <= source:
                continue
            value = Value(transfer.tensor, transfer.path)
            if value not in names:
                names[value] = self._name(transfer.tensor, set(names.values()))
            made = self.plan.layout.made[transfer.tensor]
            ends = transfer.sent(made), transfer.arrived(made)
            found.append(Sent(names[value], transfer, source, *ends))
        return tuple(sorted(found, key=lambda s: (s.source, s.transfer.target)))

    def _name(self, tensor: str, taken: set[str]) -> str:
        for item in self.inputs:
            if item.tensor == tensor:
                return item.name
        producer = self.program.producer.get(tensor)
        path = tensor if producer is None else producer.module
        words = path.split(".")
        if words and words[0] == self.top:
            words = words[1:]
        name = identifier("_".join(words)) if words else "x"
        return first_free([name], {*taken, LOSS, *(item.name for item in self.inputs)}, joint="_")

    def _stage(self, number: int) -> StageSection:
        ops = [op for op in forward_ops(self.program) if self.stage_of(op.outputs[0][1]) == number]
        state = {item.name: item.state for item in self.plan.inputs}
        names: dict[str, str] = {}
        arguments: dict[str, NdSbp] = {}
        for item in self.inputs:
            if self.stage_of(item.tensor) == number:
                arguments[item.tensor], names[item.tensor] = state[item.tensor], item.name
        for sent in self.sent:
            if sent.transfer.target == number:
                tensor = sent.transfer.tensor
                arguments[tensor], names[tensor] = sent.arrival, sent.name
        results = {
            Value(s.transfer.tensor, s.transfer.path): s.name
            for s in self.sent
            if s.source == number
        }
        loss = self.program.loss
        assert loss is not None
        section = Section(self.plan, ops, arguments, ())
        if self.stage_of(loss) == number:
            outputs = [section.output(t) for t in self.program.outputs]
            found = next((v for v in outputs if v.tensor == loss), Value(loss))
            results[found] = LOSS
        section = Section(self.plan, ops, arguments, results, number)
        return StageSection(section, names, tuple(results.values()))


def check_stages(plan: PlanValue) -> None:
    """Raise AutoDDLError where a pipeline can't be written."""
    if any(group.clip for group in plan.program.groups):
        raise AutoDDLError(
            "codegen: gradients are clipped by their norm, which generated scripts do without stages "
            "only; plan with pipeline=1, or without clipping"
        )
    for op in plan.program.ops:
        stage = plan.stage_of[op.name]
        if op.phase == "forward" and plan.parts[stage].recomputed and not can_repeat(op):
            raise AutoDDLError(
                f"codegen: stage {stage} is computed twice, but {op.name} would not do the same again; "
                "plan without recomputing it"
            )
