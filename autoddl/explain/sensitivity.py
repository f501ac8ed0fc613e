"""Which change of a link, of the devices or of memory makes another known plan the best.

Known are the plan and the baselines. Each keeps its states, redistributions and the order of its ops, and
is priced again where all that one resource does takes 1/f as long. With f = 1.7 on the links of level
node another one may be the fastest: from there on a new search would choose something else, too, and
maybe earlier, since it looks at more than these.

What takes 10 ms on links and 5 ms elsewhere, beside what takes 2 ms and 9 ms: from f = 8/4 = 2 on the
first is the faster one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from msgspec.structs import replace

from autoddl.explain.reopened import Reopened
from autoddl.explain.waits import COMPUTE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device, Kernel
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.layout import Layout
from autoddl.search.baselines import assignments

PLAN = "plan"
GRID = (2.0, 4.0, 8.0, 16.0)  # factors that are tried, and their reciprocals
HALVINGS = 7  # of an octave: the factor is right within 0.6 %
AHEAD = 1e-6  # relative: by less no step is the shorter one

Steps = Callable[[float, Sequence[str]], Mapping[str, float]]
"""Return the steps of some plans in seconds, where a resource is so many times as fast."""


@dataclass(frozen=True)
class Flip:
    """From a factor on `best` is the fastest known plan; its step there, and that of the plan."""

    factor: float
    best: str
    best_s: float
    plan_s: float


@dataclass(frozen=True)
class Sensitivity:
    """Of one resource the next factors below and above 1 where the plan is no more the best, if any."""

    resource: str
    slower: Flip | None
    faster: Flip | None


@dataclass(frozen=True)
class MemoryFlip:
    """With a limit of at least (`more`) or below so many bytes `best`, None: no known plan, is best."""

    limit_bytes: int
    more: bool
    best: str | None
    best_s: float | None = None


def known_plans(found: Reopened) -> dict[str, Assigned]:
    """Return the plan and the baselines of its problem."""
    rivals = assignments(found.problem)
    return {PLAN: found.chosen, **{n: Assigned(found.problem, a) for n, a in rivals.items()}}


def sensitivities(found: Reopened, known: Mapping[str, Assigned]) -> tuple[Sensitivity, ...]:
    """Return what happens as devices, or the links of each level of the mesh, become faster or slower.

    Plans that do not fit into memory count for nothing.
    """
    limit, profile = found.request.limit_bytes, found.problem.profile
    layouts = {n: one.layout for n, one in known.items() if n == PLAN or _fits(one, limit)}
    levels = {axis.level for axis in found.problem.mesh.axes if axis.size > 1}
    names = [level for level in profile.levels if level in levels]
    names = [level for level in names if any(link.level == level for link in profile.links)]
    resources = {COMPUTE: partial(with_devices, profile)}
    for level in names:
        resources[f"links of level {level}"] = partial(with_links, profile, level)
    return tuple(
        _sensitivity(name, partial(_steps, found, layouts, scaled))
        for name, scaled in resources.items()
    )


def memory_flips(found: Reopened, known: Mapping[str, Assigned]) -> tuple[MemoryFlip, ...]:
    """Return what another limit of memory changes: below what the plan needs, and above the limit."""
    limit, others = found.request.limit_bytes, dict(known)
    plan = others.pop(PLAN)
    smaller = {n: o for n, o in others.items() if o.memory_bytes < plan.memory_bytes}
    least = min(smaller, key=lambda n: smaller[n].step_s, default=None)
    flips = [
        MemoryFlip(
            plan.memory_bytes, False, least, None if least is None else smaller[least].step_s
        )
    ]
    faster = {
        n: o for n, o in others.items()
        if not _fits(o, limit) and o.step_s < plan.step_s * (1 - AHEAD)
    }  # fmt: skip
    if faster:
        first = min(faster, key=lambda n: faster[n].memory_bytes)
        flips.append(MemoryFlip(faster[first].memory_bytes, True, first, faster[first].step_s))
    return tuple(flips)


def with_links(profile: Profile, level: str, factor: float) -> Profile:
    """Return a profile in which collectives over a level's links take 1/factor as long, once launched."""
    links = tuple(
        replace(
            link, alpha_s=link.alpha_s / factor, beta_s_per_byte=link.beta_s_per_byte / factor,
            alpha_interval_s=None, beta_interval_s_per_byte=None,
        )
        if link.level == level else link
        for link in profile.links
    )  # fmt: skip
    overhead = {n: s / factor if n == level else s for n, s in profile.overhead.items()}
    return replace(profile, links=links, overhead=overhead)


def with_devices(profile: Profile, factor: float) -> Profile:
    """Return a profile in which all ops, and launches of collectives, take 1/factor as long."""
    devices = {kind: _faster(device, factor) for kind, device in profile.devices.items()}
    return replace(profile, devices=devices)


def _faster(device: Device, factor: float) -> Device:
    return replace(
        device, op_overhead_s=device.op_overhead_s / factor,
        memory_bytes_per_s=device.memory_bytes_per_s * factor,
        peak_flops=_times(device.peak_flops, factor),
        kernels={name: _faster_kernel(kernel, factor) for name, kernel in device.kernels.items()},
    )  # fmt: skip


def _faster_kernel(kernel: Kernel, factor: float) -> Kernel:
    return replace(
        kernel, overhead_s=kernel.overhead_s / factor, bytes_per_s=kernel.bytes_per_s * factor,
        flops_per_s=_times(kernel.flops_per_s, factor),
    )  # fmt: skip


def _times(rates: Mapping[str, float], factor: float) -> dict[str, float]:
    return {dtype: rate * factor for dtype, rate in rates.items()}


def _fits(one: Assigned, limit: int | None) -> bool:
    return limit is None or one.memory_bytes <= limit


def _steps(
    found: Reopened, layouts: Mapping[str, Layout], scaled: Callable[[float], Profile],
    factor: float, names: Sequence[str] = (),
) -> Mapping[str, float]:  # fmt: skip
    """Return the steps of some plans, by default all, where a resource is so many times as fast."""
    problem, of = found.problem, found.problem.setting
    prices = StepPrices(of.program, of.mesh, scaled(factor), of.queue, of.kinds)
    return {
        name: StepTimeline(
            prices, layouts[name], overlaps=not problem.compute_stream
        ).prediction.step_s
        for name in names or layouts
    }


def _sensitivity(resource: str, steps: Steps) -> Sensitivity:
    sides = [_flip(steps, [f**power for f in (1.0, *GRID)]) for power in (-1, 1)]
    return Sensitivity(resource, *sides)


def _flip(steps: Steps, factors: Sequence[float]) -> Flip | None:
    """Return where the plan is first overtaken on the way along some factors, found by bisection."""
    for low, high in pairwise(factors):
        at = steps(high, ())
        ahead = [name for name, step_s in at.items() if _is_ahead(step_s, at[PLAN])]
        if not ahead:
            continue
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            now = steps(middle, (PLAN, *ahead))
            if any(_is_ahead(now[name], now[PLAN]) for name in ahead):
                high, at = middle, now
            else:
                low = middle
        best = min(at, key=at.__getitem__)
        return Flip(high, best, at[best], at[PLAN])
    return None


def _is_ahead(step_s: float, plan_s: float) -> bool:
    return step_s < plan_s * (1 - AHEAD)
