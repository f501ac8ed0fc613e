"""What users call: `optimize` returns a `Plan`, whose methods run, draw, write and keep it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from autoddl import store
from autoddl.calls import callback, reported, uncollected
from autoddl.checkpoint import sharded_files
from autoddl.codegen import write
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.engine.interface import TrainingStep
from autoddl.engine.model import EngineModel
from autoddl.errors import AutoDDLError, InfeasibleError, near, shown
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.plan import codec
from autoddl.plan.value import PlanValue
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp
from autoddl.search.budget import Budget
from autoddl.terminal.status_line import working
from autoddl.trials import trial_settings, trial_task
from autoddl.trials.trial_settings import Trials

if TYPE_CHECKING:
    from autoddl.planner.plan_options import Options
    from autoddl.planner.request import Request
    from autoddl.report.comparison_text import ShownDiff, ShownRecost
    from autoddl.report.explanation_text import Explained

TIME, AUTO, EXACT = "time", "auto", "exact"


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


@reported("resume")
def resume(folder: str | Path, graph: Any, *inputs: Any, **options: Any) -> TrainingStep:
    """Return the step of a graph that goes on from a checkpoint, on whatever ranks run now.

    The plan is that of the checkpoint if it is for as many ranks and there are no options; else the
    graph is planned again. Call it on every rank, before the first step.

    Args:
        folder: where step.save wrote the checkpoint.
        graph: an oneflow.nn.Graph with its optimizer added, of the same model.
        inputs: what it is called with.
        options: those of `optimize`; with any the graph is planned anew.

    Raises:
        AutoDDLError: there is no checkpoint, it is damaged or of another model, or as `optimize`.
    """
    index = sharded_files.read_index(folder)
    text, ranks = index.facts.plan, engines.load(ONEFLOW).cluster()
    plan = None
    if text is not None and not options:
        plan = Plan.of(codec.decode(text, f"plan of {store.told(folder)}", engines.model))
    if plan is None or plan.devices != ranks[0] * ranks[1]:
        plan = optimize(graph, *inputs, **options)
    step = plan.apply(graph)
    step.load(folder)
    return step


@reported("optimize")
def optimize(
    graph: Any,
    *inputs: Any,
    mesh: str | Sequence[int] | Mesh | None = None,
    cluster: str | Sequence[int] | Cluster | None = None,
    profile: str | Path | Profile | None = None,
    memory: str | float | Mapping[str, str | float] | None = None,
    search: str = "exact",
    objective: str = TIME,
    engine: str | None = ONEFLOW,
    budget: float | Budget = 20.0,
    stop_gap: float = 0.0,
    seed: int = 0,
    pin: Mapping[str, str] | None = None,
    strict: bool = False,
    allow_local_batchnorm: bool = False,
    dropout: str = EXACT,
    recompute: str = AUTO,
    pipeline: int | str | None = None,
    micro_batches: int | None = None,
    compute_stream: bool | str = AUTO,
    duplex: bool | str = False,
    fusion: str | None = None,
    shares: bool | str = AUTO,
    parts: str = AUTO,
    trials: int | Trials | None = None,
    progress: Callable[[float, float], None] | None = None,
    **kwargs: Any,
) -> Plan:
    """Plan how to split a training step over a mesh of devices.

    Args:
        graph: an oneflow.nn.Graph with its optimizer added, or a Program, or the path of a saved one.
        inputs, kwargs: what the graph is called with (whole logical batches); not needed for a graph
            that has been built or reads its data itself, and for programs.
        mesh: "2x4", "4", (2, 4) or a Mesh; without it all meshes of the cluster are candidates
            and the best plan is kept, with the gap on its mesh (`plan.search.outcomes` has the others,
            and the seconds that each was searched). "2:3/1" has shares: three units of all that is cut
            for the first device, one for the second. Beside a cluster of several kinds it is that of all
            devices, in one stage.
        cluster: nodes x devices, "8x8" or (8, 8), for `mesh=None`; the running ranks if not given, on
            which OneFlow executes one or two axes. All factorisations of both numbers are meshes
            of a cluster, up to those of prime axes. "3*v100x4 + 1*t4x4" are nodes of several kinds of
            devices, which the profile has to know; their sizes may differ, "1*v100x8 + 1*v100x4".
        profile: a file of `python -m autoddl fit-network`, a bundled name, or the bundled default.
        memory: bytes per device, as a number or "16GiB", or a dict of these by kind of device; the
            profile's device memory if not given.
        search: "exact" (the best plan, and the proof that there is no better one), "fast" (within
            1 % of it), "coordinate" (the paper's), "hidup" (that of HiDup, for two halves of a batch
            in turn, on one mesh axis), "hap" (that of HAP, for shares of unlike devices on one axis),
            "ilp" (slow), "metropolis", "random", "exhaustive" and "astar" (HAP's; both for small
            problems only), or the name of a baseline to get that as a plan: "data parallel",
            "ZeRO 2", "hybrid ZeRO 2", "Megatron", "SUMMA" or "expert parallel", as far as it applies
            to program and mesh.
        objective: "time" of a step in which ops and boxings overlap, the "sum" of compute and
            communication, or "communication" alone (AutoDDL's): then compute counts for nothing, and
            devices share every matrix product and convolution whatever that brings.
        engine: "oneflow" plans what OneFlow can execute; "script" what scripts of `Plan.codegen` can (any
            number of axes, shares), which can't be applied to a graph; None in the whole space, as
            papers do: with nothing that an engine refuses left out, and axes that cut one dim in any
            order. Such plans can be studied, not applied, and take longer to find.
        budget: seconds for the search, or a Budget: with `Budget(evaluations=200_000)` the same plan is
            found on a slow machine as on a fast one. The baselines of the first mesh are always finished;
            meshes for which nothing is left are counted in the plan's search report. Where no plan fits
            into memory about as much goes into what would help, a tenth of it for each remedy; below 1 s
            nothing.
        stop_gap: (cost − lower bound) / cost at which the search may end, 0 to below 1.
        seed: a number >= 0 that makes the search repeatable.
        pin: name patterns of parameters and inputs to fixed states, e.g. {"*.fc1.weight": "B,S0"}.
        strict: raise for op types without a rule, instead of taking the engine's word for how they
            may be split (without OneFlow they are planned all-broadcast).
        allow_local_batchnorm: let a BatchNorm in training use the statistics of each device's part of
            the batch, as data-parallel training usually does: faster, and other numbers than one
            device's. Otherwise statistics are those of the whole batch.
        dropout: "exact" masks are those that one device draws, so every device draws them whole; with
            "sharded" each draws those of its shard, as data-parallel training usually does: other numbers
            than one device's (OneFlow repeats masks on shards that draw from one seed).
        recompute: with "layers" the backward pass makes the results inside each layer again (activation
            checkpointing; layers are modules of numbered lists), which takes less memory and more
            time. "auto" does so where memory is short, if that is faster, and with no more results than
            it takes; planning may then take two to three times the budget, since this is searched as long
            as the rest. Stages of a pipeline decide by themselves.
        pipeline: the number of stages, each on an equal part of the devices; with a number `mesh` is
            that of each stage. "auto" chooses it, 1 included, and the mesh of each stage; so is it on
            devices of several kinds. Else there is one stage, and more only where memory demands it.
        micro_batches: in so many equal parts the batch goes through the stages, and gradients are
            summed up; as many as the graph itself accumulates over, or chosen if not given. BatchNorm
            uses the statistics of each part.
        compute_stream: whether boxings are ops of the compute stream of CUDA devices (what OneFlow
            calls nccl_use_compute_stream), so that they take less memory and overlap with nothing.
            "auto" does so where plans don't fit into memory, or only slower ones, without, and with
            micro-batches, for which OneFlow has no other way on CUDA devices.
        duplex: whether the batch goes through the step as two halves in turn, one computing while the
            other communicates; they share parameters and update them once. "auto" does so where the
            predicted step is shorter by more than predictions are off.
        fusion: how many collectives go in one launch on CUDA devices, as "16,64": so many MiB and so many
            of them, OneFlow's own settings by default. Other ones have to be made before the first
            nn.Graph of a process (oneflow.boxing.nccl).
        shares: "auto" lets devices of several kinds have unlike shares of what is cut, in whole units
            such as 3/1, where the engine can, and these are searched as long again; False does not.
            Shares can be given with the mesh as well, also for devices that are all alike.
        parts: whether stages are on "equal" parts of the devices, or on "any": of unlike sizes and
            meshes. "auto" is any where devices are of several kinds, else equal.
        trials: so many of the best plans are run before the fastest is chosen, on ranks of this machine,
            as many as the plan has devices: these run the script of this process up to this call.
            A `Trials` tells steps, time limit and folder, too. In scripts that run on several ranks
            already, `python -m autoddl try` does it.
        progress: called with (elapsed seconds, best cost in seconds). Without it a terminal shows a line
            while planning takes more than two seconds, which goes away.

    Inside launched ranks rank 0 plans and all ranks get the same plan. A graph without an optimizer whose
    parameters a step trains already is planned on its mesh, with these in the states that they have.

    Raises:
        InfeasibleError: no plan fits into memory; behind the line is a table of the largest tensors and
            of what helps, each tried, which is its `diagnosis`.
        AutoDDLError: in one line, what is wrong and what to do.
    """
    asked, model = asked_of(graph, inputs, kwargs, locals()), engines.model(engine)
    tries = trial_settings.read(trials)

    def best(count: int) -> tuple[PlanValue, ...]:
        return asked.best(model, count)

    oneflow, ranks, program = engines.load(ONEFLOW), asked.ranks, asked.program
    rank = None if ranks is None else trial_task.here()
    if rank is not None and rank.is_for(program.fingerprint):
        call = inputs, kwargs
        rank.carry_out(
            oneflow, program.fingerprint, best, lambda value: Plan.of(value).apply(graph), call
        )
    if tries is not None and rank is None:
        return Plan.of(_fastest(best, program, ranks, tries))

    def first() -> PlanValue:
        return asked.best_or_why_not(model)

    return Plan.of(first() if ranks is None else oneflow.agree(first))


@dataclass(frozen=True)
class AskedPlan:
    """What to plan and how: a program, the ranks that run, if any do, and options.

    The graph accumulates gradients over so many micro-batches itself.
    """

    program: Program
    options: Options
    ranks: tuple[int, int] | None = None
    accumulated: int = 1

    def pinned(self, states: Mapping[str, NdSbp], mesh: Sequence[int] | None = None) -> AskedPlan:
        """Return the same with variables fixed to the states in which they are held, on a mesh."""
        own = {p.tensor for p in self.program.parameters} - dict(self.program.constants).keys()
        held = {name: ",".join(map(str, states[name])) for name in sorted(own & states.keys())}
        options = self.options
        options = replace(options, mesh=options.mesh or mesh, pin={**(options.pin or {}), **held})
        return replace(self, options=options)

    def best(self, model: EngineModel, count: int) -> tuple[PlanValue, ...]:
        """Return up to so many plans, the best first; see `choose.best`."""
        from autoddl.planner import choose

        silent = self.options.progress is not None
        with uncollected(), nullcontext() if silent else working("planning"):
            return choose.best(self.request(model, self.program, self.options), count)

    def request(self, model: EngineModel, program: Program, options: Options) -> Request:
        """Return the request that options make for a program on these ranks."""
        from autoddl.planner import request

        engine = engines.load(model.name) if model.name else None
        ask = engine.signatures if engine and engine.installed() else None
        return request.read(
            program, options, self.ranks, engine=model, ask=ask, accumulated=self.accumulated
        )

    def best_or_why_not(self, model: EngineModel) -> PlanValue:
        """Return the best plan; where none fits into memory the error says what would help."""
        try:
            return self.best(model, 1)[0]
        except InfeasibleError as error:
            from autoddl.remedies.doctor import explained

            def plan(program: Program, changes: Mapping[str, Any]) -> PlanValue:
                options = replace(self.options, **changes)
                return replace(self, program=program, options=options).best(model, 1)[0]

            with catch_warnings():
                simplefilter("ignore")  # they were told before
                request = self.request(model, self.program, self.options)
            raise explained(error, request, self.options, plan) from None


def asked_of(
    graph: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any], given: Mapping[str, Any]
) -> AskedPlan:
    """Return what is to be planned, with those of the options that are given: as `optimize`."""
    from autoddl.planner.plan_options import Options

    names = [each.name for each in fields(Options)]
    options = Options(**{name: given[name] for name in names if name in given})
    if options.progress is not None:
        options = replace(options, progress=callback(options.progress))
    _check_words(graph, kwargs, names)
    if isinstance(graph, Program | str | Path):
        return AskedPlan(graph if isinstance(graph, Program) else Program.load(graph), options)
    oneflow = engines.load(ONEFLOW)
    if not oneflow.installed():
        raise AutoDDLError(
            f"optimize: got {type(graph).__name__}, and OneFlow is not installed; give a Program or "
            "the path of a saved one, or pip install 'autoddl[oneflow]'"
        )
    program = oneflow.capture(graph, *inputs, **kwargs)
    asked = AskedPlan(program, options, oneflow.cluster(), oneflow.accumulation_steps(graph))
    held = oneflow.held(graph)  # by a step that trains these parameters
    return asked if held is None else asked.pinned(held[1], held[0])


def _check_words(graph: Any, words: Collection[str], options: Sequence[str]) -> None:
    """Raise AutoDDLError for a word that is no option, and no input that the graph takes."""
    taken: Collection[str] = ()
    if not isinstance(graph, Program | str | Path):
        found = signature(getattr(graph, "build", lambda **_: None)).parameters
        taken = words if any(p.kind is p.VAR_KEYWORD for p in found.values()) else found
    for word in (each for each in words if each not in taken):
        inputs = f"inputs are {', '.join(taken)}" if taken else "it has no inputs"
        hint = near(word, (*options, "engine", "trials"))
        raise AutoDDLError(f"optimize: got {shown(word)}, which is no option; {inputs}{hint}")


def _fastest(
    best: Callable[[int], Sequence[PlanValue]],
    program: Program,
    ranks: tuple[int, int] | None,
    tries: Trials,
) -> PlanValue:
    """Return the plan that is the fastest when it is run.

    Raises:
        AutoDDLError: there is no model to run, or ranks run already; as `optimize`.
    """
    from autoddl.trials import trial_runs

    if ranks is None:
        raise AutoDDLError(
            f"trials: got {tries.top} for a program, which has no model to run; give the graph, or run "
            "its script with `python -m autoddl try`"
        )
    count = ranks[0] * ranks[1]
    if count > 1:
        raise AutoDDLError(
            f"trials: got {tries.top} on {count} ranks that run already; leave it out, and start the "
            f"script with `python -m autoddl try --top {tries.top} --nproc-per-node {count} …`"
        )
    script = trial_settings.own_script()
    return trial_runs.fastest(best(tries.top), program.fingerprint, script, tries)
