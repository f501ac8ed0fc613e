"""Write into a job that accumulates gradients which sums of them come once per step (rewrites.tied_sums).

What the engine puts behind the sum of one micro-batch's gradients comes behind each of these:

    a, b → add_n → acc → scale → update    becomes    a → acc → scale ┐
                                                      b → acc → scale ┴→ add_n → update
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoddl.engine.oneflow.capture.op_names import SCALING
from autoddl.engine.oneflow.job import accumulation
from autoddl.engine.oneflow.job.job_writer import JobWriter
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.tied_sums import is_late


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
