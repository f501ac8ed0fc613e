"""Write the stages of a plan into a job: devices of every op, transfers, buffers.

Any op can be on any stage: the job says on which devices it runs, and what it reads from another
stage arrives through an identity op there, in the state in which it left. A forward result that the
backward pass reads later goes through a buffer with room for the micro-batches that are in flight in
its stage; without buffers there would be only one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoddl.engine.oneflow.capture.op_names import SCALING, neutral_name
from autoddl.engine.oneflow.job import accumulation
from autoddl.engine.oneflow.job.job_writer import JobWriter, write_signature
from autoddl.plan.value import PlanValue
from autoddl.sbp.layout import Reader, Redistribution
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.recomputation import can_repeat
from autoddl.sbp.rewrites.tied_sums import is_late
from autoddl.sbp.state import NdSbp

BUFFER = "autoddl-buffer-"
AGAIN = "autoddl-again-"  # before the names of ops that make a forward result once more


class StageWriter:
    """Edits a job that was traced with all ops on all ranks, in one axis."""

    def __init__(self, writer: JobWriter, plan: PlanValue, program: Program) -> None:
        self.writer, self.plan, self.program = writer, plan, program
        self.parts, self.stage_of, self.job = plan.parts, plan.stage_of, writer.job
        self.groups: list[Any] = []  # of ops, by stage
        # Where one micro-batch is in flight nothing would be gained.
        self.recomputed = [s for s, p in enumerate(plan.parts) if p.recomputed and p.in_flight > 1]
        self.buffers: dict[str, str] = {}

    def place(self) -> None:
        """Put every op on the devices of its stage; those of the engine's scheduler on the first."""
        placement = self.job.placement
        traced = [g for g in placement.placement_group if _on_all(g)]
        devices = list(traced[0].parallel_conf.device_name)
        stage = self._stages()
        for part in self.parts:
            group = placement.placement_group.add()
            conf = group.parallel_conf
            conf.device_tag = self.plan.device
            conf.device_name.extend(devices[rank] for rank in part.ranks)
            conf.hierarchy.dim.extend(part.mesh.shape)
            self.groups.append(group)
        for name in (name for group in traced for name in group.op_set.op_name):
            self.groups[stage.get(name, 0)].op_set.op_name.append(name)
        for group in traced:
            placement.placement_group.remove(group)
        self.groups = list(placement.placement_group)[-len(self.parts) :]
        self.writer.group = {n: g for g in placement.placement_group for n in g.op_set.op_name}

    def transfer(self) -> None:
        """Add the ops through which tensors arrive in other stages, and let readers there read these."""
        writer = self.writer
        for number, item in enumerate(self.plan.transfers):
            tensor = item.tensor
            variable = [self.plan.variables[tensor]] if tensor in self.plan.variables else []
            between = abs(item.target - self._stage_of(tensor)) - 1
            arrived: dict[str, str] = {}
            for reader in self._readers(tensor, item.target):
                for lbn in writer.reads(tensor, reader):
                    if lbn not in arrived:
                        name = f"autoddl-transfer-{number}" + (f"-{len(arrived)}" * bool(arrived))
                        # a variable once per step, and then for every micro-batch
                        source = writer.source(lbn) if variable else lbn
                        sent = writer.chain(f"{name}-sent", source, (*variable, *item.path))
                        state, group = item.arrived(writer.state(sent)), self.groups[item.target]
                        made = writer.identity(
                            name, sent, state, group=group,
                            buffer_size=0 if item.seconds is None else between,
                        )  # fmt: skip
                        if source != lbn:
                            made = self._repeated(lbn, f"{name}-repeated", made, state, group)
                        arrived[lbn] = made
                    writer.rewire(reader, lbn, arrived[lbn])

    def _repeated(self, like: str, name: str, lbn: str, state: NdSbp, group: Any) -> str:
        """Hand on what has arrived to every micro-batch, as the op does that makes the blob `like`."""
        op = self.writer.copy(self.writer.ops[like.split("/")[0]], name)
        op.user_conf.input["in"].s[0] = lbn
        self.writer.move(name, group)
        write_signature(self.job, name, {"in_0": state, "out_0": state})
        return f"{name}/out_0"

    def begins(self, item: Redistribution) -> NdSbp | None:
        """Return the state of the identity that a redistribution begins with; None where it has none.

        Variables have one, but where they arrive from another stage: a transfer ends with one.
        """
        op, _ = item.readers[0]
        held = self.plan.variables.get(item.tensor)
        if held is not None and self.stage_of.get(op) in (None, self.stage_of[item.tensor]):
            return held
        return self.plan.layout.made.get(item.tensor) if item.comes_alone else None

    def buffer_source(self, item: Redistribution) -> None:
        """Buffer what a redistribution begins with if only the backward pass reads its result."""
        readers = [r for r in item.readers if r[0] in self.program.op]
        if {self.program.op[op].phase for op, _ in readers} == {"backward"}:
            for reader in readers:
                if self.stage_of[reader[0]] not in self.recomputed:
                    self._buffer(item.tensor, reader)

    def buffer_rest(self) -> None:
        """Buffer what else the backward pass reads of the forward pass, or let it be made again."""
        again = {stage: Recomputation(self, stage) for stage in self.recomputed}
        for op in self.program.ops:
            if op.phase != "backward":
                continue
            copies = again.get(self.stage_of[op.name])
            for operand, tensor in op.inputs:
                reader = op.name, operand
                if copies is not None:
                    for lbn in self.writer.reads(tensor, reader):
                        self.writer.rewire(reader, lbn, copies.of(lbn))
                else:
                    self._buffer(tensor, reader)

    def order_updates(self) -> None:
        """Let gradients of variables be made after all that the backward pass reads these for.

        That is also what makes forward results of a stage again. An update waits for the gradients of
        all micro-batches only, and writes over its variable.
        """
        for parameter in self.program.parameters:
            made = self.program.producer.get(parameter.gradient or "")
            while made is not None and made.name.startswith(SCALING):  # that is done once per step
                made = next(
                    filter(None, (self.program.producer.get(t) for _, t in made.inputs)), None
                )
            if made is None:
                continue
            of_each = [made]
            if is_late(made):
                of_each = [self.program.producer[tensor] for _, tensor in made.inputs]
            for last in of_each:
                for op, _ in self.program.consumers.get(parameter.tensor, ()):
                    name = f"{AGAIN}{op.name}" if op.phase == "forward" else op.name
                    here = self.stage_of[op.name] == self.stage_of[last.name]
                    reads = name in self.writer.ops and op.phase != "optimizer"
                    waits = self.writer.ops[last.name].ctrl_in_op_name
                    if here and reads and op is not last and name not in waits:
                        waits.append(name)

    def _buffer(self, tensor: str, reader: Reader) -> None:
        producer = self.program.producer.get(tensor)
        forward = producer.phase == "forward" if producer else tensor in self.program.inputs
        if not forward:
            return
        for lbn in self.writer.reads(tensor, reader):
            if not self._is_buffered(lbn):
                self.writer.rewire(reader, lbn, self.buffered(lbn))

    def buffered(self, lbn: str) -> str:
        """Return what comes out of a buffer behind a forward result; itself where one is in flight."""
        group = self.writer.group[lbn.split("/")[0]]
        size = self.parts[self.groups.index(group)].in_flight - 1
        if size > 0 and lbn not in self.buffers:
            name = f"{BUFFER}{len(self.buffers)}"
            self.buffers[lbn] = self.writer.identity(
                name, lbn, self.writer.state(lbn), buffer_size=size
            )
        return self.buffers.get(lbn, lbn)

    def _is_buffered(self, lbn: str) -> bool:
        """Tell whether a blob comes out of a buffer, with boxings behind it."""
        while lbn.startswith("autoddl-boxing-"):
            lbn = accumulation.source(self.writer.ops[lbn.split("/")[0]])
        return lbn.startswith(BUFFER)

    def brings_gradient(self, tensor: str) -> bool:
        """Tell whether a tensor is a gradient that arrives with every micro-batch, not once per step."""
        producer, readers = (
            self.program.producer.get(tensor),
            self.program.consumers.get(tensor, ()),
        )
        made_late = producer is not None and producer.phase == "backward"
        return made_late and any(op.phase == "backward" for op, _ in readers)

    def _readers(self, tensor: str, stage: int) -> Iterator[Reader]:
        for op, operand in self.program.consumers.get(tensor, ()):
            if self.stage_of[op.name] == stage:
                yield op.name, operand

    def _stage_of(self, tensor: str) -> int:
        producer = self.program.producer.get(tensor)
        return self.stage_of[tensor if producer is None else producer.name]

    def _stages(self) -> dict[str, int]:
        """Return the stages of ops by name; inserted ones and outputs are where their source is.

        What the engine puts between gradients and updates is where all that it reads is.
        """
        writer, given = self.writer, self.stage_of
        found = {}
        for op in self.job.net.op:
            kind, names = op.WhichOneof("op_type"), [op.name]
            if accumulation.is_inserted(op):
                names = [writer.source(f"{op.name}/out_0").split("/")[0]]
            elif kind == "output_conf":
                names = [writer.source(getattr(op.output_conf, "in")).split("/")[0]]
            elif kind == "user_conf" and op.name not in given:
                read = (lbn for port in op.user_conf.input.values() for lbn in port.s)
                names = [writer.source(lbn).split("/")[0] for lbn in read]
            names = [neutral_name(name, writer.graph_name) for name in names]
            stages = {given[name] for name in names if name in given}
            if len(stages) == 1:
                found[op.name] = stages.pop()
        return found


