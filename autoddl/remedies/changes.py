"""What may help where nothing fits: options that forbid something, more devices, a smaller batch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from autoddl.planner.plan_options import ANY, AUTO, EQUAL
from autoddl.planner.request import Request, is_of_all
from autoddl.remedies.diagnosis import Change
from autoddl.remedies.holdings import parameter_bytes
from autoddl.sbp.mesh import MOST_DEVICES, Cluster
from autoddl.search.baselines import BASELINES
from autoddl.search.reductions.objective import TIME
from autoddl.search.solvers.named import SOLVERS

EXACT, ZERO = "exact", "ZeRO 2"
UNITS = "", "KiB", "MiB", "GiB", "TiB"
NODE = 8  # devices; more of them are several nodes, where the user has one axis
DOUBLINGS, MOST_TIMES = 3, 1 << 10
_DOUBLES = [2**n for n in range(1, 11)]


def size_text(size: int) -> str:
    """Return a size of memory as an option, rounded up by less than a hundredth: "1537MiB"."""
    power = min(max(0, (size.bit_length() - 8) // 10), len(UNITS) - 1)
    return f"{-(-size // 1024**power)}{UNITS[power]}"


def freeing(request: Request) -> Iterator[Change]:
    """Yield changes without one of the options that forbid what needs less memory, the mildest first."""
    r = request
    if r.recompute == "none":
        yield Change({"recompute": AUTO})
    if r.compute_stream is False:
        yield Change({"compute_stream": AUTO})
    if r.duplex is True:
        yield Change({"duplex": False})
    if r.pin:
        yield Change({"pin": None})
    if r.search in BASELINES and r.search != ZERO:
        yield Change({"search": ZERO})
    if r.search != EXACT:
        yield Change({"search": EXACT})
    if r.objective != TIME:
        yield Change({"objective": TIME})
    yield from _stages(request)
    if r.mesh is not None and r.mesh.size > 1 and not isinstance(r.pipeline, int):
        yield Change({"mesh": None, "cluster": cluster_text(r.cluster)})


def _stages(request: Request) -> Iterator[Change]:
    """Yield changes of stages and micro-batches: of numbers that are fixed."""
    stages, micro, devices = request.pipeline, request.micro_batches, request.cluster.size
    if isinstance(stages, int):
        free = {"mesh": None, "cluster": cluster_text(request.cluster)}
        fixed = request.mesh is not None and (
            stages > 1 or is_of_all(request.mesh, request.cluster)
        )
        yield Change({"pipeline": AUTO, **(free if fixed else {})})
        if stages > 1 and not fixed and devices % (2 * stages) == 0:
            yield Change({"pipeline": 2 * stages})
    if micro is not None:
        yield Change({"micro_batches": None})
        for count in (2 * micro, 4 * micro):
            if batch_of(request) % count == 0:
                yield Change({"micro_batches": count})
    able = stages != 1 and request.search in SOLVERS and request.objective == TIME
    if able and request.parts == EQUAL and request.mesh is None and devices > 2:
        yield Change({"parts": ANY, **({} if stages == AUTO else {"pipeline": AUTO})})


def together(changes: list[Change]) -> Change | None:
    """Return all changes of unlike options as one, None if that is no more than one of them."""
    merged: dict[str, Any] = {}
    for change in changes:
        if not merged.keys() & change.options.keys():
            merged |= change.options
    most = max((len(change.options) for change in changes), default=0)
    return Change(merged) if len(merged) > most else None


def batch_of(request: Request) -> int:
    """Return the samples of a step: what dim 0 of all inputs has in common; 1 without inputs."""
    program = request.program
    shapes = [program.tensor[name].shape for name in program.inputs]
    return math.gcd(*(shape[0] for shape in shapes if shape)) or 1


def smaller_batches(request: Request) -> Iterator[Change]:
    """Yield halves of the batch, halves of these, and so on."""
    whole = left = batch_of(request)
    while left % 2 == 0:
        left //= 2
        yield Change({}, batch=(left, whole))


def more_devices(request: Request, given: Any) -> Iterator[Change]:
    """Yield clusters or meshes of two, four and eight times the devices; `given` is the user's cluster.

    There are more of them where parameters alone need more.
    """
    size, limit = request.cluster.size, request.limit_bytes or 0
    least = next(
        (t for t in _DOUBLES if parameter_bytes(request.program, size * t) <= limit), MOST_TIMES
    )
    for times in (least * 2**n for n in range(DOUBLINGS)):
        if size * times > MOST_DEVICES or times > MOST_TIMES:
            return
        if request.cluster.kinds:
            if isinstance(given, str) and "*" in given:
                parts = re.split(r"(\d+)(?=\s*\*)", given)  # the numbers of nodes, at odd places
                parts[1::2] = [str(int(number) * times) for number in parts[1::2]]
                free = {} if request.mesh is None else {"mesh": None}
                yield Change({**free, "cluster": "".join(parts)})
        elif request.mesh is not None:
            yield Change({"mesh": _larger(list(request.mesh.shape), times, request)})
        else:
            sizes = [level.size for level in request.cluster.levels]
            yield Change({"cluster": _larger(sizes, times, request)})


def _larger(sizes: list[int], times: int, request: Request) -> str:
    """Return sizes of the outermost axis times so many; one axis over several nodes becomes two."""
    if len(sizes) == 1 and len(request.profile.levels) > 1 and sizes[0] * times > NODE:
        sizes = [1, *sizes]
    return "x".join(map(str, (sizes[0] * times, *sizes[1:])))


def cluster_text(cluster: Cluster) -> str:
    """Return a cluster as an option."""
    return str(cluster) if cluster.kinds else "x".join(str(each.size) for each in cluster.levels)
