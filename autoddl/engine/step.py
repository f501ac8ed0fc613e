"""Run a plan: the callable that `Plan.apply` returns."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import oneflow as flow
from oneflow.nn.graph.util import ArgsTree

from autoddl.engine import inject
from autoddl.engine.capture import program_of
from autoddl.engine.shadow import kept_gradients, modules, shadow, variables
from autoddl.errors import AutoDDLError
from autoddl.plan import Plan
from autoddl.sbp.state import NdSbp

logger = logging.getLogger(__name__)


class Step:
    """One training step of `graph` under `plan`, on all ranks of the mesh.

    Call it as the graph is called: with global tensors of any SBP, or with local tensors that hold
    the whole logical batch on every rank. It returns what the graph returns, as global tensors. The
    distributed graph is built in the first call; the graph object itself is not touched.
    """

    def __init__(self, plan: Plan, graph: flow.nn.Graph) -> None:
        if not isinstance(graph, flow.nn.Graph):
            raise AutoDDLError(f"apply: got {type(graph).__name__}; give the planned nn.Graph")
        self.plan = plan
        self.graph = graph
        self._running: flow.nn.Graph | None = None
        self._check()
        ranks = np.arange(plan.mesh.size).reshape(plan.mesh.shape)
        self.placement = flow.placement(plan.device, ranks.tolist())
        self._inputs = {item.name: item for item in plan.inputs}
        make_global(graph, self.placement, NdSbp.parse(",".join("B" * plan.mesh.ndim)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on the whole logical batch."""
        return self._run(args, kwargs, self._whole_to_global)

    def from_local(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on local tensors that hold just this rank's part of the batch.

        Which part that is says `plan.inputs[i].local_slice(rank)`.
        """
        return self._run(args, kwargs, self._part_to_global)

    @property
    def changed_signatures(self) -> list[tuple[str, str]]:
        """Return the (op, operand) pairs that the engine did not execute as planned."""
        if self._running is None:
            raise AutoDDLError("step: not built yet; call it once first")
        return inject.changed_signatures(self._running._compiled_job_proto, self.plan)

    def _run(self, args: Any, kwargs: Any, convert: Callable[[str, Any], Any]) -> Any:
        def leaf(node: Any) -> Any:
            value = node.value()
            if not isinstance(value, flow.Tensor):
                return value
            return convert(_neutral(node.prefix() + "_" + node.name()), value)

        args, kwargs = ArgsTree((args, kwargs), True, "input", None).map_leaf(leaf)
        if self._running is None:
            self._running = self._build(args, kwargs)
        return self._running(*args, **kwargs)

    def _build(self, args: Any, kwargs: Any) -> flow.nn.Graph:
        twin = shadow(self.graph)
        try:
            with kept_gradients(self.graph):
                twin.build_graph(*args, **kwargs)
            self.plan.check_graph(program_of(twin._full_job_proto, twin.name))
            job = twin._full_job_proto
            inject.write_plan(job, self.plan, twin.name)
            twin._full_graph_proto = job
            twin.finish_complie_and_init_runtime()
        except AutoDDLError:
            raise
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
            raise AutoDDLError(
                f"plan: OneFlow can't run it on mesh {self.plan.mesh}: {reason.strip()[:300]}"
            ) from error
        changed = inject.changed_signatures(twin._compiled_job_proto, self.plan)
        if changed:
            logger.warning(
                "the engine changed %d planned signatures, first %s %s", len(changed), *changed[0]
            )
        return twin

    def _whole_to_global(self, name: str, tensor: flow.Tensor) -> flow.Tensor:
        item = self._input(name)
        if tuple(tensor.shape) != item.shape:
            raise AutoDDLError(
                f"step: input {name} has shape {tuple(tensor.shape)}, planned was {item.shape}; "
                "pass the whole logical batch (or use step.from_local), or plan again"
            )
        sbp = _engine_sbp(item.state)
        if tensor.is_global:
            return tensor.to_global(placement=self.placement, sbp=sbp)
        part = tensor[item.local_slice(flow.env.get_rank())] if item.shape else tensor
        return part.contiguous().to_global(placement=self.placement, sbp=sbp)

    def _part_to_global(self, name: str, tensor: flow.Tensor) -> flow.Tensor:
        item = self._input(name)
        part = item.local_slice(flow.env.get_rank())
        shape = tuple(s.stop - s.start for s in part)
        if tensor.is_global or tuple(tensor.shape) != shape:
            kind = "a global tensor" if tensor.is_global else f"shape {tuple(tensor.shape)}"
            raise AutoDDLError(
                f"step.from_local: input {name} is {kind}; give a local tensor of shape {shape}, "
                "the part that plan.inputs[i].local_slice(rank) names"
            )
        return tensor.to_global(placement=self.placement, sbp=_engine_sbp(item.state))

    def _input(self, name: str) -> Any:
        if name not in self._inputs:
            raise AutoDDLError(
                f"step: got input {name}, the plan knows {', '.join(self._inputs)}; "
                "call it as the graph was called when it was planned"
            )
        return self._inputs[name]

    def _check(self) -> None:
        """Refuse early what can be told without building: ranks, device type, variables."""
        plan, world = self.plan, flow.env.get_world_size()
        if plan.mesh.size != world:
            raise AutoDDLError(
                f"plan: mesh {plan.mesh} has {plan.mesh.size} devices, but {world} ranks run; "
                f"start {plan.mesh.size} ranks (python -m autoddl run --nproc-per-node "
                f"{plan.mesh.size} …) or plan for {world}"
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


def _neutral(name: str) -> str:
    match = re.fullmatch(r"input\.(.*)_\d+", name)
    return f"input.{match[1]}" if match else name


def _device_type(tensor: flow.Tensor) -> str:
    return str(tensor.placement.type if tensor.is_global else tensor.device.type)


def _engine_sbp(state: NdSbp) -> list[Any]:
    kinds = {"B": flow.sbp.broadcast, "P": flow.sbp.partial_sum}
    return [flow.sbp.split(s.dim) if s.is_split else kinds[s.kind] for s in state]


def make_global(graph: flow.nn.Graph, placement: Any, state: NdSbp) -> None:
    """Replace the graph's parameters and buffers by global ones and tell its optimizers."""
    sbp = _engine_sbp(state)
    replaced: dict[flow.Tensor, flow.Tensor] = {}
    for root in modules(graph):
        for module in root.modules():
            for table in (module._parameters, module._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        table[key] = _as_global(tensor, replaced, placement, sbp)
    for entry in graph._opts:
        optimizer = entry["optim"]
        for group in optimizer.param_groups:
            group._parameters = [replaced.get(p, p) for p in group._parameters]
        state_of = getattr(optimizer, "_state", None)
        if state_of:
            moved = {
                k if isinstance(k, str) else replaced.get(k, k): v for k, v in state_of.items()
            }
            state_of.clear()
            state_of.update(moved)


def _as_global(
    tensor: flow.Tensor, replaced: dict[flow.Tensor, flow.Tensor], placement: Any, sbp: list[Any]
) -> flow.Tensor:
    if tensor not in replaced:
        with flow.no_grad():
            moved = tensor.detach().to_global(placement=placement, sbp=sbp)
        if isinstance(tensor, flow.nn.Parameter):
            moved = flow.nn.Parameter(moved, requires_grad=tensor.requires_grad)
        replaced[tensor] = moved
    return replaced[tensor]
