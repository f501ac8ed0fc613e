"""Write the stages of a plan into a job: devices of every op, transfers, buffers.

Any op can be on any stage: the job says on which devices it runs, and what it reads from another
stage arrives through an identity op there, in the state in which it left. A forward result that the
backward pass reads later goes through a buffer with room for the micro-batches that are in flight in
its stage; without buffers there would be only one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from autoddl.engine import accumulation
from autoddl.engine.capture import neutral_name
from autoddl.plan import Pipeline, Plan, Redistribution
from autoddl.sbp.program import Program

if TYPE_CHECKING:
    from autoddl.engine.inject import JobWriter, Reader

BUFFER = "autoddl-buffer-"


def in_flight(pipeline: Pipeline, stage: int) -> int:
    """Return of how many micro-batches a stage keeps forward results at a time."""
    return min(pipeline.micro_batches, pipeline.stages - stage)


class StageWriter:
    """Edits a job that was traced with all ops on all ranks, in one axis."""

    def __init__(self, writer: JobWriter, plan: Plan, program: Program) -> None:
        assert plan.pipeline is not None
        self.writer, self.plan, self.program = writer, plan, program
        self.pipeline, self.job = plan.pipeline, writer.job
        self.groups: list[Any] = []  # of ops, by stage
        self.buffers: dict[str, str] = {}

    def place(self) -> None:
        """Put every op on the devices of its stage; those of the engine's scheduler on the first."""
        placement = self.job.placement
        traced = [g for g in placement.placement_group if _on_all(g)]
        blobs = [g for g in placement.blob_placement_group if _on_all(g)]
        devices = list(traced[0].parallel_conf.device_name)
        stage = self._stages()
        blob_groups = []
        for number in range(self.pipeline.stages):
            group, blob_group = (
                placement.placement_group.add(),
                placement.blob_placement_group.add(),
            )
            first, size = number * self.plan.mesh.size, self.plan.mesh.size
            conf = group.parallel_conf
            conf.device_tag = self.plan.device
            conf.device_name.extend(devices[first : first + size])
            conf.hierarchy.dim.extend(self.plan.mesh.shape)
            blob_group.parallel_conf.CopyFrom(conf)
            self.groups.append(group)
            blob_groups.append(blob_group)
        for name in (name for group in traced for name in group.op_set.op_name):
            self.groups[stage.get(name, 0)].op_set.op_name.append(name)
        for blob in (blob for group in blobs for blob in group.lbi):
            blob_groups[stage.get(blob.op_name, 0)].lbi.add().CopyFrom(blob)
        for group in traced:
            placement.placement_group.remove(group)
        for group in blobs:
            placement.blob_placement_group.remove(group)
        self.groups = list(placement.placement_group)[-self.pipeline.stages :]
        self.writer.group = {n: g for g in placement.placement_group for n in g.op_set.op_name}

    def transfer(self) -> None:
        """Add the ops through which tensors arrive in other stages, and let readers there read these."""
        writer = self.writer
        for number, item in enumerate(self.pipeline.transfers):
            tensor = item.tensor
            variable = [self.plan.variables[tensor]] if tensor in self.plan.variables else []
            between = abs(item.target - self._stage_of(tensor)) - 1
            arrived: dict[str, str] = {}
            for reader in self._readers(tensor, item.target):
                for lbn in writer.reads(tensor, reader):
                    if lbn not in arrived:
                        name = f"autoddl-transfer-{number}" + (f"-{len(arrived)}" * bool(arrived))
                        sent = writer.chain(f"{name}-sent", lbn, (*variable, *item.path))
                        arrived[lbn] = writer.identity(
                            name, sent, writer.state(sent),
                            group=self.groups[item.target], buffer_size=between,
                        )  # fmt: skip
                    writer.rewire(reader, lbn, arrived[lbn])

    def buffer_source(self, item: Redistribution) -> None:
        """Buffer what a redistribution begins with if only the backward pass reads its result."""
        phases = {self.program.op[op].phase for op, _ in item.readers if op in self.program.op}
        if phases == {"backward"}:
            for reader in item.readers:
                self._buffer(item.tensor, reader)

    def buffer_rest(self) -> None:
        """Buffer what else the backward pass reads of the forward pass."""
        for op in self.program.ops:
            if op.phase == "backward":
                for operand, tensor in op.inputs:
                    self._buffer(tensor, (op.name, operand))

    def order_updates(self) -> None:
        """Let gradients of variables be made after all that the backward pass reads these for.

        An update waits for the gradients of all micro-batches only, and writes over its variable.
        """
        for parameter in self.program.parameters:
            made = self.program.producer.get(parameter.gradient or "")
            if made is None:
                continue
            stage = self.pipeline.stage_of[made.name]
            for op, _ in self.program.consumers.get(parameter.tensor, ()):
                here = op.phase == "backward" and self.pipeline.stage_of[op.name] == stage
                if here and op is not made:
                    self.writer.ops[made.name].ctrl_in_op_name.append(op.name)

    def _buffer(self, tensor: str, reader: Reader) -> None:
        producer = self.program.producer.get(tensor)
        forward = producer.phase == "forward" if producer else tensor in self.program.inputs
        if not forward:
            return
        for lbn in self.writer.reads(tensor, reader):
            if self._is_buffered(lbn):
                continue
            group = self.writer.group[lbn.split("/")[0]]
            size = in_flight(self.pipeline, self.groups.index(group)) - 1
            if size > 0 and lbn not in self.buffers:
                name = f"{BUFFER}{len(self.buffers)}"
                self.buffers[lbn] = self.writer.identity(
                    name, lbn, self.writer.state(lbn), buffer_size=size
                )
            self.writer.rewire(reader, lbn, self.buffers.get(lbn, lbn))

    def _is_buffered(self, lbn: str) -> bool:
        """Tell whether a blob comes out of a buffer, with boxings behind it."""
        while lbn.startswith("autoddl-boxing-"):
            lbn = accumulation.source(self.writer.ops[lbn.split("/")[0]])
        return lbn.startswith(BUFFER)

    def _readers(self, tensor: str, stage: int) -> Iterator[Reader]:
        for op, operand in self.program.consumers.get(tensor, ()):
            if self.pipeline.stage_of[op.name] == stage:
                yield op.name, operand

    def _stage_of(self, tensor: str) -> int:
        producer = self.program.producer.get(tensor)
        return self.pipeline.stage_of[tensor if producer is None else producer.name]

    def _stages(self) -> dict[str, int]:
        """Return the stages of ops by name; inserted ones and outputs are where their source is."""
        writer, given = self.writer, self.pipeline.stage_of
        found = {}
        for op in self.job.net.op:
            name = neutral_name(op.name, writer.graph_name)
            if accumulation.is_inserted(op):
                name = writer.source(f"{op.name}/out_0").split("/")[0]
            elif op.WhichOneof("op_type") == "output_conf":
                name = writer.source(getattr(op.output_conf, "in")).split("/")[0]
            name = neutral_name(name, writer.graph_name)
            if name in given:
                found[op.name] = given[name]
        return found


def _on_all(group: Any) -> bool:
    """Tell whether a group of ops or blobs is on all ranks; a few of the engine's are on rank 0."""
    return bool(group.parallel_conf.device_name[0].startswith("@"))
