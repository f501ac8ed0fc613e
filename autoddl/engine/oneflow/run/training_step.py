"""Run a plan: the callable that `Plan.apply` returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import oneflow as flow

from autoddl.checkpoint import sharded_files
from autoddl.engine.interface import Replan
from autoddl.engine.oneflow.capture import abstract
from autoddl.engine.oneflow.capture.shadow import (
    device_type,
    modules,
    named_variables,
    of_tensors,
    variables,
)
from autoddl.engine.oneflow.job import plan_injection
from autoddl.engine.oneflow.reason import reason
from autoddl.engine.oneflow.run.agree import check_kinds
from autoddl.engine.oneflow.run.evaluation import Evaluations, shapes_of
from autoddl.engine.oneflow.run.global_tensors import (
    make_global,
    placements,
    refuse_local_inputs,
    sbp_of,
    state_of,
    whole_of,
)
from autoddl.engine.oneflow.run.meeting import meet
from autoddl.engine.oneflow.run.planned_graph import Call, Inputs, PlannedGraph
from autoddl.engine.oneflow.run.saved_state import SavedState
from autoddl.errors import AutoDDLError
from autoddl.launch import progress
from autoddl.plan import codec
from autoddl.plan.parts import InputPlan
from autoddl.plan.value import PlanValue
from autoddl.sbp.program.ops_and_tensors import READ
from autoddl.sbp.rewrites.halves import HALF, second
from autoddl.sbp.state import NdSbp, broadcast

logger = logging.getLogger(__name__)


class OneFlowStep:
    """One training step of `graph` under `plan`, on all ranks of the mesh.

    Call it as the graph is called: with global tensors of any SBP, or with local tensors that hold
    the whole logical batch on every rank. It returns what the graph returns, as global tensors. The
    distributed graph is built in the first call; the graph object itself is not touched.
    """

    def __init__(
        self, plan: PlanValue, graph: flow.nn.Graph, replan: Replan, *, other_shapes: bool = False
    ) -> None:
        if not isinstance(graph, flow.nn.Graph):
            raise AutoDDLError(f"apply: got {type(graph).__name__}; give the planned nn.Graph")
        if other_shapes and plan.pipelined:
            raise AutoDDLError(
                "apply: other_shapes with stages or micro-batches, of which the plan has "
                f"{len(plan.parts)} and {plan.micro_batches}; plan with pipeline=1 and micro_batches=1"
            )
        self.plan = plan
        self.graph = graph
        self._running: PlannedGraph | None = None
        self._others: dict[str, OneFlowStep] | None = {} if other_shapes else None
        self._replan = replan
        self._pending: Callable[[SavedState], None] | None = None
        meet("apply")
        self._check()
        self.placements = placements(plan)
        self._missing = abstract.without_told_values(graph)
        has_run = graph._is_compiled and graph.config.training
        before = graph.state_dict() if has_run else None  # with what its optimizer remembers
        self._inputs = {item.name: item for item in plan.inputs}
        make_global(graph, self._placement, self._states().__getitem__)
        refuse_local_inputs(graph)
        self._evaluations = Evaluations(
            replan, lambda plan, graph: OneFlowStep(plan, graph, replan)
        )
        self._closed = False
        self._keeps: Mapping[str, flow.Tensor] = {}
        if before is not None:
            self.load_state_dict(before)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on the whole logical batch."""
        step = self._step_for(args, kwargs)
        return step._run(args, kwargs, step._whole_to_global)

    def from_local(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on local tensors that hold just this rank's part of the batch.

        Which part that is says `plan.inputs[i].local_slice(rank)`; of micro-batches this part of each,
        one behind the other. An input that another stage reads has to be there, whatever its values.
        """
        return self._run(args, kwargs, self._part_to_global)

    def evaluate(self, what: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a graph without an optimizer that shares the model, or a module of it; on all ranks.

        Inputs are given as to the step; it returns what the graph returns, as global tensors. The first
        call with inputs of new shapes plans the graph, with all parameters as this step has them, and
        builds it. A module is called in evaluation mode, a graph traced in the mode its modules are in.

        Raises:
            AutoDDLError: it is neither, trains itself, or as `optimize` and `apply`.
        """
        return self._evaluations(what, args, kwargs)

    def close(self) -> None:
        """Take the compiled graphs down and give their memory back; the step can't be called after that.

        All ranks have to call it, at the same place. Without it they stay until the process ends.
        """
        meet("step.close")
        self._evaluations.close()
        if self._running is not None:
            self._running.close()
        for other in (self._others or {}).values():
            other.close()
        self._running, self._others, self._closed = None, None, True

    def state_dict(self) -> dict[str, Any]:
        """Return what `graph.state_dict()` does on one device: whole local tensors, on every rank.

        With the states of optimizers and the count of steps, without tensors that the graph's code makes.
        All ranks have to call it, after the first step. It needs the memory of the whole model on each;
        `save` does not.

        Raises:
            AutoDDLError: no step was done yet.
        """
        meet("step.state_dict")
        return self._saved("state_dict").whole()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state dict of the graph: of this step, another plan's, or of one device.

        Before the first step its values are taken when that is built.

        Raises:
            AutoDDLError: it lacks a tensor, or one has another shape.
        """
        meet("step.load_state_dict")
        self._load(lambda saved: saved.take(state_dict))

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: parameters, buffers, states of optimizers, the count of steps, the plan.

        All ranks have to call it, after a step; each writes the shards that it owns into the `folder`,
        which all nodes share. A crash leaves the checkpoint that was there before.

        Raises:
            AutoDDLError: no step was done yet, or a rank can't write.
        """
        meet("step.save")
        self._saved("save").save(folder, codec.encode(self.plan).decode())

    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, whatever plan and number of ranks saved it.

        All ranks have to call it; each reads its shards. Before the first step values are taken when
        that is built.

        Raises:
            AutoDDLError: there is none in the folder, it is damaged, or of another model.
        """
        meet("step.load")
        sharded_files.read_index(folder)
        self._load(lambda saved: saved.load(folder))

    def _saved(self, what: str) -> SavedState:
        if self._running is None:
            raise AutoDDLError(f"step.{what}: not built yet; call the step once first")
        return SavedState(self.graph, self._running.states)

    def _load(self, take: Callable[[SavedState], None]) -> None:
        self._missing = []
        if self._running is None:
            self._pending = take
        else:
            take(self._saved("load"))

    @property
    def changed_signatures(self) -> list[tuple[str, str]]:
        """Return the (op, operand) pairs that the engine did not execute as planned."""
        if self._running is None:
            raise AutoDDLError("step: not built yet; call it once first")
        return plan_injection.changed_signatures(self._running.compiled, self.plan)

    def _states(self) -> dict[str, NdSbp]:
        """Return the states of all variables; of one that no op reads any is right.

        Raises:
            AutoDDLError: another graph trains them in other states.
        """
        whole, found = broadcast(self.plan.mesh.ndim), {}  # what none reads is in the first part
        for name, tensor in named_variables(self.graph):
            shared = tensor.is_global and not self.graph.config.training
            found[name] = self.plan.variables.get(name, state_of(tensor) if shared else whole)
            there = tensor.placement if shared else None
            if shared and (state_of(tensor) != found[name] or there != self._placement(name)):
                raise AutoDDLError(
                    f"apply: {name} is in state {state_of(tensor)} where it is trained, this plan has it "
                    f"in {found[name]} on mesh {self.plan.mesh}; plan the graph after the plan that "
                    "trains was applied, or call step.evaluate(graph, …), which does both"
                )
        return found

    def _placement(self, name: str) -> Any:
        return self.placements[self.plan.stage_of.get(name, 0)]

    def _run(self, args: Any, kwargs: Any, convert: Callable[[str, Any, int], Any]) -> Any:
        if self._closed:
            raise AutoDDLError("step: it is closed; apply the plan again")
        if self._missing:
            raise AutoDDLError(
                f"step: {self._missing[0]} was built inside abstract_parameters(), and no initialiser of "
                "oneflow.nn.init tells its values; load a checkpoint first (step.load, autoddl.resume)"
            )
        if self._running is None:
            meet("step")
        else:
            progress.enter("step()")

        def converted(half: int) -> tuple[Call, Inputs]:
            found: dict[str, flow.Tensor] = {}

            def made(name: str, value: flow.Tensor) -> flow.Tensor:
                found[name] = convert(name, value, half)
                return found[name]

            call = of_tensors((args, kwargs), made)
            for name in self.plan.program.inputs:
                if name not in found and half == 0 and not name.startswith((HALF, READ)):
                    raise AutoDDLError(
                        f"step: input {name} is missing; call it as the graph was called when it was "
                        "planned"
                    )
            return call, found

        calls, inputs = zip(*map(converted, range(self._halves)), strict=True)
        if self._running is None:
            self._running = self._build(calls[0], inputs)
        if self._pending is not None:  # again where it has failed: there are no other values
            self._pending(self._saved("load"))
            self._pending = None  # it may hold a whole state dict
        return self._running(inputs)

    def _step_for(self, args: Any, kwargs: Any) -> OneFlowStep:
        """Return the step for inputs of these shapes: this one, or another over the same tensors."""
        if self._others is None or self._is_planned_for(args, kwargs):
            return self
        if self._running is None:
            raise AutoDDLError(
                "step: the first call has other inputs than the plan; begin with those that it was "
                "planned for"
            )
        key = shapes_of(args, kwargs)
        if key not in self._others:
            plan = self._replan(self.graph, args, kwargs, self.plan.variables)
            self._others[key] = OneFlowStep(plan, self.graph, self._replan)
            self._others[key]._keeps = self._running.states
        return self._others[key]

    def _is_planned_for(self, args: Any, kwargs: Any) -> bool:
        given = dict[str, tuple[int, ...]]()
        of_tensors((args, kwargs), lambda name, tensor: given.update({name: tuple(tensor.shape)}))
        known = given.keys() & self._inputs.keys()
        return all(given[name] == self._batch_shape(self._inputs[name]) for name in known)

    def _build(self, call: Call, inputs: Sequence[Inputs]) -> PlannedGraph:
        try:
            running = PlannedGraph(self.plan, self.graph, call, inputs, self._keeps)
        except AutoDDLError:
            raise
        except Exception as error:
            raise AutoDDLError(
                f"plan: OneFlow can't run it on {self.plan.devices_text}: {reason(error)}"
            ) from error
        changed = plan_injection.changed_signatures(running.compiled, self.plan)
        if changed:
            logger.warning(
                "the engine changed %d planned signatures, first %s %s", len(changed), *changed[0]
            )
        return running

    @property
    def _halves(self) -> int:
        return 2 if self.plan.duplex else 1

    def _half(self, tensor: flow.Tensor, half: int) -> flow.Tensor:
        return tensor.chunk(2, dim=0)[half] if self.plan.duplex and tensor.ndim else tensor

    def _whole_to_global(self, name: str, tensor: flow.Tensor, half: int) -> flow.Tensor:
        item = self._input(name, half)
        shape = self._batch_shape(item)
        if tuple(tensor.shape) != shape:
            raise AutoDDLError(
                f"step: input {name} has shape {tuple(tensor.shape)}, planned was {shape}; "
                "pass the whole logical batch (or use step.from_local), plan again, or "
                "plan.apply(graph, other_shapes=True)"
            )
        place, sbp = self._placement(item.name), sbp_of(item.state)
        tensor = self._half(tensor, half)
        if tensor.is_global and self.plan.micro_batches > 1:
            # OneFlow would cut micro-batches from each rank's shard: stages that have an input in
            # different states would pair different samples.
            tensor = whole_of(tensor)
        if tensor.is_global:
            return tensor.to_global(placement=place, sbp=sbp)
        return self._part(item, tensor).to_global(placement=place, sbp=sbp)

    def _part(self, item: InputPlan, tensor: flow.Tensor) -> flow.Tensor:
        """Cut this rank's part out of a batch or a half: its part of one micro-batch after the other."""
        if not item.shape:
            return tensor
        count = self.plan.micro_batches
        part = item.local_slice(flow.env.get_rank())
        parts = [micro[part].contiguous() for micro in tensor.chunk(count, dim=0)]
        return flow.cat(parts, dim=0) if count > 1 else parts[0]

    def _batch_shape(self, item: InputPlan) -> tuple[int, ...]:
        """Return the shape of an input for the whole step: all micro-batches one behind the other."""
        times = self.plan.micro_batches * self._halves
        return (*(size * times for size in item.shape[:1]), *item.shape[1:])

    def _part_to_global(self, name: str, tensor: flow.Tensor, half: int) -> flow.Tensor:
        item = self._input(name, half)
        part = replace(item, shape=self._batch_shape(item)).local_slice(flow.env.get_rank())
        shape = tuple(s.stop - s.start for s in part)
        if tensor.is_global or tuple(tensor.shape) != shape:
            kind = "a global tensor" if tensor.is_global else f"shape {tuple(tensor.shape)}"
            raise AutoDDLError(
                f"step.from_local: input {name} is {kind}; give a local tensor of shape {shape}, "
                f"the part that {self._local_part()} names"
            )
        here = self._half(tensor, half).contiguous()
        return here.to_global(placement=self._placement(item.name), sbp=sbp_of(item.state))

    def _local_part(self) -> str:
        if self.plan.duplex:
            return "plan.inputs[i].local_slice(rank) of each half, one behind the other,"
        several = ", of one micro-batch behind the other," if self.plan.pipelined else ""
        return f"plan.inputs[i].local_slice(rank){several}"

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
            raise AutoDDLError(
                f"plan: {plan.devices_text} has {plan.devices} devices, but {world} ranks run; "
                f"start {plan.devices} ranks (python -m autoddl run --nproc-per-node "
                f"{plan.devices} …) or plan for {world}"
            )
        check_kinds(plan)
        scaler = getattr(self.graph, "_grad_scaler", None)
        if plan.micro_batches > 1 and isinstance(scaler, flow.amp.StaticGradScaler):
            raise AutoDDLError(
                f"graph {self.graph.name}: OneFlow has no StaticGradScaler with micro-batches, of which "
                f"the plan has {plan.micro_batches}; use flow.amp.GradScaler, or plan without"
            )
        names = {
            f"{name}.{path}"
            for name, module in zip(self.graph._blocks, modules(self.graph), strict=True)
            for path, _ in (*module.named_parameters(), *module.named_buffers())
        }
        for name in plan.variables.keys() - dict(plan.program.constants).keys():
            if name not in names and name.rpartition("-")[0] not in names:  # w-m: a state of w
                raise AutoDDLError(
                    f"plan: made for another graph, this one has no variable {name}; "
                    "plan again with autoddl.optimize"
                )
        devices = {device_type(tensor) for tensor in variables(self.graph)}
        if devices and devices != {plan.device}:
            raise AutoDDLError(
                f"plan: made for device type {plan.device!r}, the model is on "
                f"{', '.join(sorted(devices))!r}, whose ops differ; plan again on the cluster, it "
                "takes seconds"
            )