class Recomputation:
    """Makes the forward results of a stage again when its gradients arrive.

    What arrives from other stages is kept, in buffers, and so is what can't be made again.
    """

    def __init__(self, staged: StageWriter, stage: int) -> None:
        self.staged, self.writer, self.program = staged, staged.writer, staged.program
        self.stage, self.copies = stage, dict[str, str]()
        self.trigger = self._trigger()

    def of(self, lbn: str) -> str:
        """Return the blob that the backward pass reads instead of a forward result."""
        name, _, blob = lbn.partition("/")
        if self._is_given(name):
            return self.staged.buffered(lbn) if self._is_forward(name) else lbn
        if not self._is_forward(name):
            return lbn
        if name not in self.copies:
            self.copies[name] = self._copy(name)
        return f"{self.copies[name]}/{blob}"

    def _copy(self, name: str) -> str:
        """Add an op that does the same once more, after the trigger."""
        writer, original = self.writer, self.writer.ops[name]
        inputs = {
            port: [self.of(lbn) for lbn in original.user_conf.input[port].s]
            for port in original.user_conf.input
        }
        op = writer.copy(original, f"{AGAIN}{name}")
        for port, lbns in inputs.items():
            op.user_conf.input[port].s[:] = lbns
        op.ctrl_in_op_name[:] = [self.trigger]
        writer.copy_signature(name, op.name)
        return str(op.name)

    def _is_forward(self, name: str) -> bool:
        """Tell whether an op belongs to the forward pass of this stage."""
        if name.startswith("autoddl-boxing-"):
            return self._is_forward(accumulation.source(self.writer.ops[name]).split("/")[0])
        if name.startswith("autoddl-transfer-"):
            source = accumulation.source(self.writer.ops[name]).split("/")[0]
            while source.startswith("autoddl-") and source not in self.program.op:
                source = accumulation.source(self.writer.ops[source]).split("/")[0]
            name = source
        if accumulation.is_inserted(self.writer.ops[name]):
            return bool(self.writer.ops[name].user_conf.op_type_name == "unpack")
        return name in self.program.op and self.program.op[name].phase == "forward"

    def _is_given(self, name: str) -> bool:
        """Tell whether a result is kept: an input, what has arrived, what can't be made again."""
        op = self.writer.ops[name]
        arrived = name.startswith("autoddl-transfer-")
        if arrived or accumulation.is_inserted(op):
            return True
        return name in self.program.op and not can_repeat(self.program.op[name])

    def _trigger(self) -> str:
        """Return the op through which the first gradient arrives."""
        return next(
            f"autoddl-transfer-{number}"
            for number, item in enumerate(self.staged.plan.transfers)
            if item.target == self.stage and self.staged.brings_gradient(item.tensor)
        )


def _on_all(group: Any) -> bool:
    """Tell whether a group of ops is on all ranks; a few of the engine's are on rank 0."""
    return bool(group.parallel_conf.device_name[0].startswith("@"))
