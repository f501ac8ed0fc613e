"""What is planned for what: the options of `optimize`, read against a program, profile and cluster."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoddl.engine.model import EngineModel, StreamUse
from autoddl.errors import AutoDDLError, shown
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.pipeline.schedules import CREDITS
from autoddl.perfmodel.profile import Profile
from autoddl.plan.value import PlanValue
from autoddl.planner.channel_statistics import check_statistics
from autoddl.planner.memory_limits import memory_limits, with_memory
from autoddl.planner.missing_rules import Ask, engine_signatures
from autoddl.planner.plan_options import ANY, AUTO, EQUAL, FREE, LAYERS, Options
from autoddl.planner.stages.part_classes import part_classes
from autoddl.planner.stages.stage_pins import StagePins, stage_of
from autoddl.planner.uneven.given_shares import check_given
from autoddl.sbp.mesh import Axis, Cluster, Level, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.search.baselines.axes import live
from autoddl.search.network.builder import build
from autoddl.search.network.choices import SignatureLists
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import TIME
from autoddl.search.solvers.named import HAP, HIDUP, SOLVERS


@dataclass(frozen=True, kw_only=True)
class Request(Options):
    """Options that have been read, and what they are for; where the user left a choice, what holds.

    `cluster` are all devices; `mesh` that of each stage, if it is fixed; `most_axes` bounds the meshes
    that the planner chooses by itself. `limits` are the bytes of devices by kind, where there are
    several; `limit_bytes` is then the least. `ways` are those to run boxings that the user leaves, that
    to be tried first first, () all of the engine; `ways_of` has those for so many stages and
    micro-batches. `lists` are the engine's signatures of ops without a rule. `keep` of the best plans
    are wanted. A `start` is a plan that searches begin with where they solve the problem that it solves.
    Variables are `held` in some states, as if they were pinned.
    """

    program: Program
    engine: EngineModel
    cluster: Cluster
    profile: Profile
    mesh: Mesh | None = None
    limit_bytes: int | None = None
    limits: Mapping[str, int] | None = None
    ways: tuple[StreamUse, ...] = ()
    most_axes: int | None = None
    lists: SignatureLists | None = None
    keep: int = 1
    start: PlanValue | None = None
    held: Mapping[str, str] | None = None

    @property
    def stage_axes(self) -> int | None:
        """Return the most axes of the mesh of a stage."""
        return self.most_axes or self.engine.limits.axes

    @property
    def may_stride(self) -> bool:
        """Tell whether a search chooses cuts with strides, too."""
        chooses = self.search in SOLVERS and self.search not in (HAP, HIDUP)
        return chooses and self.strides is not False and self.engine.limits.strides

    @property
    def whole_mesh(self) -> Mesh:
        """Return all devices as one mesh of the cluster's levels; as one axis where nodes are unlike."""
        flat = Mesh((Axis(self.cluster.levels[0].name, self.cluster.size),))
        return next(self.cluster.meshes(len(self.cluster.levels)), flat)

    @property
    def state_pins(self) -> Mapping[str, str]:
        """Return the pins of states, without those of stages."""
        return {name: text for name, text in (self.pin or {}).items() if stage_of(text) is None}

    def limit_of(self, kinds: Collection[str]) -> int | None:
        """Return the bytes that fit into each device of these kinds."""
        if self.limits is None:
            return self.limit_bytes
        return min(self.limits[kind] for kind in kinds or self.limits)

    def ways_of(self, stages: int = 1, micro_batches: int = 1) -> tuple[StreamUse, ...]:
        """Return the ways to run boxings of plans of so many stages (0: any number)."""
        device = self.program.device
        ways = self.ways or self.engine.streams
        return tuple(way for way in ways if way.runs_for(device, stages, micro_batches))

    def problem(
        self, mesh: Mesh, part: Program | None = None, kinds: Collection[str] | None = None,
        *, ways: Sequence[StreamUse] = (), strides: bool = False,
    ) -> CostNetwork:  # fmt: skip
        """Return the problem of the program on a mesh, or of one micro-batch of it.

        Devices are of these `kinds`, by default of all that the cluster has; on a mesh with shares one is
        told for each device. Boxings run in the first of `ways`, by default of those without stages.
        With `strides` cuts may have them.

        Raises:
            AutoDDLError: there is none, or boxings can't run on such a mesh in any of these ways.
        """
        ways = ways or self.ways_of()
        if not any(way.runs_on(mesh) for way in ways):
            most = max(way.axes or 0 for way in ways)
            raise AutoDDLError(
                f"mesh: got {mesh}; on the compute stream, which was asked for or is that of plans with "
                f"micro-batches, {self.engine.title} runs boxings on meshes of up to {most} axes"
            )
        profile = self.profile.part(self.cluster.kinds if kinds is None else kinds)
        told = map(self.cluster.kind, range(mesh.size)) if kinds is None else kinds
        unlike = mesh.cuts != mesh.shape and profile.kinds
        return build(
            self.program if part is None else part,
            mesh,
            profile,
            self.engine,
            pin={**self.state_pins, **(self.held or {})},
            lists=self.lists,
            allow=self.allow,
            streams=ways[0],
            launch=self.launch,
            kinds=tuple(told) if unlike else (),
            strides=strides,
        )


