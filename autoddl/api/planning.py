"""What makes plans and goes on with them: `optimize` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoddl import store
from autoddl.api.asked_plan import asked_of
from autoddl.api.user_plan import Plan
from autoddl.calls import reported
from autoddl.checkpoint import sharded_files
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.engine.interface import TrainingStep
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.plan import codec
from autoddl.plan.value import PlanValue
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.search.budget import Budget
from autoddl.trials import trial_settings, trial_task
from autoddl.trials.trial_settings import Trials

TIME, AUTO, EXACT = "time", "auto", "exact"


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
    schedule: str | None = None,
    compute_stream: bool | str = AUTO,
    duplex: bool | str = False,
    fusion: str | None = None,
    shares: bool | str = AUTO,
    strides: bool | str = AUTO,
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
            "O2", "O3" and "largest-k" (Rhino's), "ilp" (slow), "metropolis", "random", "exhaustive"
            and "astar" (HAP's; both for small problems only), or the name of a baseline to get that as
            a plan: "data parallel", "ZeRO 2", "hybrid ZeRO 2", "Megatron", "SUMMA" or "expert
            parallel", as far as it applies to program and mesh.
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
        pin: name patterns of parameters, inputs, modules (what these return) and ops to the states that
            they may have, or to stages, e.g. {"*.fc1.weight": "B,S0", "*.blocks.0": "!S1",
            "grad *.weight": "P|S0", "*.blocks.3": "stage 1"}; below the plan's table are those that
            cost more than 1 % of a step.
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
        schedule: in which order stages do their tasks in generated scripts, with engine "script":
            "1f1b" (their own), "gpipe", or "searched", the shortest step that is found with as many
            micro-batches in flight as fit. OneFlow's nn.Graph runs what is ready.
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
        strides: "auto" lets cuts be in turns of a few elements, such as the heads of a projection that
            is read as (3, heads, size), where the engine can, and is searched as long again; True does so
            or is an error; False does not.
        parts: whether stages are on "equal" parts of the devices, or on "any": of unlike sizes and
            meshes. "auto" is any where devices are of several kinds, else equal. "free" stages are equal,
            too, but need not be cuts of the order in which ops are captured: branches may part.
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
