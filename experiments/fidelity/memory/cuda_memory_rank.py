"""What the processes of cuda_memory.py run: rank 0 compiles, the others are there.

Only rank 0 compiles a plan in OneFlow, for all ranks; but the ranks have to exist.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import oneflow as flow
from oneflow.framework import session_context

from autoddl.engine.oneflow.capture.abstract import abstract_parameters
from autoddl.engine.oneflow.capture.reader import neutral_name, program_of, traced
from autoddl.engine.oneflow.run import job_writer, plan_injection
from autoddl.engine.oneflow.run.staged_graph import on_all_ranks, traced_part
from autoddl.plan.codec import load
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from autoddl.sbp.state import broadcast
from experiments.fidelity.memory.cuda_memory import DONE, PLAN, REQUEST

_POLL_S = 0.02


def main(folder: Path) -> None:
    """Compile the plan of `folder` for CUDA (rank 0) or wait until that is done; never return."""
    if flow.env.get_rank() != 0:
        _wait_for(folder / DONE)
    os.chdir(folder)  # OneFlow writes its logs below the working directory
    plan = load(folder / PLAN)
    request = json.loads((folder / REQUEST).read_text())
    _write_logs()
    flow.boxing.nccl.enable_use_compute_stream(plan.compute_stream)
    with abstract_parameters():
        graph, inputs = _factory(request["factory"])(**request["arguments"])
    if plan.pipelined:
        twin, program = traced_part(plan, graph, inputs, {})
        plan.check_graph(program)
        staged_on_cuda(twin._full_job_proto, plan, program, twin.name)
        twin._full_graph_proto = twin._full_job_proto
    else:
        twin = traced(graph, *inputs)
        plan.check_graph(program_of(twin._full_job_proto, twin.name))
        twin._full_graph_proto = on_cuda(twin._full_job_proto, plan, twin.name)
    threading.Thread(target=_leave_when_written, args=(folder,), daemon=True).start()
    twin.finish_complie_and_init_runtime()  # does not return: the runtime finds no device
    os._exit(1)


def on_cuda(job: Any, plan: PlanValue, graph_name: str) -> Any:
    """Rewrite a one-device job to follow `plan` on one CUDA device per rank, and return it."""
    planned = set(program_of(job, graph_name).op)
    host = [op.name for op in job.net.op if _on_host(op, planned)]
    devices = [op.name for op in job.net.op if op.name not in set(host)]
    ranks = [f"@{rank}:{rank}" for rank in range(plan.mesh.size)]
    del job.placement.placement_group[:]
    del job.placement.blob_placement_group[:]
    _place(job, "cpu", ["@0:0"], (1,), host)
    _place(job, "cuda", ranks, plan.mesh.shape, devices)
    view = job.job_parallel_view_conf
    for name in devices:
        for table in (view.op_name2nd_sbp_signature_conf, view.op_name2sbp_signature_conf):
            if name in table:
                del table[name]
    plan_injection.write_plan(job, plan, program_of(job, graph_name), graph_name)
    states = {item.name: item.state for item in plan.inputs}
    for op in job.net.op:
        view.op_name2is_local_parallel_view[op.name] = False
        kind = op.WhichOneof("op_type")
        if kind == "input_conf":
            job_writer.write_input(job, op, states[neutral_name(op.name, graph_name)])
        elif kind == "output_conf":
            job_writer.write_output(job, op, broadcast(plan.mesh.ndim))
    _replace_argmaxes(job)
    return job


def staged_on_cuda(job: Any, plan: PlanValue, program: Program, graph_name: str) -> None:
    """Rewrite the job of a micro-batch to follow a plan with stages on CUDA devices."""
    on_all_ranks(job, plan)
    plan_injection.write_plan(job, plan, program, graph_name)
    ops = {op.name: op for op in job.net.op}
    for group in (*job.placement.placement_group, *job.placement.blob_placement_group):
        if group.parallel_conf.device_name[0].startswith("@"):
            group.parallel_conf.device_tag = "cuda"
    for group in job.placement.placement_group:
        for name in group.op_set.op_name:
            ops[name].device_tag = group.parallel_conf.device_tag
    _replace_argmaxes(job)


def _on_host(op: Any, planned: set[str]) -> bool:
    """Tell whether an op is of the engine's own scheduler, which runs on one CPU."""
    user = op.WhichOneof("op_type") == "user_conf"
    return op.name.startswith("System-") or (user and op.name not in planned)


def _place(
    job: Any, tag: str, devices: list[str], hierarchy: tuple[int, ...], names: list[str]
) -> None:
    group = job.placement.placement_group.add()
    group.parallel_conf.device_tag = tag
    group.parallel_conf.device_name.extend(devices)
    group.parallel_conf.hierarchy.dim.extend(hierarchy)
    group.op_set.op_name.extend(names)
    chosen = set(names)
    for op in job.net.op:
        if op.name in chosen:
            op.device_tag = tag


def _replace_argmaxes(job: Any) -> None:
    for op in list(job.net.op):
        if op.WhichOneof("op_type") == "user_conf" and op.user_conf.op_type_name == "argmax":
            _replace_argmax(job, op)


def _replace_argmax(job: Any, op: Any) -> None:
    """Replace an argmax, whose CUDA kernel asks the device for its workspace, by a maximum and a cast.

    Shapes and states are the same, and so is the size of the result.
    """
    source = op.user_conf.input["in"].s[0]
    maximum = job.net.op.add()
    maximum.CopyFrom(op)
    maximum.name = f"{op.name}-value"
    value = f"{maximum.name}/output_tensor_0"
    conf = maximum.user_conf
    conf.Clear()
    conf.op_type_name = "reduce_max"
    conf.input["input_tensor"].s.append(source)
    conf.output["output_tensor"].s.append(value)
    conf.input_order.append("input_tensor")
    conf.output_order.append("output_tensor")
    descs = job.helper.lbn2logical_blob_desc
    conf.attr["axis"].at_list_int32.val.append(len(descs[source].shape.dim) - 1)
    conf.attr["keepdims"].at_bool = False
    descs[value].CopyFrom(descs[f"{op.name}/out_0"])
    descs[value].data_type = descs[source].data_type
    for group in job.placement.placement_group:
        if op.name in group.op_set.op_name:
            group.op_set.op_name.append(maximum.name)
    signature = job.job_parallel_view_conf.op_name2nd_sbp_signature_conf[op.name]
    read = job_writer.read_state(signature.bn_in_op2nd_sbp["in_0"])
    made = job_writer.read_state(signature.bn_in_op2nd_sbp["out_0"])
    job_writer.write_signature(job, maximum.name, {"input_tensor_0": read, "output_tensor_0": made})
    job_writer.write_signature(job, op.name, {"in_0": made, "out_0": made})
    number = descs[f"{op.name}/out_0"].data_type
    conf = op.user_conf
    conf.op_type_name = "cast"
    conf.input["in"].s[0] = value
    conf.attr["dtype"].at_data_type = number


def _write_logs() -> None:
    session = session_context.GetDefaultSession()
    session.TryInit()
    resource = session.resource
    resource.enable_debug_mode = True
    session.update_resource_eagerly(resource)


def _factory(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _leave_when_written(folder: Path) -> None:
    while not list(folder.glob("log/**/job_*_plan.dot")):
        time.sleep(_POLL_S)
    (folder / DONE).touch()
    os._exit(0)


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(_POLL_S)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
