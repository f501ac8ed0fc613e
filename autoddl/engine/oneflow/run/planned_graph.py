"""A graph under a plan: traced as on one device, rewritten, and run on all ranks.

The engine's own ways put tensors in states, and whole modules on the devices of stages, while they
trace. Here a part of the batch is traced as on one device, with parameters that take no memory, and
the job is rewritten: so any op may have any states and stages may begin anywhere, and the user's
model is not touched.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import oneflow as flow
from oneflow.framework.tensor_tuple_util import convert_to_tensor_tuple
from oneflow.nn.graph.util import ArgsTree

from autoddl.engine.oneflow.capture import op_names
from autoddl.engine.oneflow.capture.constants import constants_of, digests_of
from autoddl.engine.oneflow.capture.data_ops import data_ops
from autoddl.engine.oneflow.capture.op_names import neutral_name
from autoddl.engine.oneflow.capture.reader import accumulation_steps, program_of, traced_alone
from autoddl.engine.oneflow.capture.shadow import named_variables, of_tensors
from autoddl.engine.oneflow.job import accumulation, plan_injection
from autoddl.engine.oneflow.job.halves_writer import write_halves
from autoddl.engine.oneflow.job.op_writer import write_changes, write_sums
from autoddl.engine.oneflow.job.precision_writer import write_precision
from autoddl.engine.oneflow.run.agree import of_rank_0
from autoddl.engine.oneflow.run.compile_settings import compiling
from autoddl.engine.oneflow.run.global_tensors import placements, sbp_of, shard
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from autoddl.sbp.program.ops_and_tensors import SEED
from autoddl.sbp.rewrites.halves import HALF, halves, second
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import is_synchronised, synchronised
from autoddl.sbp.rewrites.in_parts.whole_masks import has_whole_masks, with_whole_masks
from autoddl.sbp.rewrites.recomputed_layers import in_layers, ops_again
from autoddl.sbp.rewrites.stage_copies import in_each_stage
from autoddl.sbp.rewrites.tied_sums import is_late, sums_once
from autoddl.sbp.state import broadcast

logger = logging.getLogger(__name__)

_native = flow._oneflow_internal
# OneFlow takes a graph down on all ranks together, and one that does so alone waits for the others for
# ever: while it handles an exception, say, or collects garbage. So graphs stay until `close`.
_kept: list[flow.nn.Graph] = []

Call = tuple[Any, Any]
"""Positional and keyword arguments of a graph."""
Inputs = Mapping[str, flow.Tensor]
"""The tensors among them, by their names in programs."""


class PlannedGraph:
    """A compiled graph that follows a plan.

    Call it with what the graph is called with, for each half of the batch if the plan has halves: global
    tensors on the devices of the plan. It returns what the graph returns: the loss
    on all ranks, as the mean over all micro-batches or halves, of each where the graph itself accumulates
    gradients; what else one of them returns on the
    devices that make it, stacked or, with a batch dim, one behind the other. `native` is what OneFlow
    has compiled. `states` are those of the optimizer that another graph over the same model has already.
    """

    def __init__(
        self,
        plan: PlanValue,
        graph: flow.nn.Graph,
        call: Call,
        inputs: Sequence[Inputs],
        states: Mapping[str, flow.Tensor],
    ) -> None:
        self._plan, self._as_user = plan, accumulation_steps(graph) > 1
        self._twin, program, constants = planned_job(plan, graph, call)
        job = self._twin._full_job_proto
        self._made = list(self._made_outputs(program))
        self._loss = program.loss
        _tell_of_shards(plan)
        self._written = convert_to_tensor_tuple([tensor for _, tensor in self._made])
        variables = dict(named_variables(graph)) | dict(_placed(plan, constants))
        names = [op.name for op in job.net.op if op.name in variables]
        self._variables = convert_to_tensor_tuple([variables[name] for name in names])
        read, written = (
            [op.name for op in job.net.op if op.WhichOneof("op_type") == kind]
            for kind in ("input_conf", "output_conf")
        )
        self.native = _native.nn.graph.CNNGraph(
            self._twin.name, job.SerializeToString(), self._twin._job_id,
            self._twin._session._session_ctx,
        )  # fmt: skip
        self._read = [neutral_name(name, self._twin.name) for name in read]
        self.native.register_input_op_names_and_tensors(read, self._in_turn(inputs))
        self.native.register_output_op_names_and_tensors(written, self._written)
        self.native.register_variable_op_names_and_tensors(names, self._variables)
        self._twin._c_nn_graph = self.native
        for op in job.net.op:
            state = states.get(op_names.state_name(op.name))
            if state is not None and op.WhichOneof("op_type") == "variable_conf":
                self._twin._additional_variable_tobe_loaded[op.name] = state
        with compiling(plan), redirect_stdout(sys.stderr):  # the engine prints that it has failed
            self._twin.finish_complie_and_init_runtime()
        _kept.append(self._twin)

    def close(self) -> None:
        """Take the graph down: all ranks have to, at the same place. It can't be called after that."""
        _kept.remove(self._twin)
        del self._twin, self.native

    @property
    def states(self) -> dict[str, flow.Tensor]:
        """Return what the engine keeps besides the model: states of optimizers, the count of steps."""
        names = map(op_names.state_name, self.native.additional_var_names)
        return dict(zip(names, self.native.additional_var_tensors, strict=True))

    @property
    def compiled(self) -> Any:
        return self._twin._compiled_job_proto

    def __call__(self, inputs: Sequence[Inputs]) -> Any:
        graph = _native.nn.graph
        graph.RunLazyNNGraph(self._in_turn(inputs), self._written, self._variables, self.native)
        found = iter(self._returned())
        graph.SoftSyncNNGraphBuffers(self._written, self.native)
        return of_tensors((self._twin._eager_outputs, {}), lambda _, __: next(found))[0][0]

    def _in_turn(self, inputs: Sequence[Inputs]) -> Any:
        """Return the inputs of all halves in the order in which the job has them."""
        return convert_to_tensor_tuple(
            [inputs[name.startswith(HALF)][name.removeprefix(HALF)] for name in self._read]
        )

    def _made_outputs(self, program: Program) -> Iterator[tuple[str, flow.Tensor]]:
        """Make the tensors that the engine writes outputs to, on the devices that make these."""
        plan, places = self._plan, placements(self._plan)
        local = dict(zip(program.outputs, _tensors((self._twin._eager_outputs, {})), strict=False))
        local |= {second(name): tensor for name, tensor in local.items()}
        for name in program.outputs:
            producer = program.producer.get(name)
            stage = plan.stage_of.get(name if producer is None else producer.name, 0)
            like, whole = local[name], sbp_of(broadcast(plan.parts[stage].mesh.ndim))
            made = flow.empty(
                tuple(like.shape), dtype=like.dtype, placement=places[stage], sbp=whole
            )
            yield name, made

    def _returned(self) -> Iterator[flow.Tensor]:
        """Yield copies of what the engine has written; of halves one of both."""
        seconds = {name: tensor for name, tensor in self._made if name.startswith(HALF)}
        for name, tensor in self._made:
            if name.startswith(HALF):
                continue
            found = [t for t in (tensor, seconds.get(second(name))) if t is not None]
            whole = _joined(found)
            yield self._of_all(whole) if self._plan.parted and name == self._loss else whole

    def _of_all(self, losses: flow.Tensor) -> flow.Tensor:
        """Return the losses of all parts of the batch on all ranks: their mean, if the plan parted it."""
        everywhere = flow.placement(losses.placement.type, list(range(flow.env.get_world_size())))
        with flow.no_grad():
            found = losses if self._as_user else losses.mean()
            return found.to_global(placement=everywhere, sbp=flow.sbp.broadcast)


