"""Constants of a graph: tensors that are no inputs, parameters or buffers, but met while it is traced.

An index that `forward` makes, `flow.tensor([3, 1, 1, 0])`, or a mask that is a plain attribute of a
module: OneFlow makes variables of them, "model-FreeEagerTensor-4", and keeps their tensors aside until
the job is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import oneflow as flow
from oneflow.core.common import data_type_pb2
from oneflow.core.job import job_pb2

from autoddl.engine.oneflow.capture import abstract
from autoddl.errors import AutoDDLError

_ASKED = "_autoddl_asked"


def is_constant(op: Any) -> bool:
    """Tell whether an op of a job is the variable of a constant."""
    named = re.fullmatch(r"(.*-)?FreeEagerTensor-\d+", op.name)
    return named is not None and op.WhichOneof("op_type") == "variable_conf"


def constants_of(graph: flow.nn.Graph) -> dict[str, flow.Tensor]:
    """Return the constants of a built graph by the names of their variables.

    Raises:
        AutoDDLError: one was made without values.
    """
    found = dict(_read(graph))
    for name, tensor in found.items():
        if abstract.is_stand_in(tensor):
            raise AutoDDLError(
                f"graph {graph.name}: constant {name}, of shape {tuple(tensor.shape)}, was made inside "
                "abstract_parameters(), which gives values to parameters alone; make it outside, or from "
                "an array of NumPy"
            )
    return found


def digests_of(constants: Mapping[str, flow.Tensor]) -> tuple[tuple[str, str], ...]:
    """Return digests of dtypes, shapes and values, by name."""
    return tuple((name, _digest(constants[name])) for name in sorted(constants))


def _digest(tensor: flow.Tensor) -> str:
    array = tensor.detach().numpy()
    facts = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(facts + array.tobytes()).hexdigest()[:16]


def _read(graph: flow.nn.Graph) -> Iterator[tuple[str, flow.Tensor]]:
    names = [op.name for op in graph._full_job_proto.net.op if is_constant(op)]
    native = graph._c_nn_graph if graph._is_compiled else end_trace(graph)
    if not names:
        return
    held = dict(zip(native.additional_var_names, native.additional_var_tensors, strict=True))
    graph.__dict__[_ASKED] = native  # OneFlow lets the graph's constants go when this does
    for name in names:
        yield name, held[name]


def end_trace(graph: flow.nn.Graph) -> Any:
    """Return a native graph that has asked OneFlow for the constants of the graph of its name.

    That is the first thing which compilation does. Then it forgets which tensors the trace has met: those
    of the next that lie at their addresses would be taken for them, and OneFlow aborts. So the job here
    ends after that, with an error, since two ops write to one variable.
    """
    job = job_pb2.Job()
    job.job_conf.CopyFrom(graph.config.proto)
    conf = _added(job, "variable").variable_conf
    conf.out, conf.data_type = "out", data_type_pb2.kFloat
    conf.shape.dim.append(1)
    conf.nd_sbp.append("B")
    conf.initializer.constant_conf.value = 0.0
    for name in ("first", "second"):
        writer = _added(job, name).user_conf
        writer.op_type_name = "assign"
        for port in ("ref", "value"):
            writer.input[port].s.append("variable/out")
            writer.input_order.append(port)
    native = flow._oneflow_internal.nn.graph
    asked = native.CNNGraph(
        graph.name, job.SerializeToString(), graph._job_id or 0, graph._session._session_ctx
    )
    with contextlib.suppress(flow._oneflow_internal.exception.Exception):
        asked.complie_and_init_runtime()
    return asked


def _added(job: Any, name: str) -> Any:
    """Add an op without contents, on one device."""
    op, group = job.net.op.add(), job.placement.placement_group.add()
    op.name, op.device_tag = name, "cpu"
    group.op_set.op_name.append(name)
    group.parallel_conf.device_tag = "cpu"
    group.parallel_conf.device_name.append("@0:0")
    group.parallel_conf.hierarchy.dim.append(1)
    return op
