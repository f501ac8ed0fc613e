"""Run a plan: the callable that `Plan.apply` returns."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import oneflow as flow
from oneflow.nn.graph.util import ArgsTree

from autoddl.checkpoint import sharded_files
from autoddl.engine.oneflow.capture.reader import program_of
from autoddl.engine.oneflow.capture.shadow import (
    kept_gradients,
    modules,
    replace_variables,
    shadow,
    variables,
)
from autoddl.engine.oneflow.run import plan_injection
from autoddl.engine.oneflow.run.boxing_streams import streams
from autoddl.engine.oneflow.run.saved_state import SavedState
from autoddl.engine.oneflow.run.staged_graph import Call, StagedGraph, placements
from autoddl.errors import AutoDDLError
from autoddl.plan import codec
from autoddl.plan.value import InputPlan, PlanValue
from autoddl.sbp.rewrites.halves import second
from autoddl.sbp.state import NdSbp, broadcast

logger = logging.getLogger(__name__)


class OneFlowStep:
    """One training step of `graph` under `plan`, on all ranks of the mesh.

    Call it as the graph is called: with global tensors of any SBP, or with local tensors that hold
    the whole logical batch on every rank. It returns what the graph returns, as global tensors. The
    distributed graph is built in the first call; the graph object itself is not touched.
    """

    def __init__(self, plan: PlanValue, graph: flow.nn.Graph) -> None:
        if not isinstance(graph, flow.nn.Graph):
            raise AutoDDLError(f"apply: got {type(graph).__name__}; give the planned nn.Graph")
        self.plan = plan
        self.graph = graph
        self._running: flow.nn.Graph | StagedGraph | None = None
        self._pending: Callable[[SavedState], None] | None = None
        self._check()
        self.placements = placements(plan)
        self._inputs = {item.name: item for item in plan.inputs}
        make_global(graph, self._placement, broadcast(plan.mesh.ndim))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on the whole logical batch."""
        return self._run(args, kwargs, self._whole_to_global)

    def from_local(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on local tensors that hold just this rank's part of the batch.

        Which part that is says `plan.inputs[i].local_slice(rank)`; with stages this part of each
        micro-batch, one behind the other, and of `rank % plan.mesh.size`.
        """
        return self._run(args, kwargs, self._part_to_global)

    def state_dict(self) -> dict[str, Any]:
        """Return what `graph.state_dict()` does on one device: whole local tensors, on every rank.

        With the states of optimizers and the count of steps. All ranks have to call it, after the first
        step. It needs the memory of the whole model on each; `save` does not.

        Raises:
            AutoDDLError: no step was done yet.
        """
        return self._saved("state_dict").whole()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state dict of the graph: of this step, another plan's, or of one device.

        Before the first step its values are taken when that is built.

        Raises:
            AutoDDLError: it lacks a tensor, or one has another shape.
        """
        self._load(lambda saved: saved.take(state_dict))

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: parameters, buffers, states of optimizers, the count of steps, the plan.

        All ranks have to call it, after a step; each writes the shards that it owns into the `folder`,
        which all nodes share. A crash leaves the checkpoint that was there before.

        Raises:
            AutoDDLError: no step was done yet, or a rank can't write.
        """
        self._saved("save").save(folder, {"plan": codec.encode(self.plan).decode()})

    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, whatever plan and number of ranks saved it.

        All ranks have to call it; each reads its shards. Before the first step values are taken when
        that is built.

        Raises:
            AutoDDLError: there is none in the folder, it is damaged, or of another model.
        """
        sharded_files.read_index(folder)
        self._load(lambda saved: saved.load(folder))

    def _saved(self, what: str) -> SavedState:
        if self._running is None:
            raise AutoDDLError(f"step.{what}: not built yet; call the step once first")
        return SavedState(self.graph, _native(self._running))

    def _load(self, take: Callable[[SavedState], None]) -> None:
        if self._running is None:
            self._pending = take
        else:
            take(self._saved("load"))

    @property
    def changed_signatures(self) -> list[tuple[str, str]]:
        """Return the (op, operand) pairs that the engine did not execute as planned."""
        if self._running is None:
            raise AutoDDLError("step: not built yet; call it once first")
        return plan_injection.changed_signatures(_compiled(self._running), self.plan)

    def _placement(self, name: str) -> Any:
        """Return the devices of a variable or an input."""
        return self.placements[self.plan.stage_of.get(name, 0)]

    def _run(self, args: Any, kwargs: Any, convert: Callable[[str, Any, int], Any]) -> Any:
        def call(half: int) -> Call:
            def leaf(node: Any) -> Any:
                value = node.value()
                if not isinstance(value, flow.Tensor):
                    return value
                return convert(_neutral(node.prefix() + "_" + node.name()), value, half)

            return ArgsTree((args, kwargs), True, "input", None).map_leaf(leaf)

        calls = [call(half) for half in range(self._halves)]
        if self._running is None:
            self._running = self._build(calls)
            if self._pending is not None:
                self._pending(self._saved("load"))
                self._pending = None  # it may hold a whole state dict
        if isinstance(self._running, StagedGraph):
            return self._running(calls)
        args, kwargs = calls[0]
        return self._running(*args, **kwargs)

    def _build(self, calls: Sequence[Call]) -> flow.nn.Graph | StagedGraph:
        try:
            if self.plan.parted:
                running = StagedGraph(self.plan, self.graph, calls)
            else:
                running = self._injected(*calls[0])
        except AutoDDLError:
            raise
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
            raise AutoDDLError(
                f"plan: OneFlow can't run it on mesh {self.plan.mesh}: {reason.strip()[:300]}"
            ) from error
        changed = plan_injection.changed_signatures(_compiled(running), self.plan)
        if changed:
            logger.warning(
                "the engine changed %d planned signatures, first %s %s", len(changed), *changed[0]
            )
        return running

    def _injected(self, args: Any, kwargs: Any) -> flow.nn.Graph:
        """Return a compiled copy of the graph, traced on all devices of the mesh."""
        twin = shadow(self.graph)
        with kept_gradients(self.graph):
            twin.build_graph(*args, **kwargs)
        job = twin._full_job_proto
        program = program_of(job, twin.name)
        self.plan.check_graph(program)
        plan_injection.write_plan(job, self.plan, program, twin.name)
        twin._full_graph_proto = job
        with streams(compute_stream=self.plan.compute_stream):
            twin.finish_complie_and_init_runtime()
        return twin

    @property
    def _halves(self) -> int:
        """Return in how many halves the batch goes through the graph."""
        return 2 if self.plan.duplex else 1

    def _half(self, tensor: flow.Tensor, half: int) -> flow.Tensor:
        return tensor.chunk(2, dim=0)[half] if self.plan.duplex and tensor.ndim else tensor

    def _whole_to_global(self, name: str, tensor: flow.Tensor, half: int) -> flow.Tensor:
        item = self._input(name, half)
        shape = self._batch_shape(item)
        if tuple(tensor.shape) != shape:
            raise AutoDDLError(
                f"step: input {name} has shape {tuple(tensor.shape)}, planned was {shape}; "
                "pass the whole logical batch (or use step.from_local), or plan again"
            )
        place, sbp = self._placement(item.name), _engine_sbp(item.state)
        tensor = self._half(tensor, half)
        if tensor.is_global:
            return tensor.to_global(placement=place, sbp=sbp)
        return self._part(item, tensor).to_global(placement=place, sbp=sbp)

    def _part(self, item: InputPlan, tensor: flow.Tensor) -> flow.Tensor:
        """Cut this rank's part out of a batch or a half: its part of one micro-batch after the other."""
        if not item.shape:
            return tensor
        count = self.plan.micro_batches
        part = item.local_slice(flow.env.get_rank() % self.plan.mesh.size)
        parts = [micro[part].contiguous() for micro in tensor.chunk(count, dim=0)]
        return flow.cat(parts, dim=0) if count > 1 else parts[0]

    def _batch_shape(self, item: InputPlan) -> tuple[int, ...]:
        """Return the shape of an input for the whole step: all micro-batches one behind the other."""
        times = self.plan.micro_batches * self._halves
        return (*(size * times for size in item.shape[:1]), *item.shape[1:])

    def _part_to_global(self, name: str, tensor: flow.Tensor, half: int) -> flow.Tensor:
        item = self._input(name, half)
        part = replace(item, shape=self._batch_shape(item)).local_slice(
            flow.env.get_rank() % self.plan.mesh.size
        )
        shape = tuple(s.stop - s.start for s in part)
        if tensor.is_global or tuple(tensor.shape) != shape:
            kind = "a global tensor" if tensor.is_global else f"shape {tuple(tensor.shape)}"
            raise AutoDDLError(
                f"step.from_local: input {name} is {kind}; give a local tensor of shape {shape}, "
                f"the part that {self._local_part()} names"
            )
        here = self._half(tensor, half).contiguous()
        return here.to_global(placement=self._placement(item.name), sbp=_engine_sbp(item.state))

    def _local_part(self) -> str:
        if self.plan.duplex:
            return "plan.inputs[i].local_slice(rank) of each half, one behind the other,"
        if not self.plan.pipelined:
            return "plan.inputs[i].local_slice(rank)"
        size = self.plan.mesh.size
        return f"plan.inputs[i].local_slice(rank % {size}), of one micro-batch behind the other,"

    def _input(self, name: str, half: int) -> InputPlan:
        if name not in self._inputs:
            raise AutoDDLError(
                f"step: got input {name}, the plan knows {', '.join(self._inputs)}; "
                "call it as the graph was called when it was planned"
            )
        return self._inputs[second(name) if half else name]

    def _check(self) -> None:
        """Refuse early what can be told without building: ranks, device type, variables."""
        plan, world = self.plan, flow.env.get_world_size()
        if plan.devices != world:
            stages = f"{len(plan.parts)} stages of " if plan.pipelined else ""
            raise AutoDDLError(
                f"plan: {stages}mesh {plan.mesh} has {plan.devices} devices, but {world} ranks run; "
                f"start {plan.devices} ranks (python -m autoddl run --nproc-per-node "
                f"{plan.devices} …) or plan for {world}"
            )
        names = {
            f"{name}.{path}"
            for name, module in zip(self.graph._blocks, modules(self.graph), strict=True)
            for path, _ in (*module.named_parameters(), *module.named_buffers())
        }
        for name in plan.variables:
            if name not in names and name.rpartition("-")[0] not in names:  # w-m: a state of w
                raise AutoDDLError(
                    f"plan: made for another graph, this one has no variable {name}; "
                    "plan again with autoddl.optimize"
                )
        if not all(tensor.is_contiguous() for tensor in variables(self.graph)):
            raise AutoDDLError(
                "apply: the model was built inside abstract_parameters(), so it has no values to "
                "train; build it outside on the ranks and apply the plan to that"
            )
        devices = {_device_type(tensor) for tensor in variables(self.graph)}
        if devices and devices != {plan.device}:
            raise AutoDDLError(
                f"plan: made for device type {plan.device!r}, the model is on "
                f"{', '.join(sorted(devices))!r}, whose ops differ; plan again on the cluster, it "
                "takes seconds"
            )


def _native(running: flow.nn.Graph | StagedGraph) -> Any:
    return running.native if isinstance(running, StagedGraph) else running._c_nn_graph


def _compiled(running: flow.nn.Graph | StagedGraph) -> Any:
    return running.compiled if isinstance(running, StagedGraph) else running._compiled_job_proto


def _neutral(name: str) -> str:
    match = re.fullmatch(r"input\.(.*)_\d+", name)
    return f"input.{match[1]}" if match else name


def _device_type(tensor: flow.Tensor) -> str:
    return str(tensor.placement.type if tensor.is_global else tensor.device.type)


def _engine_sbp(state: NdSbp) -> list[Any]:
    kinds = {"B": flow.sbp.broadcast, "P": flow.sbp.partial_sum}
    return [flow.sbp.split(s.dim) if s.is_split else kinds[s.kind] for s in state]


def make_global(graph: flow.nn.Graph, place: Callable[[str], Any], state: NdSbp) -> None:
    """Replace the graph's parameters and buffers by global ones and tell its optimizers.

    `place` maps the name of each to its devices.
    """
    sbp = _engine_sbp(state)

    def moved(name: str, tensor: flow.Tensor) -> flow.Tensor:
        with flow.no_grad():
            return tensor.detach().to_global(placement=place(name), sbp=sbp)

    replace_variables(graph, moved)