def planned_job(
    plan: PlanValue, graph: flow.nn.Graph, call: Call
) -> tuple[flow.nn.Graph, Program, Mapping[str, flow.Tensor]]:
    """Return a built copy of a graph whose job follows a plan, its Program, and its constants.

    The call is that of all micro-batches, or of one half.
    """
    twin = traced_alone(graph, call, plan.device, micro_batches=plan.micro_batches)
    job, constants = twin._full_job_proto, constants_of(twin)
    renamed = accumulation.rename(job, twin._forward_job_proto)
    constants = {renamed.get(name, name): tensor for name, tensor in constants.items()}
    program = program_of(accumulation.micro_job(job), twin.name)
    on_all_ranks(job, plan)
    if plan.micro_batches > 1 and any(map(op_names.is_precision_cast, plan.signatures)):
        write_precision(job, program, plan.layout.program, twin.name)
        program = program_of(accumulation.micro_job(job), twin.name)
    traced = program
    if is_synchronised(plan.program):
        program = synchronised(program)
    if has_whole_masks(plan.program):
        program = with_whole_masks(program, alike=plan.engine.masks_alike)
        program, _ = in_each_stage(program, plan.stage_of)
    if again := ops_again(plan.program):
        program = in_layers(program, again)
    if program is not traced:
        write_changes(job, traced, program, twin.name, micro_batches=plan.micro_batches)
    if any(map(is_late, plan.program.ops)):
        program, _ = sums_once(program, plan.stage_of)
        write_sums(job, program, twin.name)
    if plan.duplex:
        half, program = program, halves(program)
        write_halves(job, half, program, twin.name)
    plan.check_graph(program)
    plan_injection.write_plan(job, plan, program, twin.name)
    return twin, program, constants


