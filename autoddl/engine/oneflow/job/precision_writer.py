"""Write mixed precision into a job that was traced without: casts, and the dtypes of what ops make.

OneFlow casts other tensors where a job accumulates gradients (of what it inserts for that, it knows
nothing), so such a job is traced in float32 and gets the casts of the graph that was planned. A cast of
a parameter or an input comes behind the op that hands these on to every micro-batch, one of a gradient
before the sum over micro-batches, which is in float32 as the update is:

    w → repeat → matmul,  dw → acc → update    becomes
    w → repeat → cast_f2h → matmul,  dw → cast_h2f → acc → update
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoddl.engine.oneflow.capture.op_names import is_precision_cast, scales_accumulated
from autoddl.engine.oneflow.capture.reader import DTYPE_NUMBERS
from autoddl.engine.oneflow.job import accumulation
from autoddl.engine.oneflow.job.job_writer import JobWriter
from autoddl.sbp.layout import OUTPUT, Reader
from autoddl.sbp.program import Op, Program

_BEHIND = ("acc", "pack")  # the inserted ops that come behind casts


def write_precision(job: Any, traced: Program, planned: Program, graph_name: str) -> None:
    """Give a job, of which `traced` is the program, the casts and dtypes that `planned` has besides."""
    writer = JobWriter(job, graph_name)
    descs = writer.descs
    for tensor in planned.tensors:
        before = traced.tensor.get(tensor.name)
        if before is not None and before.dtype != tensor.dtype:
            descs[tensor.name].data_type = DTYPE_NUMBERS[tensor.dtype]
    added = {
        op.outputs[0][1]: op
        for op in planned.ops
        if op.name not in traced.op and is_precision_cast(op.name)
    }
    for cast in added.values():
        _Cast(writer, planned, added, cast).add()
    for op in job.net.op:
        if accumulation.is_inserted(op):
            for lbn in op.user_conf.output["out"].s:
                descs[lbn].data_type = descs[accumulation.source(op)].data_type


class _Cast:
    """One cast that is to be added; its operand may be made by another one of them."""

    def __init__(
        self, writer: JobWriter, planned: Program, added: Mapping[str, Op], cast: Op
    ) -> None:
        self.writer, self.planned, self.added, self.cast = writer, planned, added, cast
        ((_, self.operand),), ((_, self.result),) = cast.inputs, cast.outputs

    def add(self) -> None:
        """Add the cast, and let its readers read it."""
        traced = self.operand
        while traced in self.added:
            traced = self.added[traced].inputs[0][1]
        for reader in self._readers():
            for lbn in self.writer.reads(traced, reader):
                source, behind = self._place(lbn)
                self._write(source, behind or self.writer.ops.get(reader[0]))
                if behind is None:
                    self.writer.rewire(reader, lbn, self.result)
                else:
                    behind.user_conf.input["in"].s[0] = self.result

    def _readers(self) -> Iterator[Reader]:
        """Yield the readers of the cast that are no casts themselves."""
        for op, operand in self.planned.consumers.get(self.result, ()):
            if not any(name in self.added for _, name in op.outputs):
                yield op.name, operand
        if self.result in self.planned.outputs:
            yield OUTPUT, ""

    def _place(self, lbn: str) -> tuple[str, Any]:
        """Return what a cast of a blob has to read, and the inserted op that has to read the cast."""
        behind = None
        while True:
            op = self.writer.ops[lbn.split("/")[0]]
            if not accumulation.is_inserted(op):
                return lbn, behind
            if op.user_conf.op_type_name not in _BEHIND and not scales_accumulated(op):
                return lbn, behind
            lbn, behind = accumulation.source(op), op

    def _write(self, source: str, like: Any) -> None:
        """Add the op, in the scope of its reader: by that OneFlow knows the optimizer's pass."""
        writer, cast = self.writer, self.cast
        if cast.name in writer.ops:
            return
        producer = writer.ops[source.split("/")[0]]
        if self.operand in self.added:
            _Cast(writer, self.planned, self.added, self.added[self.operand])._write(source, like)
            source = self.operand
        op = writer.add(cast.name, cast.type, producer, {"in": [source]}, {"out": [self.result]})
        op.scope_symbol_id = (like or producer).scope_symbol_id
        number = DTYPE_NUMBERS[self.planned.tensor[self.result].dtype]
        op.user_conf.attr["dtype"].at_data_type = number
        op.user_conf.attr["pin_memory"].at_bool = False
        writer.job.module_name2module_conf[cast.module or writer.graph_name].ops.append(cast.name)
        writer.descs[self.result].CopyFrom(writer.descs[source])
        writer.descs[self.result].data_type = number
