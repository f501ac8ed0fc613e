"""`autoddl.optimize`: from a graph (or a saved program) to a plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autoddl import mesh_search, pipelines
from autoddl.arguments import (
    AUTO,
    check_arguments,
    check_pipeline,
    check_space,
    compute_streams,
    mesh_of,
    parse_bytes,
    streams_on,
)
from autoddl.collector import uncollected
from autoddl.errors import AutoDDLError, RuleError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.plan import Plan
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.batchnorm import LOCAL_STATISTICS as LOCAL_BATCHNORM
from autoddl.sbp.rules.engines import ONEFLOW
from autoddl.sbp.rules.registry import is_built_in
from autoddl.search.baselines import assignments
from autoddl.search.builder import build
from autoddl.search.choices import SignatureLists, unknown_types
from autoddl.search.objective import TIME
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment
from autoddl.search.streams import on_stream
from autoddl.solving import best_stream, in_order, is_settled, solve

EXECUTED_AXES = 2  # OneFlow redistributes on meshes of one and two axes


def optimize(
    graph: Any,
    *inputs: Any,
    mesh: str | Sequence[int] | Mesh | None = None,
    cluster: str | Sequence[int] | Cluster | None = None,
    profile: str | Path | Profile | None = None,
    memory: str | float | None = None,
    search: str = "exact",
    objective: str = TIME,
    engine: str | None = ONEFLOW,
    budget: float = 20.0,
    stop_gap: float = 0.0,
    seed: int = 0,
    pin: Mapping[str, str] | None = None,
    strict: bool = False,
    allow_local_batchnorm: bool = False,
    pipeline: int | str | None = None,
    micro_batches: int | None = None,
    compute_stream: bool | str = AUTO,
    progress: Callable[[float, float], None] | None = None,
    **kwargs: Any,
) -> Plan:
    """Plan how to split a training step over a mesh of devices.

    Args:
        graph: an oneflow.nn.Graph with its optimizer added, or a Program, or the path of a saved one.
        inputs, kwargs: what the graph is called with (whole logical batches); not needed for a graph
            that has been built and for programs.
        mesh: "2x4", "4", (2, 4) or a Mesh; without it all meshes of the cluster are candidates
            and the best plan is kept, with the gap on its mesh (`plan.search["meshes"]` has the others).
        cluster: nodes x devices, "8x8" or (8, 8), for `mesh=None`; the running ranks if not given, on
            which OneFlow executes one or two axes. All factorisations of both numbers are meshes
            of a cluster, up to those of prime axes.
        profile: a file of `python -m autoddl.fit_network`, a bundled name, or the bundled default.
        memory: bytes per device, as a number or "16GiB"; the profile's device memory if not given.
        search: "exact" (the best plan, and the proof that there is no better one), "fast" (within
            1 % of it), "coordinate" (the paper's), "ilp" (slow), "metropolis", "random", "exhaustive"
            (small problems only), or the name of a baseline to get that as a plan: "data parallel",
            "ZeRO 2", "hybrid ZeRO 2", "Megatron", "SUMMA" or "expert parallel", as far as it applies
            to program and mesh.
        objective: "time" of a step, or only the "communication" in it (AutoDDL's): then compute counts
            for nothing, and devices share every matrix product and convolution whatever that brings.
        engine: "oneflow" plans what OneFlow can execute; None in the whole space, as papers do: with
            nothing that it refuses left out, and axes that cut one dim in any order. Such plans can
            be studied, not applied, and take longer to find.
        budget: seconds for the search; baselines are always finished.
        stop_gap: (cost − lower bound) / cost at which the search may end, 0 to below 1.
        seed: a number >= 0 that makes the search repeatable.
        pin: name patterns of parameters and inputs to fixed states, e.g. {"*.fc1.weight": "B,S0"}.
        strict: raise for op types without a rule, instead of taking the engine's word for how they
            may be split (without OneFlow they are planned all-broadcast).
        allow_local_batchnorm: let a BatchNorm in training use the statistics of each device's part of
            the batch, as data-parallel training usually does: faster, and other numbers than one
            device's. Otherwise every device normalises the whole batch.
        pipeline: the number of stages, each on an equal part of the devices; with a number `mesh` is
            that of each stage. "auto" chooses it, 1 included, and the mesh of each stage. Without it
            there is one stage, and more only where memory demands it.
        micro_batches: in so many equal parts the batch goes through the stages, and gradients are
            summed up; chosen if not given. BatchNorm uses the statistics of each part.
        compute_stream: whether boxings are ops of the compute stream of CUDA devices (what OneFlow
            calls nccl_use_compute_stream), so that they take less memory and overlap with nothing.
            "auto" does so where plans don't fit into memory, or only slower ones, without.
        progress: called with (elapsed seconds, best cost in seconds).

    Inside launched ranks rank 0 plans and all ranks get the same plan.

    Raises:
        AutoDDLError: in one line, what is wrong and what to do.
    """
    if isinstance(graph, Program | str | Path):
        program = graph if isinstance(graph, Program) else Program.load(graph)
        ranks, share = None, _same_process
    elif find_spec("oneflow") is None:
        raise AutoDDLError(
            f"optimize: got {type(graph).__name__}, and OneFlow is not installed; give a Program or "
            "the path of a saved one, or pip install 'autoddl[oneflow]'"
        )
    else:
        from autoddl.engine import agree
        from autoddl.engine.capture import capture

        program = capture(graph, *inputs, **kwargs)
        ranks, share = agree.cluster(), agree.from_rank_0

    def make() -> Plan:
        with uncollected():
            return plan_program(
                program,
                mesh=mesh,
                cluster=cluster if cluster is not None else ranks,
                max_axes=None if ranks is None else EXECUTED_AXES,
                profile=profile,
                memory=memory,
                search=search,
                objective=objective,
                engine=engine,
                budget=budget,
                stop_gap=stop_gap,
                seed=seed,
                pin=pin,
                strict=strict,
                allow=frozenset({LOCAL_BATCHNORM} if allow_local_batchnorm else ()),
                pipeline=pipeline,
                micro_batches=micro_batches,
                compute_stream=compute_stream,
                progress=progress,
            )

    return share(make)


def _same_process(make: Callable[[], Plan]) -> Plan:
    return make()


def plan_program(
    program: Program,
    *,
    mesh: str | Sequence[int] | int | Mesh | None,
    cluster: str | Sequence[int] | Cluster | None = None,
    profile: str | Path | Profile | None,
    memory: str | float | None,
    search: str,
    budget: float,
    seed: int,
    pin: Mapping[str, str] | None,
    strict: bool,
    progress: Callable[[float, float], None] | None,
    objective: str = TIME,
    engine: str | None = ONEFLOW,
    stop_gap: float = 0.0,
    allow: frozenset[str] = frozenset(),
    max_axes: int | None = None,
    pipeline: int | str | None = None,
    micro_batches: int | None = None,
    compute_stream: bool | str = AUTO,
) -> Plan:
    """Plan a program; the arguments are those of `optimize`, `allow` names approximations."""
    check_arguments(search=search, budget=budget, stop_gap=stop_gap, seed=seed, pin=pin)
    check_space(objective=objective, engine=engine)
    check_pipeline(pipeline, micro_batches, search=search, objective=objective)
    streams = compute_streams(compute_stream, program.device, pipeline, micro_batches)
    if mesh is None and cluster is None:
        raise AutoDDLError(
            "mesh: none given, and a saved program has no running ranks to take it from; "
            "pass mesh='2x4' (nodes x devices), or cluster='2x4' to search all its meshes"
        )
    known = profiles.load(profile, device_type=program.device)
    limit = known.device.memory_bytes if memory is None else parse_bytes(memory)
    given = None if mesh is None else mesh_of(mesh, known.levels)
    named = None
    if given is None and cluster is not None:
        named = mesh_search.cluster_of(cluster, known.levels)
    whole = pipelines.whole_cluster(given, named, pipeline)
    meshes = [given] if given is not None else list(whole.meshes(max_axes))
    sizes = [n for m in meshes for n in m.shape]
    lists = report_unknown(program, sizes, strict=strict, engine=engine)
    timed = objective == TIME

    def make(candidate: Mesh, part: Program = program, *, stream: bool = streams[0]) -> Problem:
        if stream:
            streams_on(candidate, (stream,))
        return build(
            part, candidate, known, pin=pin, lists=lists, allow=allow, engine=engine,
            any_batch=part is not program, compute_stream=stream,
        )  # fmt: skip

    def find(problem: Problem, seconds: float, starts: Sequence[Assignment]) -> Plan:
        def planned(stream: bool, left_s: float) -> Plan:
            other = stream != streams[0]
            plan = solve(
                on_stream(problem, stream, engine=engine) if other else problem,
                search=search, budget=left_s, stop_gap=stop_gap, seed=seed, limit=limit,
                objective=objective, progress=progress, begin_at=starts if timed else (),
                baselines=assignments(problem) if other and timed else None,
                others=not stream and len(allowed) > 1,
            )  # fmt: skip
            return replace(plan, engine=engine)

        allowed = in_order(streams_on(problem.mesh, streams), problem, limit)
        settled = partial(is_settled, problem=problem)
        return best_stream(allowed, planned, cost_s, settled, budget=seconds)

    def cost_s(plan: Plan) -> float:
        return plan.estimate.step_s if timed else plan.estimate.communication_s

    def bound_s(problem: Problem) -> float:
        """Bound by compute alone, which a step takes at least, however much else overlaps."""
        return problem.lower_bound_s() if timed else 0.0

    work = mesh_search.Work(make, bound_s, find, cost_s)

    def one_stage(seconds: float) -> Plan:
        return mesh_search.best_plan(program, meshes, work, budget=seconds)

    options = pipelines.Options(
        known, whole, limit, search, budget, stop_gap, seed, make, allow,
        pipelines.Choice(
            1 if streams == (True,) else pipeline, micro_batches, given, max_axes or EXECUTED_AXES
        ),
        timed,
    )  # fmt: skip
    return pipelines.choose(program, options, one_stage)


def report_unknown(
    program: Program, sizes: Collection[int], *, strict: bool, engine: str | None = ONEFLOW
) -> SignatureLists | None:
    """Warn once of all op types without a rule and return how the engine would split them.

    `sizes` are those of the mesh axes. Without OneFlow, or any engine, these ops are planned
    all-broadcast. The engine is asked about ops with a user's rule, too, so that what it refuses can
    be left out.

    Raises:
        RuleError: in strict mode, if there are any.
    """
    unknown = unknown_types(program)
    absent = engine is None or find_spec("oneflow") is None
    if not unknown:
        return None if absent else _of_own_rules(program, sizes)
    how = "register rules with autoddl.register_rule(autoddl.OpRule(…))"
    if strict:
        raise RuleError(f"op types without a rule: {_counted(unknown)}; {how} to let them be split")
    if absent:
        warnings.warn(
            f"op types without a rule are planned all-broadcast: {_counted(unknown)}; {how} to let "
            "them be split",
            stacklevel=4,
        )
        return None
    from autoddl.engine import unknown_ops

    lists = unknown_ops.ask(program, sizes)
    listed = {name: count for name, count in unknown.items() if name not in lists.whole}
    parts = []
    if listed:
        parts.append(f"OneFlow's own signatures, not proven by autoddl, for {_counted(listed)}")
    for reason in dict.fromkeys(lists.whole.values()):
        types = {name: n for name, n in unknown.items() if lists.whole.get(name) == reason}
        parts.append(f"all-broadcast for {_counted(types)} ({reason})")
    warnings.warn(
        f"op types without a rule are planned with {'; '.join(parts)}; {how} to have them proven",
        stacklevel=4,
    )
    return lists.signatures


def _of_own_rules(program: Program, sizes: Collection[int]) -> SignatureLists | None:
    if all(map(is_built_in, program.columns.types)):
        return None
    from autoddl.engine import unknown_ops

    return unknown_ops.ask(program, sizes).signatures


def _counted(types: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in types.items())
