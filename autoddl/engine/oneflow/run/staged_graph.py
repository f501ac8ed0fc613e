"""A graph whose plan has stages or halves: traced on one device, rewritten, and run on all ranks.

The engine's own way to stages puts whole modules on devices while it traces. Here one micro-batch is
traced as on one device, with parameters that take no memory, and the job is rewritten: so stages may
begin at any op, and the user's model is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import oneflow as flow
from oneflow.framework.tensor_tuple_util import convert_to_tensor_tuple
from oneflow.nn.graph.util import ArgsTree

from autoddl.engine.oneflow.capture.abstract import zero_stride
from autoddl.engine.oneflow.capture.reader import program_of, traced
from autoddl.engine.oneflow.capture.shadow import named_variables, replace_variables
from autoddl.engine.oneflow.run import accumulation, plan_injection
from autoddl.engine.oneflow.run.halves_writer import write_halves
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.halves import HALF, halves, second

_native = flow._oneflow_internal

Call = tuple[Any, Any]
"""Positional and keyword arguments of a graph."""


def placements(plan: PlanValue) -> list[Any]:
    """Return the devices of every part, as global tensors want them."""
    return [
        flow.placement(plan.device, _nested(part.ranks, part.mesh.shape)) for part in plan.parts
    ]


def _nested(ranks: Sequence[int], shape: Sequence[int]) -> Any:
    if len(shape) == 1:
        return list(ranks)
    step = len(ranks) // shape[0]
    return [_nested(ranks[i : i + step], shape[1:]) for i in range(0, len(ranks), step)]


class StagedGraph:
    """A compiled graph with stages, or with both halves of a batch.

    Call it with the arguments that the graph is called with, for each half: global tensors on the
    stages of the plan. It returns what the graph returns: the loss as the mean over all
    micro-batches or halves, on all ranks; what else one of them returns on its stage, stacked or, with
    a batch dim, one behind the other. `native` is what OneFlow has compiled.
    """

    def __init__(self, plan: PlanValue, graph: flow.nn.Graph, calls: Sequence[Call]) -> None:
        self._twin, program = traced_part(plan, graph, *calls[0])
        job = self._twin._full_job_proto
        on_all_ranks(job, plan)
        if plan.duplex:
            half, program = program, halves(program)
            write_halves(job, half, program, self._twin.name)
        plan.check_graph(program)
        plan_injection.write_plan(job, plan, program, self._twin.name)
        self._outputs = self._made_outputs(plan, program)
        self._written = convert_to_tensor_tuple(self._outputs)
        variables = dict(named_variables(graph))
        names = [op.name for op in job.net.op if op.name in variables]
        self._variables = convert_to_tensor_tuple([variables[name] for name in names])
        inputs, outputs = (
            [op.name for op in job.net.op if op.WhichOneof("op_type") == kind]
            for kind in ("input_conf", "output_conf")
        )
        self.native = _native.nn.graph.CNNGraph(
            self._twin.name, job.SerializeToString(), self._twin._job_id,
            self._twin._session._session_ctx,
        )  # fmt: skip
        self.native.register_input_op_names_and_tensors(inputs, _flat(calls))
        self.native.register_output_op_names_and_tensors(outputs, self._written)
        self.native.register_variable_op_names_and_tensors(names, self._variables)
        self._twin._c_nn_graph = self.native
        self._twin.finish_complie_and_init_runtime()

    @property
    def compiled(self) -> Any:
        """Return the job proto that the engine has compiled."""
        return self._twin._compiled_job_proto

    def __call__(self, calls: Sequence[Call]) -> Any:
        """Run one step."""
        graph = _native.nn.graph
        graph.RunLazyNNGraph(_flat(calls), self._written, self._variables, self.native)
        found = iter(self._returned())
        graph.SoftSyncNNGraphBuffers(self._written, self.native)

        def leaf(node: Any) -> Any:
            return next(found) if isinstance(node.value(), flow.Tensor) else node.value()

        tree = ArgsTree((self._twin._eager_outputs, {}), True, "output", None)
        return tree.map_leaf(leaf)[0][0]

    def _made_outputs(self, plan: PlanValue, program: Program) -> list[flow.Tensor]:
        """Make the tensors that the engine writes outputs to, on the stages that make them."""
        places, whole = placements(plan), [flow.sbp.broadcast] * plan.mesh.ndim
        local = dict(zip(program.outputs, _flat([(self._twin._eager_outputs, {})]), strict=False))
        local |= {second(name): tensor for name, tensor in local.items()}
        stage = {name: plan.stage_of[program.producer[name].name] for name in program.outputs}
        self._made = {
            name: flow.empty(
                tuple(local[name].shape), dtype=local[name].dtype, placement=places[stage[name]],
                sbp=whole,
            )
            for name in program.outputs
        }  # fmt: skip
        self._loss = program.loss
        return list(self._made.values())

    def _returned(self) -> Iterator[flow.Tensor]:
        """Yield copies of what the engine has written; of halves one of both."""
        for name, tensor in self._made.items():
            if name.startswith(HALF):
                continue
            found = [t for t in (tensor, self._made.get(second(name))) if t is not None]
            yield _joined(found, is_loss=name == self._loss)


def traced_part(
    plan: PlanValue, graph: flow.nn.Graph, args: Any, kwargs: Any
) -> tuple[flow.nn.Graph, Program]:
    """Return a built copy of a graph and the Program of one part of the batch, with the same names."""

    def leaf(node: Any) -> Any:
        value = node.value()
        if not isinstance(value, flow.Tensor):
            return value
        return flow.zeros(tuple(value.shape), dtype=value.dtype, device=plan.device)

    args, kwargs = ArgsTree((args, kwargs), True, "input", None).map_leaf(leaf)
    with _accumulating(graph, plan.micro_batches), _without_memory(graph):
        twin = traced(graph, *args, **kwargs)
    job = twin._full_job_proto
    accumulation.rename(job, twin._forward_job_proto)
    return twin, program_of(accumulation.micro_job(job), twin.name)


@contextmanager
def _accumulating(graph: flow.nn.Graph, count: int) -> Iterator[None]:
    """Let copies of a graph sum up the gradients of so many micro-batches."""
    proto = graph.config.proto
    kept = type(proto)()
    kept.CopyFrom(proto)
    if count > 1:
        graph.config.set_gradient_accumulation_steps(count)
    try:
        yield
    finally:
        proto.CopyFrom(kept)


@contextmanager
def _without_memory(graph: flow.nn.Graph) -> Iterator[None]:
    """Let a graph have local variables that take no memory, for tracing."""
    kept = dict(named_variables(graph))
    replace_variables(graph, lambda _, tensor: zero_stride(tuple(tensor.shape), tensor.dtype))
    try:
        yield
    finally:
        replace_variables(graph, lambda name, _: kept[name])


def on_all_ranks(job: Any, plan: PlanValue) -> None:
    """Let a job that was traced on one device run on all ranks, but the engine's scheduler on one."""
    placement, view = job.placement, job.job_parallel_view_conf
    host = {op.name for op in job.net.op if _is_scheduler(op)}
    names = [op.name for op in job.net.op]
    del placement.placement_group[:]
    del placement.blob_placement_group[:]
    ranks = flow.env.get_world_size()
    per_node = ranks // flow.env.get_node_size()
    for devices, chosen in (
        (["0:0"], [n for n in names if n in host]),
        ([f"@{r}:{r % per_node}" for r in range(ranks)], [n for n in names if n not in host]),
    ):
        group = placement.placement_group.add()
        group.parallel_conf.device_tag = plan.device
        group.parallel_conf.device_name.extend(devices)
        group.parallel_conf.hierarchy.dim.append(len(devices))
        group.op_set.op_name.extend(chosen)
    for name in names:
        view.op_name2is_local_parallel_view[name] = False
        for table in (view.op_name2nd_sbp_signature_conf, view.op_name2sbp_signature_conf):
            if name in table and name not in host:
                del table[name]


def _is_scheduler(op: Any) -> bool:
    return op.name.startswith("System-Train")


def _flat(calls: Sequence[Call]) -> Any:
    nodes = (node for call in calls for node in ArgsTree(call, False).iter_nodes())
    return convert_to_tensor_tuple([node for node in nodes if isinstance(node, flow.Tensor)])


def _joined(tensors: Sequence[flow.Tensor], *, is_loss: bool) -> flow.Tensor:
    """Return one copy of what the halves return, or of what there is once."""
    with flow.no_grad():
        whole = tensors[0].clone()
        if len(tensors) > 1:
            whole = flow.cat(list(tensors), dim=0) if tensors[0].ndim else flow.stack(list(tensors))
        if not is_loss:
            return whole
        everywhere = flow.placement(whole.placement.type, list(range(flow.env.get_world_size())))
        return whole.mean().to_global(placement=everywhere, sbp=flow.sbp.broadcast)
