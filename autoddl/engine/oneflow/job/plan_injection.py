"""Write a plan into a job: signatures and order of all ops, identity ops for redistributions' steps.

The job is rewritten between nn.Graph's build and its compilation; with gradient accumulation after
its ops have got the names of the plan (accumulation.py). How single things are written is in
job_writer.py, with the rules under which OneFlow executes any plan; stages are in stage_writer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoddl.engine.oneflow.job.backward_start import begin_with_gradients
from autoddl.engine.oneflow.job.gradient_chains import write_chains
from autoddl.engine.oneflow.job.job_writer import JobWriter, read_state
from autoddl.engine.oneflow.job.parameter_gathers import gathers_behind
from autoddl.engine.oneflow.job.stage_writer import StageWriter
from autoddl.plan.value import PlanValue
from autoddl.sbp.layout import NONE, Redistribution
from autoddl.sbp.program import Program
from autoddl.sbp.program.ops_and_tensors import READ


def write_plan(job: Any, plan: PlanValue, program: Program, graph_name: str) -> None:
    """Rewrite `job` (the full job proto of a graph, with all ops on all ranks) to follow `plan`.

    `program` is the job's: that of one micro-batch, where the job accumulates gradients.
    """
    writer = JobWriter(job, graph_name)
    staged = StageWriter(writer, plan, program)
    staged.place()
    for number, given in enumerate(plan.inputs):
        if given.name.startswith(READ):
            group = staged.groups[plan.stage_of[given.name]]
            writer.read(given.name, number, given.state, group, plan.device)
    for name, state in plan.variables.items():
        writer.set_variable(name, state)
    for name, signature in plan.signatures.items():
        writer.set_signature(name, signature)
    writer.set_inserted(plan)
    staged.transfer()
    moved = dict[Redistribution, tuple[str, str]]()
    for number, item in enumerate(plan.redistributions):
        staged.buffer_source(item)
        moved[item] = writer.redistribute(item, number, staged.begins(item))
    _gather_in_turn(writer, plan, moved)
    write_chains(writer, plan)
    for name, before in plan.layout.after.items():
        writer.wait(name, before)
    staged.buffer_rest()
    if plan.pipelined:
        staged.order_updates()
        if plan.device == "cuda":
            begin_with_gradients(staged)


def _gather_in_turn(
    writer: JobWriter, plan: PlanValue, moved: Mapping[Redistribution, tuple[str, str]]
) -> None:
    """Let gathers of parameters wait for others; `moved` has their first and last ops.

    As ops of the compute stream they go one after another anyway. No memory hangs on these waits.
    """
    for part in plan.parts if not plan.compute_stream else ():
        items = part.layout.redistributions
        for item, other in zip(items, gathers_behind(part.layout).tolist(), strict=True):
            if other != NONE:
                writer.wait(moved[item][0], moved[items[other]][1])


def changed_signatures(job: Any, plan: PlanValue) -> list[tuple[str, str]]:
    """Return the (op, operand) pairs whose state in a compiled job is not the planned one."""
    table = job.job_parallel_view_conf.op_name2nd_sbp_signature_conf
    changed = []
    for name, signature in plan.signatures.items():
        if name not in table:
            continue  # fused or removed by the compiler
        compiled = table[name].bn_in_op2nd_sbp
        changed += [
            (name, operand)
            for operand, state in signature.items()
            if operand not in compiled or read_state(compiled[operand]) != state.executed
        ]
    return changed
