"""Compile a plan for CUDA devices without one; the process ends with OneFlow's plan (without_gpu)."""

from __future__ import annotations

import importlib
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from autoddl.engine import engines
from autoddl.engine.oneflow.capture.abstract import abstract_parameters
from autoddl.engine.oneflow.capture.cuda_stand_in import traced_as_cuda
from autoddl.engine.oneflow.job import job_writer
from autoddl.engine.oneflow.run.compile_settings import compiling
from autoddl.engine.oneflow.run.planned_graph import planned_job
from autoddl.plan.codec import load
from experiments.fidelity.memory.cuda_memory import REQUEST, WANTED
from experiments.lib.without_gpu import mixed


def main(folder: Path) -> None:
    """Compile the plan of `folder` for CUDA; never return."""
    os.chdir(folder)  # where OneFlow's plan and its logs are written
    plan = load(folder / WANTED, engines.model)
    request = json.loads((folder / REQUEST).read_text())
    with abstract_parameters():
        graph, inputs = _factory(request["factory"])(**request["arguments"])
    mixed(graph, request["precision"])
    parts = 2 if plan.duplex else 1
    inputs = [x[: x.shape[0] // parts] if x.ndim else x for x in inputs]
    with traced_as_cuda() if plan.device == "cuda" else nullcontext():
        twin, *_ = planned_job(plan, graph, (inputs, {}))
    on_cuda(twin._full_job_proto)
    twin._full_graph_proto = twin._full_job_proto
    with compiling(plan):
        twin.finish_complie_and_init_runtime()  # does not return


def on_cuda(job: Any) -> None:
    """Put what a job has on all ranks on CUDA devices, one per rank."""
    ops = {op.name: op for op in job.net.op}
    for group in (*job.placement.placement_group, *job.placement.blob_placement_group):
        if group.parallel_conf.device_name[0].startswith("@"):
            group.parallel_conf.device_tag = "cuda"
    for group in job.placement.placement_group:
        for name in group.op_set.op_name:
            ops[name].device_tag = group.parallel_conf.device_tag
    for op in list(job.net.op):
        if op.WhichOneof("op_type") == "user_conf":
            replace = _REPLACED.get(op.user_conf.op_type_name)
            if replace is not None:
                replace(job, op)


def _replace_argmax(job: Any, op: Any) -> None:
    """Replace an argmax, whose CUDA kernel asks the device for its workspace, by a maximum and a cast.

    Shapes and states are the same, and so is the size of the result.
    """
    source = op.user_conf.input["in"].s[0]
    value = f"{op.name}-value/output_tensor_0"
    descs = job.helper.lbn2logical_blob_desc
    descs[value].CopyFrom(descs[f"{op.name}/out_0"])
    descs[value].data_type = descs[source].data_type
    last = len(descs[source].shape.dim) - 1
    _add_reduction(job, op, "reduce_max", source, value, [last], "in_0", "out_0")
    made = job_writer.read_state(_states(job, op.name)["out_0"])
    job_writer.write_signature(job, op.name, {"in_0": made, "out_0": made})
    conf = op.user_conf
    conf.op_type_name = "cast"
    conf.input["in"].s[0] = value
    conf.attr["dtype"].at_data_type = descs[f"{op.name}/out_0"].data_type


def _replace_norm_gradients(job: Any, op: Any) -> None:
    """Replace the gradients of a layer norm's parameters, whose kernel asks the device, by sums of dy.

    Results and their states are the same; what it reads besides, the norm's other gradient reads, too.
    """
    source = op.user_conf.input["dy"].s[0]
    descs = job.helper.lbn2logical_blob_desc
    made = {which: op.user_conf.output[which].s[0] for which in ("beta_diff", "gamma_diff")}
    summed = list(range(len(descs[source].shape.dim) - len(descs[made["beta_diff"]].shape.dim)))
    # The second keeps the op's name, of which control edges may speak.
    for which, name in (("beta_diff", f"{op.name}-beta"), ("gamma_diff", op.name)):
        value = f"{name}/output_tensor_0"
        descs[value].CopyFrom(descs[made[which]])
        _add_reduction(job, op, "reduce_sum", source, value, summed, "dy_0", f"{which}_0")
        _read_instead(job, made[which], value)
    job.net.op.remove(op)


_REPLACED = {"argmax": _replace_argmax, "layer_norm_param_grad": _replace_norm_gradients}


def _add_reduction(
    job: Any, op: Any, kind: str, source: str, value: str, axes: list[int], read: str, made: str
) -> None:
    """Add a reduction where an op is, in the states of the operands that the op reads and makes."""
    added = job.net.op.add()
    added.CopyFrom(op)
    added.name = value.partition("/")[0]
    conf = added.user_conf
    conf.Clear()
    conf.op_type_name = kind
    conf.input["input_tensor"].s.append(source)
    conf.output["output_tensor"].s.append(value)
    conf.input_order.append("input_tensor")
    conf.output_order.append("output_tensor")
    conf.attr["axis"].at_list_int32.val.extend(axes)
    conf.attr["keepdims"].at_bool = False
    for group in job.placement.placement_group:
        if op.name in group.op_set.op_name and added.name != op.name:
            group.op_set.op_name.append(added.name)
    states = {
        "input_tensor_0": job_writer.read_state(_states(job, op.name)[read]),
        "output_tensor_0": job_writer.read_state(_states(job, op.name)[made]),
    }
    job_writer.write_signature(job, added.name, states)


def _states(job: Any, op_name: str) -> Any:
    return job.job_parallel_view_conf.op_name2nd_sbp_signature_conf[op_name].bn_in_op2nd_sbp


def _read_instead(job: Any, old: str, new: str) -> None:
    """Let all readers of a tensor read another one."""
    for op in job.net.op:
        if op.WhichOneof("op_type") == "user_conf":
            for port in op.user_conf.input.values():
                port.s[:] = [new if lbn == old else lbn for lbn in port.s]
    for conf in job.job_conf.train_conf.optimizer_conf:
        conf.variable_grad_lbns[:] = [new if s == old else s for s in conf.variable_grad_lbns]


def _factory(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
