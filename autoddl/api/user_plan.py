"""A plan as users hold it: `Plan`, whose methods run, draw, write and keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoddl.api.asked_plan import AskedPlan, asked_of
from autoddl.calls import reported
from autoddl.codegen import write
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.engine.interface import TrainingStep
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.plan import codec, schedule_file
from autoddl.plan.value import PlanValue
from autoddl.sbp.mesh import Cluster
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp
from autoddl.search.budget import Budget
from autoddl.terminal.status_line import working

if TYPE_CHECKING:
    from autoddl.planner.plan_options import Options
    from autoddl.planner.request import Request
    from autoddl.report.comparison_text import ShownDiff, ShownRecost
    from autoddl.report.explanation_text import Explained


class Plan(PlanValue):
    """A plan and what can be done with it; see PlanValue for what it says."""

    @classmethod
    def of(cls, value: PlanValue) -> Plan:
        """Return a plan that the planner has made, with the methods that users call."""
        return cls(**{f.name: getattr(value, f.name) for f in fields(value)})

    @reported("apply")
    def apply(
        self, graph: Any, *, profile: str | Path | Profile | None = None, other_shapes: bool = False
    ) -> TrainingStep:
        """Return a callable with the graph's signature that runs this plan on all ranks.

        Call it on every rank, before the first step. The model's parameters become global tensors, of
        which every rank keeps the shards that the plan gives it. `profile` prices the graphs that
        `step.evaluate` plans, by default the bundled one that the plan names, or the default.

        With `other_shapes` the step takes inputs of other shapes, too, such as the last batch of an
        epoch: for each of them it plans once more, with parameters and states where they are.

        Raises:
            AutoDDLError: the plan is for another graph, device type or number of ranks, or no engine.
        """
        if profile is None and self.profile in profiles.bundled():
            profile = self.profile

        engine = engines.load(self.check_runnable())
        kinds = self.parts[0].kinds
        if (
            profile is not None and kinds
        ):  # evaluation is priced as if all devices were of the first
            profile = profiles.load(profile, device_type=self.device).part(kinds[:1])

        def replan(
            other: Any,
            args: tuple[Any, ...],
            kwargs: Mapping[str, Any],
            states: Mapping[str, NdSbp] | None,
        ) -> PlanValue:
            options = {"mesh": self.mesh, "profile": profile, "memory": self.memory_limit_bytes}
            asked = asked_of(other, args, kwargs, options)
            if states is not None:
                asked = asked.pinned(states)
            return engine.agree(lambda: asked.best(self.engine, 1)[0])

        return engine.apply(self, graph, replan, other_shapes=other_shapes)

    @reported("codegen")
    def codegen(self, path: str | Path, *, learning_rate: float | None = None) -> None:
        """Write this plan as a standalone Python script that needs only OneFlow and NumPy.

        It runs eagerly with global tensors, on meshes of any number of axes, and loads the state dict
        of the single-device model. `learning_rate` is the default of its option.

        Raises:
            AutoDDLError: the plan has states that OneFlow has not, or ops without a template; the
                file can't be written.
        """
        dialect = engines.load(self.engine.name or ONEFLOW).dialect_of(self)
        write(self, path, dialect, learning_rate=learning_rate)

    @reported("schedule")
    def schedule(self) -> dict[str, Any]:
        """Return what each rank does in a step, in the order that a script of this plan keeps.

        It can be written as JSON, edited, and given to `with_schedule` (docs/pipelines.md).

        Raises:
            AutoDDLError: the plan has no stages.
        """
        return schedule_file.to_json(self)

    @reported("schedule")
    def with_schedule(self, schedule: Mapping[str, Any] | str | Path) -> Plan:
        """Return this plan with its tasks in the order of a schedule, or of its file.

        Raises:
            AutoDDLError: it is none of this plan: a task is missing or too early, stages would wait for
                each other for ever, or hold more micro-batches than the plan has memory for.
        """
        return Plan.of(schedule_file.with_schedule(self, schedule))

    @reported("trace")
    def trace(self, path: str | Path, *, profile: str | Path | Profile | None = None) -> None:
        """Write the predicted course of a step in the format of chrome://tracing and Perfetto.

        `profile` prices a plan without stages, by default the bundled one that the plan names.

        Raises:
            AutoDDLError: no seconds or profile to predict from, or the file can't be written.
        """
        from autoddl.report import perfetto

        perfetto.write(self, path, profile=profile)

    @reported("explain")
    def explain(
        self,
        why: str | None = None,
        why_not: str | None = None,
        *,
        profile: str | Path | Profile | None = None,
        budget: float | Budget = 2.0,
    ) -> Explained:
        """Return what the plan does, what its step waits for and what is certain; print it.

        With `why`, a module, op or tensor, return its signature, the best others and what they cost; with
        `why_not` as well what one state of it costs, or why it can't be: `explain("model.0", "S0")`.
        `profile` prices the plan again, by default the bundled one that it names. The search around
        each other choice gets a `budget`, in seconds or as for `optimize`; with 0 there is none.

        Raises:
            AutoDDLError: there is no such profile, module or state; why is asked of a plan with stages.
        """
        from autoddl.explain.explanation import explain
        from autoddl.report.explanation_text import Explained

        with working("explaining"):
            return Explained.of(explain(self, why, why_not, profile=profile, budget=budget))

    @reported("diff")
    def diff(self, other: PlanValue) -> ShownDiff:
        """Return what differs between this plan and another one of the same program; print it.

        The batch, the mesh and all options may be others. Seconds and bytes are those that the plans
        tell; nothing is priced again.

        Raises:
            AutoDDLError: the plans are of different programs; names what differs.
        """
        from autoddl.compare.plan_diff import diff
        from autoddl.report.comparison_text import ShownDiff

        return ShownDiff.of(diff(self, other))

    @reported("recost")
    def recost(
        self,
        profile: str | Path | Profile,
        *,
        again: bool = True,
        budget: float | Budget = 20.0,
        cluster: str | Sequence[int] | Cluster | None = None,
        memory: str | float | None = None,
    ) -> ShownRecost:
        """Return what the plan costs with another profile, in the same states; print it.

        With `again` it is planned once more with that profile, within a `budget`, to tell what that
        gains. `memory` is that of a device, the profile's if not given. A plan with stages may need the
        `cluster` that it was planned for, "4x8".

        Raises:
            AutoDDLError: there is no such profile, or it can't price the plan; says why.
        """
        from autoddl.compare.recosted import recost
        from autoddl.report.comparison_text import ShownRecost

        def read(program: Program, options: Options) -> Request:
            return AskedPlan(program, options).request(self.engine, program, options)

        with working("planning again" if again else "pricing"):
            found = recost(
                self,
                profile,
                read if again else None,
                budget=budget,
                cluster=cluster,
                memory=memory,
            )
        again_plan = None if found.again is None else Plan.of(found.again)
        return ShownRecost.of(replace(found, again=again_plan))

    @reported("report")
    def report(self, path: str | Path, *, profile: str | Path | Profile | None = None) -> None:
        """Write the plan as one HTML page that needs neither a network nor scripts (docs/report.md).

        `profile` prices a plan without stages again, by default the bundled one that it names; without it
        sections that need prices say so.

        Raises:
            AutoDDLError: there is no such profile, or the file can't be written.
        """
        from autoddl.report.page import page_html

        page_html.write(self, path, profile)

    def _repr_html_(self) -> str | None:
        """Return what notebooks show; None, which is the text, where that fails."""
        from autoddl.report.page import page_html

        try:
            with reported("report"):
                return page_html.notebook(self)
        except Exception:
            return None

    @reported("save")
    def save(self, path: str | Path) -> None:
        """Write the plan as versioned JSON."""
        codec.save(self, path)

    def to_json(self) -> dict[str, Any]:
        """Return the versioned JSON form."""
        return codec.to_json(self)

    def __str__(self) -> str:
        from autoddl.report.plan_text import plan_table

        return plan_table(self)


@reported("load")
def load(path: str | Path) -> Plan:
    """Read a plan that `Plan.save` wrote.

    Raises:
        AutoDDLError: the file is missing, truncated, no plan, or of another version.
    """
    return Plan.of(codec.load(path, engines.model))
