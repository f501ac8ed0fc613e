"""The communication of a plan by the clock: its redistributions one after another, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import oneflow as flow

from autoddl.api import Plan
from autoddl.engine.oneflow.job.job_writer import read_state, write_output, write_signature
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp, broadcast

_KINDS = {"B": flow.sbp.broadcast, "P": flow.sbp.partial_sum}


def traffic(plan: Plan, program: Program) -> tuple[Any, tuple[Any, ...]]:
    """Return a graph and its inputs, the tensors to redistribute; every boxing waits for the last.

    The graph returns the last input, one element, when all is done.
    """
    made = plan.layout.made
    paths = [(made[item.tensor], *item.path) for item in plan.redistributions]
    paths.append((broadcast(plan.mesh.ndim),))
    kinds = [(t.shape, t.dtype) for t in (program.tensor[r.tensor] for r in plan.redistributions)]
    kinds.append(((1,), "float32"))
    mesh = flow.placement(plan.device, np.arange(plan.mesh.size).reshape(plan.mesh.shape).tolist())
    inputs = tuple(
        _zeros(shape, getattr(flow, dtype), mesh, path[0])
        for (shape, dtype), path in zip(kinds, paths, strict=True)
    )
    graph = _Traffic([len(path) for path in paths])
    graph.build_graph(*inputs)
    job = graph._full_job_proto
    ops = {op.name: op for op in job.net.op}
    previous = ""
    names = iter(graph.names)
    for path in paths:
        for state in path:
            name = next(names)
            write_signature(job, name, {"in_0": state, "out_0": state})
            if previous:
                ops[name].ctrl_in_op_name.append(previous)
            previous = name
    for op in job.net.op:
        if op.WhichOneof("op_type") == "output_conf":
            write_output(job, op, paths[-1][-1])
    graph._full_graph_proto = job
    graph.finish_complie_and_init_runtime()
    _check(graph, [state for path in paths for state in path])
    return graph, inputs


def _check(graph: Any, states: list[NdSbp]) -> None:
    """Make sure that the engine redistributes what is asked for.

    Raises:
        AutoDDLError: it does something else.
    """
    table = graph._compiled_job_proto.job_parallel_view_conf.op_name2nd_sbp_signature_conf
    for name, state in zip(graph.names, states, strict=True):
        compiled = read_state(table[name].bn_in_op2nd_sbp["out_0"])
        if compiled != state.executed:
            raise AutoDDLError(f"traffic: the engine made {compiled} of {state} in {name}")


class _Traffic(flow.nn.Graph):
    """Identity ops: one that holds each tensor and one for each state that it turns into next."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.lengths = lengths
        self.names = [f"identity-{number}" for number in range(sum(lengths))]

    def build(self, *tensors: Any) -> Any:
        for tensor, length in zip(tensors, self.lengths, strict=True):
            for _ in range(length):
                tensor = flow._C.identity(tensor)
        return tensor


def _zeros(shape: tuple[int, ...], dtype: Any, mesh: Any, state: NdSbp) -> Any:
    """Return a tensor in a state; an eager one is made whole and split one axis at a time."""
    here = [flow.sbp.broadcast] * len(state)
    tensor = flow.zeros(shape, dtype=dtype, placement=mesh, sbp=here)
    for axis, sbp in enumerate(state):
        here[axis] = flow.sbp.split(sbp.dim) if sbp.is_split else _KINDS[sbp.kind]
        tensor = tensor.to_global(placement=mesh, sbp=here)
    return tensor