def _placed(
    plan: PlanValue, constants: Mapping[str, flow.Tensor]
) -> Iterator[tuple[str, flow.Tensor]]:
    """Yield a graph's constants as the plan has them; say where they are others than when it was made."""
    places, planned = placements(plan), dict(plan.program.constants)
    values = of_rank_0(constants) if constants else {}
    other = [name for name, digest in digests_of(values) if planned.get(name) != digest]
    if other and flow.env.get_rank() == 0:
        logger.warning(
            "%d constants of the graph have other values than when it was planned, first %s; the graph's "
            "are taken", len(other), other[0],
        )  # fmt: skip
    for name, tensor in values.items():
        yield name, shard(tensor, places[plan.stage_of[name]], plan.variables[name])


def _tell_of_shards(plan: PlanValue) -> None:
    """Say which random numbers are others than on one device, since each draws its shard by itself."""
    found = [
        op.name
        for op in plan.program.ops
        for operand, _ in op.outputs
        if SEED in op.attr and any(s.is_split for s in plan.signatures[op.name][operand])
    ]
    if found and flow.env.get_rank() == 0:
        logger.warning(
            "%d random ops draw their numbers shard by shard, first %s: not those of one device",
            len(found), found[0],
        )  # fmt: skip


def on_all_ranks(job: Any, plan: PlanValue) -> None:
    """Let a job that was traced on one device run on all ranks, but two kinds of ops on one of them.

    Those are the engine's scheduler, which counts steps and gives learning rates, with kernels for CPUs
    alone, and what reads data.
    """
    placement, view = job.placement, job.job_parallel_view_conf
    reading = data_ops(job)
    host = {op.name for op in job.net.op if _is_scheduler(op)} | reading
    for op in job.net.op:
        if op.name in reading and "nd_sbp" in op.user_conf.attr:
            # else a reader would have the files of its rank alone, wherever it is placed
            op.user_conf.attr["nd_sbp"].at_list_string.val[:] = ["S(0)"]
    names = [op.name for op in job.net.op]
    del placement.placement_group[:]
    del placement.blob_placement_group[:]
    ranks = flow.env.get_world_size()
    per_node = ranks // flow.env.get_node_size()
    everywhere = [f"@{r}:{r % per_node}" for r in range(ranks)]
    for device, devices, chosen in (
        ("cpu", ["0:0"], [n for n in names if n in host]),
        (plan.device, everywhere, [n for n in names if n not in host]),
    ):
        group = placement.placement_group.add()
        group.parallel_conf.device_tag = device
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


def _tensors(call: Call) -> list[flow.Tensor]:
    return [node for node in ArgsTree(call, False).iter_nodes() if isinstance(node, flow.Tensor)]


def _joined(tensors: Sequence[flow.Tensor]) -> flow.Tensor:
    """Return one copy of what the halves return, or of what there is once."""
    with flow.no_grad():
        if len(tensors) == 1:
            return tensors[0].clone()
        return flow.cat(list(tensors), dim=0) if tensors[0].ndim else flow.stack(list(tensors))
