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
from autoddl.engine.oneflow.run import job_writer
from autoddl.engine.oneflow.run.planned_graph import planned_job
from autoddl.plan.codec import load
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
    twin, _ = planned_job(plan, graph, (inputs, {}))
    on_cuda(twin._full_job_proto)
    twin._full_graph_proto = twin._full_job_proto
    threading.Thread(target=_leave_when_written, args=(folder,), daemon=True).start()
    twin.finish_complie_and_init_runtime()  # does not return: the runtime finds no device
    os._exit(1)


def on_cuda(job: Any) -> None:
    """Put what a job has on all ranks on CUDA devices, one per rank."""
    ops = {op.name: op for op in job.net.op}
    for group in (*job.placement.placement_group, *job.placement.blob_placement_group):
        if group.parallel_conf.device_name[0].startswith("@"):
            group.parallel_conf.device_tag = "cuda"
    for group in job.placement.placement_group:
        for name in group.op_set.op_name:
            ops[name].device_tag = group.parallel_conf.device_tag
    _replace_argmaxes(job)


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