def read(
    program: Program,
    options: Options,
    ranks: tuple[int, int] | None = None,
    *,
    engine: EngineModel,
    ask: Ask | None = None,
    accumulated: int = 1,
    held: Mapping[str, str] | None = None,
) -> Request:
    """Return the request that options make for a program; `ranks` are those that run, if any do.

    The graph itself accumulates gradients over so many micro-batches. The engine is one of these, and can
    be asked about ops without a rule if it is installed. Variables may be `held` in states by name.

    Raises:
        AutoDDLError: in one line, which option is wrong, and what is allowed.
    """
    check_statistics(program)
    asked, cluster = options, ranks if options.cluster is None else options.cluster
    staged = _staged(asked, accumulated)
    if accumulated > 1:
        asked = replace(asked, micro_batches=accumulated)
    asked = _without_contradiction(asked, staged)
    _check_fusion(engine, asked, program.device)
    _check_schedule(engine, asked)
    if asked.strides is True and not engine.limits.strides:
        raise AutoDDLError(
            f"strides: got True with {engine.title}, which cuts a dim into one piece for each device; "
            "allowed are 'auto' and False, or engine='script' or None"
        )
    ways = _ways(engine, asked, program.device, staged)
    if asked.mesh is None and cluster is None:
        raise AutoDDLError(
            "mesh: none given, and a saved program has no running ranks to take it from; "
            "pass mesh='2x4' (nodes x devices), or cluster='2x4' to search all its meshes"
        )
    known = profiles.load(asked.profile, device_type=program.device)
    hidup = asked.search == HIDUP
    most_axes = 1 if hidup else None if ranks is None else engine.limits.axes
    if asked.mesh is not None:
        given = mesh_of(asked.mesh, known.levels)
        check_given(given, program, asked, engine)
        whole, meshes = _devices_of(given, cluster, known, asked, staged), [given]
        if is_of_all(given, whole):
            asked = replace(asked, pipeline=1)
    else:
        given, whole = None, cluster_of(cluster, known.levels)
        if whole.kinds and engine.name is not None:  # as parts have, beside which one stage stands
            most_axes = most_axes or engine.limits.axes
        meshes = list(whole.meshes(most_axes))
    free = asked.pipeline is None and asked.micro_batches is None
    timed = asked.search in SOLVERS and asked.search != HAP and asked.objective == TIME
    if whole.kinds and free and timed and given is None:
        asked = replace(asked, pipeline=AUTO)
    _check_stage_pins(program, asked, whole)
    if whole.sizes:
        _check_unlike_nodes(whole, asked, staged)
    if asked.parts == FREE and (whole.kinds or whole.sizes):
        raise AutoDDLError(
            f"parts: got {FREE!r} on {whole}; free stages are on devices and nodes that are alike; here "
            f"allowed are {AUTO!r}, {EQUAL!r} and {ANY!r}"
        )
    if asked.parts == AUTO and not whole.kinds:
        asked = replace(asked, parts=EQUAL)
    limits, limit = memory_limits(asked.memory, known, whole)
    known = known if limits is None else with_memory(known, limits)
    if hidup and not any(len(live(m.shape)) <= 1 for m in meshes):
        raise AutoDDLError(
            f"search: got {HIDUP!r} on {given or whole}; it splits tensors over one axis of a mesh; give "
            f"mesh='{whole.size}', or another search"
        )
    if isinstance(asked.profile, str | Path) and str(asked.profile) not in profiles.bundled():
        _warn_of_assumed(asked.profile, known, whole)
    _warn_of_rates(program, known)
    meshes += [one.mesh for one in part_classes(whole, most_axes)] if whole.kinds else []
    axes = {size for mesh in meshes for size in mesh.shape}
    lists = engine_signatures(program, axes, ask, strict=asked.strict, title=engine.title)
    read_now = {
        "program": program, "engine": engine, "cluster": whole, "profile": known, "mesh": given,
        "limits": limits, "limit_bytes": limit, "ways": ways, "most_axes": most_axes, "lists": lists,
        "held": held,
    }  # fmt: skip
    return Request(**{**vars(asked), **read_now})


