"""OneFlow behind `autoddl.engine.interface`; what needs OneFlow itself is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any, NoReturn

from autoddl.codegen.dialect import Dialect
from autoddl.engine.interface import Engine, Probes, Replan, TrainingStep
from autoddl.engine.oneflow.dialect.script_dialect import DIALECT
from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.engine.oneflow.signatures import unknown_ops
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp


class OneFlow:
    """OneFlow 0.9."""

    model = ONEFLOW
    dialect: Dialect = DIALECT
    probes = Probes(
        links="autoddl.engine.oneflow.probes.link_probe",
        ops="autoddl.engine.oneflow.probes.device_probe",
    )

    def installed(self) -> bool:
        """See `Engine.installed`."""
        return find_spec("oneflow") is not None

    def capture(self, graph: Any, *inputs: Any, **kwargs: Any) -> Program:
        """See `reader.capture`."""
        from autoddl.engine.oneflow.capture import reader

        return reader.capture(graph, *inputs, **kwargs)

    def abstract_parameters(self, seed: int = 0) -> AbstractContextManager[None]:
        """See `abstract.abstract_parameters`."""
        from autoddl.engine.oneflow.capture import abstract

        return abstract.abstract_parameters(seed)

    def cluster(self) -> tuple[int, int]:
        """See `agree.cluster`."""
        from autoddl.engine.oneflow.run import agree

        return agree.cluster()

    def agree(self, make: Callable[[], PlanValue]) -> PlanValue:
        """See `agree.from_rank_0`."""
        from autoddl.engine.oneflow.run import agree

        return agree.from_rank_0(make)

    def seconds_of(
        self, step: TrainingStep, call: tuple[Sequence[Any], Mapping[str, Any]], warm_up: int,
        steps: int,
    ) -> Sequence[float]:  # fmt: skip
        """See `step_timing.seconds_of`."""
        from autoddl.engine.oneflow.run import step_timing

        return step_timing.seconds_of(step, call, warm_up, steps)

    def leave(self) -> NoReturn:
        """See `step_timing.leave`."""
        from autoddl.engine.oneflow.run import step_timing

        step_timing.leave()

    def signatures(self, program: Program, sizes: Collection[int]) -> unknown_ops.EngineLists:
        """See `unknown_ops.ask`: a process of its own asks OneFlow."""
        return unknown_ops.ask(program, sizes)

    def write_state(
        self, arrays: Mapping[str, Any], blocks: Sequence[str], graph: str, path: str
    ) -> None:
        """See `saved_state.write`."""
        from autoddl.engine.oneflow.run import saved_state

        saved_state.write(arrays, blocks, graph, path)

    def accumulation_steps(self, graph: Any) -> int:
        """See `reader.accumulation_steps`."""
        from autoddl.engine.oneflow.capture import reader

        return reader.accumulation_steps(graph)

    def held(self, graph: Any) -> tuple[tuple[int, ...], Mapping[str, NdSbp]] | None:
        """See `global_tensors.held`."""
        from autoddl.engine.oneflow.run import global_tensors

        return global_tensors.held(graph)

    def apply(
        self, plan: PlanValue, graph: Any, replan: Replan, *, other_shapes: bool
    ) -> TrainingStep:
        """See `training_step.OneFlowStep`."""
        from autoddl.engine.oneflow.run.training_step import OneFlowStep

        return OneFlowStep(plan, graph, replan, other_shapes=other_shapes)


ENGINE: Engine = OneFlow()
