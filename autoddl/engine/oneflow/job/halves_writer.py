"""Write both halves of a batch into a job that was traced with one: copies of ops, sums of gradients.

What is to be there says the program of both (sbp.rewrites.halves); ops have its names afterwards.
"""

from __future__ import annotations

from typing import Any

from autoddl.engine.oneflow.capture.op_names import neutral_name
from autoddl.engine.oneflow.job.job_writer import JobWriter
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rewrites.halves import HALF, second


def write_halves(job: Any, half: Program, both: Program, graph_name: str) -> None:
    """Add to a job all that `both` has and `half`, which is the job's program, has not."""
    _HalvesWriter(JobWriter(job, graph_name), half, both).write()


class _HalvesWriter:
    def __init__(self, writer: JobWriter, half: Program, both: Program) -> None:
        self.writer, self.half, self.both = writer, half, both
        self.descs = writer.job.helper.lbn2logical_blob_desc

    def write(self) -> None:
        writer = self.writer
        given = list(writer.job.net.op)
        for op in given:
            if op.WhichOneof("op_type") == "input_conf":
                name = second(neutral_name(op.name, writer.graph_name))
                self._add_copy(op, name)
                writer.lbn[name] = f"{name}/out"
        for planned in self.both.ops:
            if planned.name not in writer.ops:
                self._add(planned)
            self._rewire(planned)
        for op in given:
            kind = op.WhichOneof("op_type")
            if kind == "output_conf" and second(getattr(op.output_conf, "in")) in self.both.tensor:
                copy = self._add_copy(op, second(neutral_name(op.name, writer.graph_name)))
                setattr(copy.output_conf, "in", second(getattr(op.output_conf, "in")))

    def _add(self, planned: Op) -> None:
        """Add an op: the second half's copy of one, or one that the traced job has nothing like."""
        writer = self.writer
        if planned.name.startswith(HALF):
            original = writer.ops[planned.name.removeprefix(HALF)]
            op = self._add_copy(original, planned.name)
            for port in op.user_conf.output.values():
                port.s[:] = map(second, port.s)
            if "seed" in planned.attr:
                op.user_conf.attr["seed"].at_int64 = planned.attr["seed"]
            op.ctrl_in_op_name[:] = [
                second(name) if second(name) in self.both.op else name
                for name in original.ctrl_in_op_name
            ]
        else:
            source = writer.ops[planned.inputs[0][1].split("/")[0]]
            op = self._add_like(source, planned.name)
            conf = op.user_conf
            conf.op_type_name = planned.type
            for ports, order, operands in (
                (conf.input, conf.input_order, planned.inputs),
                (conf.output, conf.output_order, planned.outputs),
            ):
                for operand, tensor in operands:
                    ports[operand.rpartition("_")[0]].s.append(tensor)
                order.extend(dict.fromkeys(o.rpartition("_")[0] for o, _ in operands))
            for name, value in planned.attrs:
                conf.attr[name].CopyFrom(_attribute(value))
        for _, tensor in planned.outputs:
            like = tensor.removeprefix(HALF) if tensor.startswith(HALF) else planned.inputs[0][1]
            self.descs[tensor].CopyFrom(self.descs[like])

    def _rewire(self, planned: Op) -> None:
        """Let an op read what the program of both halves says."""
        first = self.half.op.get(planned.name.removeprefix(HALF))
        if first is None:
            return
        lbn = self.writer.lbn
        for (operand, tensor), (_, before) in zip(planned.inputs, first.inputs, strict=True):
            if tensor != before:
                reader = planned.name, operand
                self.writer.rewire(reader, lbn.get(before, before), lbn.get(tensor, tensor))

    def _add_copy(self, original: Any, name: str) -> Any:
        op = self._add_like(original, name)
        op.CopyFrom(original)
        op.name = name
        if f"{original.name}/out" in self.descs:
            self.descs[f"{name}/out"].CopyFrom(self.descs[f"{original.name}/out"])
        return op

    def _add_like(self, original: Any, name: str) -> Any:
        """Add an op without contents on the devices of another one."""
        op = self.writer.job.net.op.add()
        op.name, op.device_tag = name, original.device_tag
        op.scope_symbol_id = original.scope_symbol_id
        self.writer.added(op, self.writer.group[original.name])
        return op


def _attribute(value: bool | int | float) -> Any:
    """Return an attribute of an op as the engine has it."""
    from oneflow.core.framework.user_op_attr_pb2 import AttrValue

    kind = {bool: "at_bool", int: "at_int64", float: "at_double"}[type(value)]
    return AttrValue(**{kind: value})