def _check_stage_pins(program: Program, asked: Options, cluster: Cluster) -> None:
    """Raise AutoDDLError where stages are pinned against the order of data, or of no pipeline."""
    free = asked.parts == FREE
    pins = StagePins(program, asked.pin or {}, free=free)
    if not pins:
        return
    micro_batches = asked.micro_batches not in (None, 1)
    if asked.pipeline == 1 or (asked.pipeline is None and not micro_batches):
        raise AutoDDLError(
            f"{pins.pinned[-1].pin} with pipeline={asked.pipeline}, which has no stages; give "
            "pipeline='auto' or their number, or leave the pin out"
        )
    most = asked.pipeline if isinstance(asked.pipeline, int) else cluster.size
    pins.check([*range(1, most + 1)], range(positions(program).count + 1), free=free)


def _check_fusion(engine: EngineModel, asked: Options, device: str) -> None:
    """Raise AutoDDLError where launches are asked for, and the engine joins no collectives."""
    if asked.launch is not None and device not in engine.collectives:
        raise AutoDDLError(
            f"fusion: got {asked.fusion!r} on device {device!r}, where {engine.title} joins no "
            f"collectives; allowed is None; it does so on {', '.join(engine.collectives) or 'no device'}"
        )


def _check_schedule(engine: EngineModel, asked: Options) -> None:
    """Raise AutoDDLError where a schedule is asked for that nothing keeps, or without stages."""
    if asked.schedule is None:
        return
    if engine.schedule == CREDITS:
        raise AutoDDLError(
            f"schedule: got {asked.schedule!r} with {engine.title}, which runs what is ready, within "
            "credits; allowed is None, or engine='script', whose scripts keep a schedule"
        )
    if asked.pipeline == 1 or (asked.pipeline is None and asked.micro_batches in (None, 1)):
        raise AutoDDLError(
            f"schedule: got {asked.schedule!r} with pipeline={asked.pipeline}, which has no stages; give "
            "pipeline='auto' or their number, or leave the schedule out"
        )


def is_of_all(mesh: Mesh, cluster: Cluster) -> bool:
    """Tell whether a given mesh is that of all devices in one stage: has shares, or unlike devices."""
    return bool(cluster.kinds) or mesh.cuts != mesh.shape


