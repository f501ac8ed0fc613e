"""What `optimize` is called with: read once, or refused in one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl.engine.model import EngineModel, StreamUse
from autoddl.errors import AutoDDLError, shown
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.planner.memory_limits import memory_limits
from autoddl.planner.missing_rules import Ask, engine_signatures
from autoddl.planner.stages.part_classes import part_classes
from autoddl.sbp.mesh import MOST_DEVICES, Axis, Cluster, Level, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.batchnorm import LOCAL_STATISTICS
from autoddl.search.baselines import BASELINES
from autoddl.search.baselines.axes import live
from autoddl.search.budget import TWENTY_SECONDS, Budget
from autoddl.search.network.builder import build
from autoddl.search.network.choices import SignatureLists
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import COMMUNICATION, OBJECTIVES, TIME
from autoddl.search.solvers.named import HIDUP, SOLVERS

AUTO = "auto"  # let the planner choose
EQUAL, ANY = "equal", "any"  # sizes of stages
SEARCHES = (*SOLVERS, *BASELINES)
MOST = 1 << 60  # bytes, and seconds; sums of them stay in 64 bits


@dataclass(frozen=True)
class Request:
    """All that the user has fixed, and what it is planned for.

    `cluster` are all devices; `mesh` that of each stage, if it is fixed; `most_axes` bounds the meshes
    that the planner chooses by itself. `stages` is a number, "auto", or None: more than one only where
    memory demands it. `ways` are those to run boxings that the user leaves, that to be tried first
    first, () all of the engine; `ways_of` has those for so many stages and micro-batches. `allow` names
    approximations of rules, `lists` are the engine's signatures of ops without a rule. `limits` are
    the bytes of devices by kind, where there are several; `limit_bytes` is then the least. Stages are
    `parts` of equal size or of any; "auto" is any, where these are not too many. `keep` of the best
    plans are wanted.
    """

    program: Program
    profile: Profile
    cluster: Cluster
    engine: EngineModel
    mesh: Mesh | None = None
    limit_bytes: int | None = None
    search: str = "exact"
    objective: str = TIME
    budget: Budget = TWENTY_SECONDS
    stop_gap: float = 0.0
    seed: int = 0
    pin: Mapping[str, str] | None = None
    allow: frozenset[str] = frozenset()
    stages: int | str | None = None
    micro_batches: int | None = None
    ways: tuple[StreamUse, ...] = ()
    duplex: bool | str = False
    most_axes: int | None = None
    lists: SignatureLists | None = None
    progress: Callable[[float, float], None] | None = None
    limits: Mapping[str, int] | None = None
    parts: str = EQUAL
    keep: int = 1

    @property
    def timed(self) -> bool:
        """Tell whether compute counts, not communication alone."""
        return self.objective != COMMUNICATION

    @property
    def stage_axes(self) -> int | None:
        """Return the most axes of the mesh of a stage."""
        return self.most_axes or self.engine.limits.axes

    @property
    def whole_mesh(self) -> Mesh:
        """Return all devices as one mesh of the cluster's levels; as one axis where nodes are unlike."""
        flat = Mesh((Axis(self.cluster.levels[0].name, self.cluster.size),))
        return next(self.cluster.meshes(len(self.cluster.levels)), flat)

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
        *, ways: Sequence[StreamUse] = (),
    ) -> CostNetwork:  # fmt: skip
        """Return the problem of the program on a mesh, or of one micro-batch of it.

        Devices are of these `kinds`, by default of all that the cluster has. Boxings run in the first of
        these `ways`, by default of those of plans without stages.

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
        return build(
            self.program if part is None else part,
            mesh,
            self.profile.part(self.cluster.kinds if kinds is None else kinds),
            self.engine,
            pin=self.pin,
            lists=self.lists,
            allow=self.allow,
            streams=ways[0],
        )


def read(
    program: Program,
    ranks: tuple[int, int] | None = None,
    *,
    engine: EngineModel, ask: Ask | None = None,
    mesh: Any = None, cluster: Any = None, profile: str | Path | Profile | None = None,
    memory: Any = None, search: str = "exact", objective: str = TIME,
    budget: float | Budget = 20.0, stop_gap: float = 0.0, seed: int = 0,
    pin: Mapping[str, str] | None = None, strict: bool = False, allow_local_batchnorm: bool = False,
    pipeline: int | str | None = None, micro_batches: int | None = None,
    compute_stream: bool | str = AUTO, duplex: bool | str = False, parts: str = AUTO,
    progress: Callable[[float, float], None] | None = None, accumulated: int = 1,
) -> Request:  # fmt: skip
    """Return the request that the arguments of `optimize` make; `ranks` are those that run, if any do.

    The graph itself accumulates gradients over so many micro-batches. The engine is one of these, and can
    be asked about ops without a rule if it is installed.

    Raises:
        AutoDDLError: in one line, which argument is wrong, and what is allowed.
    """
    for name, value, right, allowed in (
        ("search", search, search in SEARCHES, f"are {', '.join(SEARCHES)}"),
        ("objective", objective, objective in OBJECTIVES, f"are {', '.join(OBJECTIVES)}"),
        ("stop_gap", stop_gap, _is_number(stop_gap) and 0 <= stop_gap < 1,
         "are 0 (proven best) to below 1"),
        ("seed", seed, _is_whole(seed, 0), "are whole numbers >= 0"),
        ("pipeline", pipeline, pipeline in (None, AUTO) or _is_whole(pipeline, 1, MOST_DEVICES),
         "is 'auto' or a number of stages from 1 on"),
        ("micro_batches", micro_batches,
         micro_batches is None or _is_whole(micro_batches, 1, MOST_DEVICES),
         "is a whole number from 1 on"),
        ("compute_stream", compute_stream,
         compute_stream == AUTO or isinstance(compute_stream, bool), "are 'auto', True and False"),
        ("duplex", duplex, duplex == AUTO or isinstance(duplex, bool), "are 'auto', True and False"),
        ("parts", parts, parts in (AUTO, EQUAL, ANY), f"are '{AUTO}', '{EQUAL}' and '{ANY}'"),
        ("strict", strict, isinstance(strict, bool), "are True and False"),
        ("allow_local_batchnorm", allow_local_batchnorm, isinstance(allow_local_batchnorm, bool),
         "are True and False"),
        ("progress", progress, progress is None or callable(progress),
         "is a function of two numbers"),
    ):  # fmt: skip
        if not right:
            raise AutoDDLError(f"{name}: got {shown(value, 150)}; allowed {allowed}")
    _check_pins(pin)
    staged = _staged(pipeline, micro_batches, accumulated)
    micro_batches = accumulated if accumulated > 1 else micro_batches
    _check_together(search, objective, compute_stream, duplex, staged)
    ways = _ways(engine, compute_stream, program.device, pipeline, micro_batches, staged)
    cluster = ranks if cluster is None else cluster
    if mesh is None and cluster is None:
        raise AutoDDLError(
            "mesh: none given, and a saved program has no running ranks to take it from; "
            "pass mesh='2x4' (nodes x devices), or cluster='2x4' to search all its meshes"
        )
    known = profiles.load(profile, device_type=program.device)
    most_axes = 1 if search == HIDUP else None if ranks is None else engine.limits.axes
    if mesh is not None:
        given = mesh_of(mesh, known.levels)
        whole, meshes = _stages_of(given, pipeline), [given]
        _check_mesh_alone(given, cluster, known, parts)
    else:
        given, whole = None, cluster_of(cluster, known.levels)
        if whole.kinds and engine.name is not None:
            most_axes = (
                most_axes or engine.limits.axes
            )  # as parts have, beside which one stage stands
        meshes = list(whole.meshes(most_axes))
    if whole.kinds and pipeline is None and micro_batches is None and search in SOLVERS:
        pipeline = AUTO if objective == TIME else None
    if whole.sizes:
        _check_unlike_nodes(whole, search, objective, duplex, staged or pipeline == AUTO)
    limits, limit = memory_limits(memory, known, whole)
    if search == HIDUP and not any(len(live(m.shape)) <= 1 for m in meshes):
        raise AutoDDLError(
            f"search: got {HIDUP!r} on {given or whole}; it splits tensors over one axis of a mesh; give "
            f"mesh='{whole.size}', or another search"
        )
    if isinstance(profile, str | Path) and str(profile) not in profiles.bundled():
        _warn_of_assumed(profile, known, whole)
    _warn_of_rates(program, known)
    meshes += [one.mesh for one in part_classes(whole, most_axes)] if whole.kinds else []
    axes = {size for mesh in meshes for size in mesh.shape}
    lists = engine_signatures(program, axes, ask, strict=strict, title=engine.title)
    return Request(
        program, known, whole, engine, given, limit, search, objective, Budget.of(budget), stop_gap,
        seed, pin,
        allow=frozenset({LOCAL_STATISTICS} if allow_local_batchnorm else ()),
        stages=pipeline, micro_batches=micro_batches, ways=ways,
        duplex=duplex if search != HIDUP else False,
        most_axes=most_axes, lists=lists, progress=progress, limits=limits,
        parts=EQUAL if parts == AUTO and not whole.kinds else parts,
    )  # fmt: skip


def _check_mesh_alone(mesh: Mesh, cluster: Any, known: Profile, parts: str) -> None:
    """Raise AutoDDLError where a mesh is given beside what has parts of unlike meshes."""
    kinds = cluster_of(cluster, known.levels).kinds if isinstance(cluster, str | Cluster) else ()
    if kinds or parts == ANY:
        what = f"cluster {cluster}" if kinds else f"parts={parts!r}"
        raise AutoDDLError(
            f"mesh: got {mesh} with {what}, where each part has a mesh of its own; leave one of them out"
        )


def _check_unlike_nodes(
    cluster: Cluster, search: str, objective: str, duplex: bool | str, staged: bool | str
) -> None:
    """Raise AutoDDLError where nodes of unlike size are given beside what is planned without stages."""
    for other, refused in (
        (f"search={search!r}", search not in SOLVERS),
        (f"objective={objective!r}", objective != TIME),
        ("duplex=True", duplex is True),
        ("pipeline=1", not staged),
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


def cluster_of(given: str | Sequence[int] | Cluster, levels: Sequence[str]) -> Cluster:
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


def _check_pins(pin: Any) -> None:
    """Raise AutoDDLError for what are no name patterns with states."""
    if pin is not None and not isinstance(pin, Mapping):
        raise AutoDDLError(
            f"pin: got {shown(pin, 150)}; give a dict of name patterns and states, "
            "{'*.fc1.weight': 'B,S0'}"
        )
    for pattern, state in (pin or {}).items():
        if not isinstance(pattern, str) or not isinstance(state, str):
            raise AutoDDLError(
                f"pin {shown(pattern, 100)}: got {shown(state, 150)}; give a name pattern and a state "
                "such as 'B,S0'"
            )


def _staged(pipeline: int | str | None, micro_batches: int | None, accumulated: int) -> str:
    """Return which option asks for stages or micro-batches, with its value; "" where none does.

    Raises:
        AutoDDLError: the graph accumulates gradients over another number of micro-batches.
    """
    own = f"{accumulated} micro-batches, over which the graph accumulates gradients"
    if accumulated > 1 and micro_batches not in (None, accumulated):
        raise AutoDDLError(
            f"micro_batches: got {shown(micro_batches)} with {own}; leave one of them out"
        )
    if pipeline not in (None, 1):
        return f"pipeline={pipeline!r}"
    if accumulated > 1:
        return own
    return f"micro_batches={micro_batches}" if micro_batches not in (None, 1) else ""


def _check_together(
    search: str, objective: str, compute_stream: bool | str, duplex: bool | str, staged: str
) -> None:
    """Raise AutoDDLError for two options that contradict each other; `staged` as of `_staged`.

    Halves of the batch that are "auto" are off beside what has none, with a warning.
    """
    timed = objective == TIME
    for option, fits, allowed in (
        (f"search: got {search!r}", search in SOLVERS, f"searches are {', '.join(SOLVERS)}"),
        (f"objective: got {objective!r}", timed, f"objective is {TIME!r}, the time of a step"),
    ):
        if staged and not fits:
            raise AutoDDLError(
                f"{option} with {staged}; with stages or micro-batches the allowed {allowed}"
            )
    for other, refused, why in (
        (f"objective={objective!r}", not timed, "halves overlap in the time of a step only"),
        (f"search={search!r}", search == HIDUP, "it has its own model of halves, for one batch"),
        ("compute_stream=True", compute_stream is True, "there nothing overlaps"),
        (staged, bool(staged), "these are parts of the batch already"),
    ):
        if refused and duplex is True:
            raise AutoDDLError(f"duplex: got True with {other}; {why}; allowed is duplex=False")
        if refused and duplex == AUTO:
            warnings.warn(f"duplex: 'auto' is off with {other}; {why}", stacklevel=5)


def _ways(
    engine: EngineModel,
    compute_stream: bool | str,
    device: str,
    stages: int | str | None,
    micro_batches: int | None,
    staged: str,
) -> tuple[StreamUse, ...]:
    """Return the ways to run boxings that the user leaves, the first first.

    Raises:
        AutoDDLError: a program on these devices, or with stages, has not the one that is asked for.
    """
    if compute_stream is True and device != "cuda":
        raise AutoDDLError(
            f"compute_stream: got True for a program on {device!r}; only CUDA devices have streams"
        )
    ways = tuple(w for w in engine.streams if compute_stream in (AUTO, w.compute_stream))
    number = stages if isinstance(stages, int) else 1
    parts = micro_batches or (2 if number > 1 else 1)  # where there are stages, there are several
    if not any(way.runs_for(device, number, parts) for way in ways):
        used = "the compute stream" if compute_stream is False else "streams of their own"
        raise AutoDDLError(
            f"compute_stream: got {compute_stream} with {staged}; {engine.title} runs the boxings of "
            f"these on {used}; leave it out"
        )
    return ways


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any, least: int, most: int = 1 << 63) -> bool:
    return _is_number(value) and isinstance(value, int) and least <= value <= most


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
