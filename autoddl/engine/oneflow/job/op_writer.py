"""Write ops of a program into a job: those that it has nothing of, and what has changed of others.

Rewrites (sbp.rewrites) say what is to be there; ops have the program's names afterwards. Where a job
accumulates gradients (accumulation.py), variables and inputs are read behind what hands them on to every
micro-batch, and so is what an added op makes of nothing, once per step. What is behind the sum of one
micro-batch's gradients comes behind each of these, where they are added once (sbp.rewrites.tied_sums):

    a, b → add_n → acc → scale → update    becomes    a → acc → scale ┐
                                                      b → acc → scale ┴→ add_n → update
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autoddl.engine.oneflow.capture.op_names import SCALING
from autoddl.engine.oneflow.capture.reader import DTYPE_NUMBERS
from autoddl.engine.oneflow.job import accumulation
from autoddl.engine.oneflow.job.attributes import attribute
from autoddl.engine.oneflow.job.job_writer import JobWriter
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.ops_and_tensors import AGAIN, UNREAD
from autoddl.sbp.rewrites.tied_sums import is_late

REPEAT = "repeat"


def write_changes(
    job: Any, before: Program, after: Program, graph_name: str, *, micro_batches: int = 1
) -> None:
    """Make the job of one program, of one of so many micro-batches, that of another.

    An op that is added gets the scope of the op before it.
    """
    writer, like = JobWriter(job, graph_name), None
    sources = {lbn: name for name, lbn in writer.lbn.items()}
    for op in job.net.op:
        if op.user_conf.op_type_name in (REPEAT, "unpack") and accumulation.source(op) in sources:
            writer.lbn[sources[accumulation.source(op)]] = op.user_conf.output["out"].s[0]
    for planned in after.ops:
        first = before.op.get(planned.name)
        if planned.name.startswith(AGAIN):
            writer.copy(writer.ops[planned.name.removeprefix(AGAIN)], planned.name)
            _change(writer, planned)
            continue
        if first is None:
            add(writer, planned, writer.ops[like or before.ops[0].name], after)
            if micro_batches > 1 and not planned.inputs:
                _repeat(writer, planned, micro_batches)
            continue
        like = planned.name
        if first != planned:
            _change(writer, planned)
            if first.type != planned.type:
                _describe(writer, planned, after)


def _repeat(writer: JobWriter, planned: Op, count: int) -> None:
    """Hand on what an op makes once per step to every micro-batch."""
    ((_, made),) = planned.outputs
    name = f"{planned.name}-{REPEAT}"
    writer.lbn[made] = f"{name}/out_0"
    ports = {"in": [made]}, {"out": [writer.lbn[made]]}
    op = writer.add(name, REPEAT, writer.ops[planned.name], *ports)
    op.user_conf.attr["repeat_num"].at_int32 = count
    writer.descs[writer.lbn[made]].CopyFrom(writer.descs[made])


def add(writer: JobWriter, planned: Op, like: Any, program: Program) -> None:
    """Add an op of a program, in the scope of one of the job."""
    lbn = writer.lbn
    read = [(operand, lbn.get(name, name)) for operand, name in planned.inputs]
    writer.add(planned.name, planned.type, like, _ports(read), _ports(planned.outputs))
    _set_attributes(writer.ops[planned.name].user_conf, planned.attrs)
    _describe(writer, planned, program)


def _describe(writer: JobWriter, planned: Op, program: Program) -> None:
    """Tell the engine the shapes and types of what an op makes."""
    like = next(iter(writer.descs.values()))
    for _, name in planned.outputs:
        tensor, desc = program.tensor[name], writer.descs[name]
        desc.CopyFrom(like)
        desc.shape.dim[:] = tensor.shape
        desc.data_type = DTYPE_NUMBERS[tensor.dtype]


def _change(writer: JobWriter, planned: Op) -> None:
    """Let an op of the job read, make and be what the program says."""
    conf = writer.ops[planned.name].user_conf
    if conf.op_type_name != planned.type:
        conf.Clear()
        conf.op_type_name = planned.type
    read = [(operand, writer.lbn.get(blob, blob)) for operand, blob in planned.inputs]
    for ports, order, wanted in (
        (conf.input, conf.input_order, _ports(read)),
        (conf.output, conf.output_order, _ports(planned.outputs)),
    ):
        for port in [port for port in ports if port not in wanted]:
            del ports[port]
            order.remove(port)
        for port, blobs in wanted.items():
            ports[port].s[:] = blobs
            if port not in order:
                order.append(port)
    _set_attributes(conf, planned.attrs)


def _set_attributes(conf: Any, attrs: Iterable[tuple[str, Any]]) -> None:
    for name, value in attrs:
        if name != UNREAD:
            conf.attr[name].CopyFrom(attribute(conf.op_type_name, name, value))


def _ports(operands: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for operand, tensor in operands:
        found.setdefault(operand.rpartition("_")[0], []).append(tensor)
    return found


def write_sums(job: Any, program: Program, graph_name: str) -> None:
    """Let the job of a program that adds some gradients once per step do so."""
    writer = JobWriter(job, graph_name)
    for number, op in enumerate(filter(is_late, program.ops)):
        ((_, made),) = op.outputs
        behind = list(_behind(job, made))
        if not behind:
            continue
        last = f"{behind[-1].name}/out_0"
        for other in job.net.op:
            for port in other.user_conf.input.values():
                port.s[:] = [made if lbn == last else lbn for lbn in port.s]
        read = writer.ops[op.name].user_conf.input["in"].s
        for place, lbn in enumerate(read):
            for one in behind:
                tied = f"tied-{number}-{place}"  # names tell what accumulation has put in
                scales = one.name.startswith(SCALING)
                name = f"{one.name}-{tied}" if scales else f"autoddl-{tied}-{one.name}"
                copy = writer.copy(one, name)
                copy.user_conf.input["in"].s[0] = lbn
                lbn = f"{copy.name}/out_0"
            read[place] = lbn
        for one in behind:
            writer.remove(one.name)


def _behind(job: Any, lbn: str) -> Iterator[Any]:
    """Yield the ops that accumulation has put behind a blob, one behind the other."""
    for op in job.net.op:
        if accumulation.is_inserted(op) and accumulation.source(op) == lbn:
            yield op
            yield from _behind(job, f"{op.name}/out_0")
            return