def _devices_of(mesh: Mesh, cluster: Any, known: Profile, asked: Options, staged: str) -> Cluster:
    """Return all devices of plans on a given mesh: that of each stage, or of all that have kinds.

    Raises:
        AutoDDLError: stages beside kinds or shares, or on parts of unlike meshes; kinds of other devices.
    """
    whole = cluster_of(cluster, known.levels) if isinstance(cluster, str | Cluster) else None
    kinds = whole is not None and bool(whole.kinds)
    if asked.parts == ANY:
        raise AutoDDLError(
            f"mesh: got {mesh} with parts={ANY!r}, where each part has a mesh of its own; leave one of "
            "them out"
        )
    if staged and (kinds or mesh.cuts != mesh.shape):
        raise AutoDDLError(
            f"mesh: got {mesh} with {staged}; a mesh with shares, or of devices of several kinds, is "
            "that of all devices in one stage; leave one of them out"
        )
    if whole is None or not kinds:
        return _stages_of(mesh, asked.pipeline)
    if whole.sizes or mesh.cluster.several != whole.several:
        sizes = "nodes of unlike size" if whole.sizes else "".join(map(str, whole.levels))
        raise AutoDDLError(
            f"mesh: got {mesh.describe()} with cluster {whole}, which are {sizes}; give a mesh whose "
            "axes multiply to these, or leave it out"
        )
    return whole


def _check_unlike_nodes(cluster: Cluster, asked: Options, staged: str) -> None:
    """Raise AutoDDLError where nodes of unlike size are given beside what is planned without stages."""
    for other, refused in (
        (f"search={asked.search!r}", asked.search not in SOLVERS),
        (f"objective={asked.objective!r}", asked.objective != TIME),
        ("duplex=True", asked.duplex is True),
        ("pipeline=1", not staged and asked.pipeline != AUTO),
    ):
        if refused:
            raise AutoDDLError(
                f"cluster: got {cluster} with {other}; no mesh spans nodes of unlike size, which are "
                f"planned with stages: allowed are pipeline='auto', objective={TIME!r}, duplex=False "
                f"and the searches {', '.join(SOLVERS)}"
            )


def _warn_of_assumed(file: str | Path, known: Profile, cluster: Cluster) -> None:
    """Warn where a profile that was measured does not know how far boxings overlap with ops."""
    used = {level.name for level in cluster.levels if level.size > 1}
    assumed = ", ".join(level for level in known.assumed_overlap if level in used)
    if assumed:
        warnings.warn(
            f"profile {file}: how far boxings over level {assumed} overlap with ops is assumed, not "
            f"measured; {profiles.AGAIN}",
            stacklevel=5,
        )


def _warn_of_rates(program: Program, known: Profile) -> None:
    """Warn where a program computes in a half precision whose rate the profile does not know."""
    used = {tensor.dtype for tensor in program.tensors} & {"float16", "bfloat16"}
    devices = known.devices.values()
    for dtype in sorted(d for d in used if any(d not in each.peak_flops for each in devices)):
        warnings.warn(
            f"profile {known.name}: no rate of {dtype}, so its ops are priced at that of float32; write "
            f"peak_flops.{dtype} of devices, in flop/s, into the file and sign it with "
            "`python -m autoddl sign`",
            stacklevel=5,
        )


def _stages_of(mesh: Mesh, stages: int | str | None) -> Cluster:
    """Return all devices: so many times those of a stage's mesh as there are stages."""
    outer, *inner = mesh.cluster.levels
    count = stages if isinstance(stages, int) else 1
    return Cluster((Level(outer.name, outer.size * count), *inner))


def cluster_of(given: Any, levels: Sequence[str]) -> Cluster:
    """Return the cluster that the user means, on the levels of a profile; one node has no level.

    Raises:
        AutoDDLError: not a cluster, or one of more levels than the profile has.
    """
    if isinstance(given, Cluster):
        return given
    if not isinstance(given, str | Sequence) or isinstance(given, bytes):
        raise AutoDDLError(
            f"cluster: got {shown(given, 150)}; allowed are counts such as '2x4' (nodes x devices) or "
            "(2, 4)"
        )
    if not isinstance(given, str) and len(levels) == 1 and len(given) == 2:
        given = (given[0] * given[1],)  # the profile does not tell nodes apart
    return Cluster.parse(given, levels)


