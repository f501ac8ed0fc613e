"""The smallest cluster, or the largest batch, whose best plan keeps to a time and to memory.

Clusters are tried from the smallest on until one does, so no smaller one of the list was passed over.
Batches are doubled, then bisected: that supposes that a larger batch takes longer, which plans mostly do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoddl.compare.variants import Read, Tell, Variant, planned_or_why
from autoddl.errors import AutoDDLError, shown
from autoddl.planner.plan_options import Options
from autoddl.planner.request import Request
from autoddl.sbp.mesh import MOST_DEVICES
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import MOST_BATCH, batch_of, with_batch
from autoddl.units import SECONDS, quantity, seconds_text

NODE_SIZE, MOST = 8, 64  # devices
LARGEST = "largest"
FINE = 16  # a batch is found to this part of itself, or to one sample for each device
DOUBLINGS = 16  # of a batch; then it is large enough


@dataclass(frozen=True)
class Target:
    """What a step has to keep to: at most so many seconds, at least so many samples a second."""

    step_s: float | None = None
    samples_per_s: float | None = None

    def met(self, variant: Variant) -> bool:
        """Tell whether a variant has a plan that does."""
        if variant.step_s is None:
            return False
        rate = variant.samples_per_s
        late = self.step_s is not None and variant.step_s > self.step_s
        slow = self.samples_per_s is not None and (rate is None or rate < self.samples_per_s)
        return not (late or slow)

    def __str__(self) -> str:
        told = [] if self.step_s is None else [f"a step within {seconds_text(self.step_s)}"]
        if self.samples_per_s is not None:
            told.append(f"{self.samples_per_s:g} samples/s or more")
        return " and ".join([*told, "memory"])


@dataclass(frozen=True)
class Fit:
    """All that was tried, in that order, and the best of it that met the target, if any did.

    `what` was looked for: the smallest cluster, or the largest batch. The `note` says what was not tried.
    """

    what: str
    target: Target
    tried: tuple[Variant, ...]
    best: Variant | None
    note: str

    def to_json(self) -> dict[str, Any]:
        """Return what was tried as plain values, and the name of the best."""
        best = None if self.best is None else self.best.name
        return {"best": best, "tried": [each.to_json() for each in self.tried], "note": self.note}


def target_of(step: Any, throughput: Any) -> Target:
    """Return a target of a step such as "100ms" or 0.1 seconds, and of samples per second.

    Raises:
        AutoDDLError: one of them is no number above 0.
    """
    step_s = None if step is None else quantity(step, SECONDS)
    if step_s is not None and not 0 < step_s < math.inf:
        raise AutoDDLError(
            f"step: got {shown(step, 100)}; allowed are times > 0 such as '100ms', '1.5s' or 0.1 "
            "(seconds)"
        )
    rate = None if throughput is None else quantity(throughput, {"": 1})
    if rate is not None and not 0 < rate < math.inf:
        raise AutoDDLError(f"throughput: got {shown(throughput, 100)}; allowed are samples/s > 0")
    return Target(step_s, rate)


def clusters_of(node_size: Any, most: Any) -> list[tuple[int, int]]:
    """Return clusters of 1, 2, 4, … devices up to `most`, as nodes x devices; nodes have `node_size`.

    Raises:
        AutoDDLError: they are no numbers of devices.
    """
    for name, value in (("node_size", node_size), ("most", most)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_DEVICES:
            raise AutoDDLError(
                f"{name}: got {shown(value, 100)}; allowed are 1 to {MOST_DEVICES:,} devices"
            )
    sizes = [1 << n for n in range(most.bit_length()) if 1 << n < node_size]
    nodes = [1 << n for n in range((most // node_size).bit_length())]
    whole = [(n, node_size) for n in nodes if n * node_size <= most]
    return [(1, size) for size in sizes if size <= most] + whole


def smallest_cluster(
    program: Program, options: Options, read: Read, target: Target, clusters: Sequence[Any], *,
    tell: Tell = lambda _: None,
) -> Fit:  # fmt: skip
    """Return the first cluster, by its number of devices, with a plan that meets the target.

    Raises:
        AutoDDLError: a cluster is none, or a mesh is given.
    """
    if options.mesh is not None or options.cluster is not None:
        raise AutoDDLError(
            "fit: got a mesh or cluster, of which the smallest is looked for; leave it out, or ask for "
            "batch='largest' on it"
        )
    if target == Target():
        raise AutoDDLError("fit: no target; give step='100ms' or a throughput in samples/s")
    if target.samples_per_s is not None and batch_of(program) is None:
        raise AutoDDLError("throughput: the program does not tell its batch; give step='100ms'")
    if isinstance(clusters, str) or not clusters:
        raise AutoDDLError(
            f"clusters: got {shown(clusters, 100)}; allowed is a list such as ['1x4', '2x8']"
        )
    requests = [read(program, replace(options, cluster=each)) for each in clusters]
    requests.sort(key=lambda request: request.cluster.size)
    tried, best = [], None
    for request in requests:
        name = f"cluster {_sizes(request)}"
        tell(name)
        tried.append(planned_or_why(request, name))
        if target.met(tried[-1]):
            best = tried[-1]
            break
    rest = len(requests) - len(tried)
    note = f"{rest} larger ones were not tried" if rest else "these are all that were asked for"
    return Fit("the smallest cluster", target, tuple(tried), best, note)


def largest_batch(
    program: Program, options: Options, read: Read, target: Target, *,
    tell: Tell = lambda _: None,
) -> Fit:  # fmt: skip
    """Return the largest batch on a mesh with a plan that meets the target.

    Batches have a multiple of the devices' number of samples.

    Raises:
        AutoDDLError: there is no mesh or cluster, or the program of another batch can't be made.
    """
    unit, now, tried = read(program, options).cluster.size, batch_of(program), list[Variant]()
    begin = max(1, (now or 1) // unit)
    with_batch(program, 2 * begin * unit, allow=options.allow)  # or it says why there is none

    def meets(count: int) -> bool:
        samples = count * unit
        name = f"batch {samples}"
        tell(name)

        other = with_batch(program, samples, allow=options.allow)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first reading has told them
            tried.append(planned_or_why(read(other, options), name))
        return target.met(tried[-1])

    found, over = _bracket(begin, meets, MOST_BATCH // unit)
    while over is not None and over - found > max(1, found // FINE):
        middle = (found + over) // 2
        found, over = (middle, over) if meets(middle) else (found, middle)
    best = next((each for each in tried if each.samples == found * unit), None)
    note = f"batches are multiples of {unit}, found by bisection, to {1 / FINE:.0%}"
    if over is None:
        note = f"no batch up to {found * unit} was too large; larger ones were not tried"
    return Fit("the largest batch", target, tuple(tried), best, note)


def _bracket(begin: int, meets: Callable[[int], bool], most: int) -> tuple[int, int | None]:
    """Return a number that meets something and a larger one that does not, None where none is known.

    0 meets it; larger numbers than `most` are not tried.
    """
    if not meets(begin):
        return 0, begin
    for _ in range(DOUBLINGS):
        if 2 * begin > most:
            break
        if not meets(2 * begin):
            return begin, 2 * begin
        begin *= 2
    return begin, None


def _sizes(request: Request) -> str:
    """Return the sizes of a cluster: "2x8"."""
    return "x".join(str(level.size) for level in request.cluster.levels)