def _staged(asked: Options, accumulated: int) -> str:
    """Return which option asks for stages or micro-batches, with its value; "" where none does.

    Raises:
        AutoDDLError: the graph accumulates gradients over another number of micro-batches.
    """
    own = f"{accumulated} micro-batches, over which the graph accumulates gradients"
    if accumulated > 1 and asked.micro_batches not in (None, accumulated):
        raise AutoDDLError(
            f"micro_batches: got {shown(asked.micro_batches)} with {own}; leave one of them out"
        )
    if asked.pipeline not in (None, 1):
        return f"pipeline={asked.pipeline!r}"
    if accumulated > 1:
        return own
    several = asked.micro_batches not in (None, 1)
    return f"micro_batches={asked.micro_batches}" if several else ""


def _without_contradiction(asked: Options, staged: str) -> Options:
    """Return the options without halves that are "auto" beside what has none, of which it warns.

    Raises:
        AutoDDLError: two options contradict each other; `staged` is what `_staged` returns.
    """
    search, timed = asked.search, asked.objective == TIME
    for option, fits, allowed in (
        (f"search: got {search!r}", search in SOLVERS, f"searches are {', '.join(SOLVERS)}"),
        (
            f"objective: got {asked.objective!r}",
            timed,
            f"objective is {TIME!r}, the time of a step",
        ),
    ):
        if staged and not fits:
            raise AutoDDLError(
                f"{option} with {staged}; with stages or micro-batches the allowed {allowed}"
            )
    if asked.recompute == LAYERS and (staged or asked.duplex is True):
        raise AutoDDLError(
            f"recompute: got {LAYERS!r} with {staged or 'duplex=True'}; stages compute all of their "
            f"forward pass again where memory demands it, halves nothing; allowed are {AUTO!r} and 'none'"
        )
    if asked.duplex is False:
        return asked
    stream = asked.compute_stream is True
    for other, refused, why in (
        (f"objective={asked.objective!r}", not timed, "halves overlap in the time of a step only"),
        (f"search={search!r}", search == HIDUP, "it has its own model of halves, for one batch"),
        ("compute_stream=True", stream, "there nothing overlaps"),
        (staged, bool(staged), "these are parts of the batch already"),
    ):
        if refused and asked.duplex is True:
            raise AutoDDLError(f"duplex: got True with {other}; {why}; allowed is duplex=False")
        if refused:
            warnings.warn(f"duplex: 'auto' is off with {other}; {why}", stacklevel=5)
            return replace(asked, duplex=False)
    return asked


def _ways(engine: EngineModel, asked: Options, device: str, staged: str) -> tuple[StreamUse, ...]:
    """Return the ways to run boxings that the user leaves, the first first.

    Raises:
        AutoDDLError: a program on these devices, or with stages, has not the one that is asked for.
    """
    wanted = asked.compute_stream
    if wanted is True and device != "cuda":
        raise AutoDDLError(
            f"compute_stream: got True for a program on {device!r}; only CUDA devices have streams"
        )
    ways = tuple(way for way in engine.streams if wanted in (AUTO, way.compute_stream))
    number = asked.pipeline if isinstance(asked.pipeline, int) else 1
    parts = asked.micro_batches or (2 if number > 1 else 1)  # several, where there are stages
    if not any(way.runs_for(device, number, parts) for way in ways):
        used = "the compute stream" if wanted is False else "streams of their own"
        raise AutoDDLError(
            f"compute_stream: got {wanted} with {staged}; {engine.title} runs the boxings of "
            f"these on {used}; leave it out"
        )
    return ways


def mesh_of(given: Any, levels: tuple[str, ...]) -> Mesh:
    """Return the mesh that the user means."""
    if isinstance(given, Mesh):
        return given
    sizes = (given,) if isinstance(given, int) else given
    listed = isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes)
    if not isinstance(sizes, str) and not (listed and not any(isinstance(n, bool) for n in sizes)):
        raise AutoDDLError(
            f"mesh: got {shown(given, 150)}; allowed are sizes such as '4', '2x4' or (2, 4)"
        )
    return Mesh.parse(sizes, levels)
