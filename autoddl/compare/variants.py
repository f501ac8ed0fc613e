"""What if links, devices, memory, mesh or batch were others: a plan for each variant of a request.

Of a base (mesh 4x8, profile h100, batch 256) "links of node 2x" is the same where β of the links of level
node is halved, "batch 512" the same for the program of that batch, made from the base's.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from autoddl.calls import uncollected
from autoddl.errors import AutoDDLError, InfeasibleError, shown
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.scaled_profile import scaled
from autoddl.plan.value import PlanValue
from autoddl.planner import choose
from autoddl.planner.memory_limits import parse_bytes
from autoddl.planner.plan_options import Options
from autoddl.planner.request import Request
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import batch_of, with_batch
from autoddl.units import bytes_text

BUDGET_S = 5.0  # of each variant
MOST_VARIANTS = 200
BASE = "base"
LATENCY = ".latency"
NO_ROOM = "does not fit"

Read = Callable[[Program, Options], Request]
"""Reads options against a program, as `optimize` does."""
Tell = Callable[[str], None]
"""Is told what is planned now."""


@dataclass(frozen=True)
class Variant:
    """A variant of a request with its plan; without one the `note` says why.

    `samples` are those of a step, None where the program does not tell; `limit_bytes` the memory of a
    device.
    """

    name: str
    devices: int
    samples: int | None
    limit_bytes: int | None
    step_s: float | None = None
    memory_bytes: int | None = None
    gap: float | None = None
    note: str = ""
    plan: PlanValue | None = field(default=None, repr=False, compare=False)

    @property
    def samples_per_s(self) -> float | None:
        """Return the throughput of all devices."""
        if self.step_s is None or self.samples is None:
            return None
        return self.samples / self.step_s if self.step_s else math.inf

    @property
    def device_s_per_sample(self) -> float | None:
        """Return how long one device is held for each sample: what it costs."""
        if self.step_s is None or self.samples is None:
            return None
        return self.devices * self.step_s / self.samples

    def to_json(self) -> dict[str, Any]:
        """Return all but the plan."""
        names = [each.name for each in fields(self) if each.name != "plan"]
        return {name: getattr(self, name) for name in names}


def planned(request: Request, name: str) -> Variant:
    """Return a request's best plan as a variant; without one, if nothing fits into memory."""
    samples, limit = batch_of(request.program), request.limit_bytes
    variant = Variant(name, request.cluster.size, samples, limit)
    try:
        with uncollected():
            (plan,) = choose.best(request, 1)
    except InfeasibleError as error:
        return replace(variant, note=f"{NO_ROOM}: {error}")
    found = plan.estimate
    return replace(
        variant, devices=plan.devices, step_s=found.step_s, memory_bytes=found.memory_bytes,
        gap=plan.search.gap, plan=plan,
    )  # fmt: skip


@dataclass(frozen=True)
class WhatIf:
    """Variants beside the base, which comes first; `about` says what the base is."""

    about: str
    variants: tuple[Variant, ...]

    def change(self, variant: Variant) -> float | None:
        """Return by which share of the base's step another one is longer (0.1: 10 %)."""
        base_s = self.variants[0].step_s
        return variant.step_s / base_s - 1 if base_s and variant.step_s is not None else None

    def to_json(self) -> list[dict[str, Any]]:
        """Return the variants as plain values."""
        return [each.to_json() for each in self.variants]


@dataclass(frozen=True)
class _Change:
    """A value of one axis of variants: of "links", "device", "memory", "mesh" or "batch"."""

    axis: str
    name: str
    value: Any


@dataclass(frozen=True)
class _Asker:
    """A base request, from which those of variants are made; what they share is made once."""

    program: Program
    options: Options

    @cached_property
    def _batches(self) -> dict[int, Program]:
        return {}

    @cached_property
    def profile(self) -> Profile:
        """Return the base's profile."""
        return profiles.load(self.options.profile, device_type=self.program.device)

    def request(self, changes: Sequence[_Change], read: Read) -> Request:
        """Return the request of a variant."""
        values = {each.axis: each.value for each in changes}
        options, program = replace(self.options, profile=self.profile), self.program
        links, device = values.get("links", ({}, {})), values.get("device", 1.0)
        if "links" in values or "device" in values:
            other = scaled(self.profile, bandwidth=links[0], latency=links[1], device=device)
            options = replace(options, profile=other)
        if "memory" in values:
            options = replace(options, memory=values["memory"])
        if "mesh" in values:
            options = replace(options, mesh=values["mesh"])
        if "batch" in values:
            program = self._batch(values["batch"])
        return read(program, options)

    def _batch(self, batch: int) -> Program:
        if batch not in self._batches:
            self._batches[batch] = with_batch(self.program, batch, allow=self.options.allow)
        return self._batches[batch]


def what_if(
    program: Program, options: Options, read: Read, axes: Mapping[str, Any], *,
    product: bool = False, tell: Tell = lambda _: None,
) -> WhatIf:  # fmt: skip
    """Return the base and its variants, each planned by itself.

    `axes` has the values of "links", "device", "memory", "mesh" and "batch" that are tried, each alone,
    or in all combinations that the `product` of axes has. A variant without a plan is a row, too.

    Raises:
        AutoDDLError: an axis has a value that can't be, before anything is planned; or the base has no
            plan, and not for its memory.
    """
    by_axis = [own for axis in _AXES if (own := _changes(axis, axes.get(axis)))]
    if not isinstance(product, bool):
        raise AutoDDLError(f"product: got {shown(product, 100)}; allowed are True and False")
    cases = _cases(by_axis, product)
    asker = _Asker(program, options)
    requests = [(BASE, read(program, options))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the base has told them
        for case in cases:
            name = ", ".join(change.name for change in case)
            requests.append((name, asker.request(case, read)))
    found = list[Variant]()
    for number, (name, request) in enumerate(requests, 1):
        tell(f"{name} ({number} of {len(requests)})")
        found.append(planned(request, name) if number == 1 else planned_or_why(request, name))
    return WhatIf(about(requests[0][1]), tuple(found))


def about(request: Request) -> str:
    """Return what a request is for: "mesh 4x8, profile h100, 80.0 GiB per device, batch 256"."""
    where = f"cluster {request.cluster}" if request.mesh is None else f"mesh {request.mesh}"
    samples, limit = batch_of(request.program), request.limit_bytes
    room = [] if limit is None else [f"{bytes_text(limit)} per device"]
    batch = [] if samples is None else [f"batch {samples}"]
    return ", ".join([where, f"profile {request.profile.name}", *room, *batch])


def planned_or_why(request: Request, name: str) -> Variant:
    """Return a variant, with the reason if it can't be planned: others are not lost for that."""
    try:
        return planned(request, name)
    except AutoDDLError as error:
        return Variant(
            name, request.cluster.size, batch_of(request.program), request.limit_bytes,
            note=str(error),
        )  # fmt: skip


def _cases(by_axis: Sequence[Sequence[_Change]], product: bool) -> list[tuple[_Change, ...]]:
    """Return the changes of each variant; of a product all but the base, which changes nothing."""
    choices = [(None, *changes) for changes in by_axis]
    count = math.prod(map(len, choices)) if product else 1 + sum(map(len, by_axis))
    if not 2 <= count <= MOST_VARIANTS:
        raise AutoDDLError(
            f"what if: got {count - 1} variants; allowed are 1 to {MOST_VARIANTS - 1}, of "
            f"{', '.join(_AXES)}"
        )
    if not product:
        return [(change,) for changes in by_axis for change in changes]
    combined: Iterable[Sequence[_Change | None]] = itertools.product(*choices)
    found = [tuple(change for change in case if change is not None) for case in combined]
    return [case for case in found if case]


def _changes(axis: str, given: Any) -> list[_Change]:
    """Return the changes of an axis: of a value, or of several in a list."""
    if given is None:
        return []
    values = given if isinstance(given, list | tuple) else [given]
    named = [(_AXES[axis](value), value) for value in values]
    return [_Change(axis, name, _value(axis, value)) for name, value in named]


def _value(axis: str, value: Any) -> Any:
    return _links(value) if axis == "links" else value


def _links(value: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Return the factors of bandwidths and of latencies, by level."""
    if not isinstance(value, Mapping) or not value or not all(isinstance(k, str) for k in value):
        raise AutoDDLError(
            f"links: got {shown(value, 100)}; allowed are factors by level such as {{'node': 2.0}}, or "
            "{'node.latency': 0.5}"
        )
    slow = {k.removesuffix(LATENCY): f for k, f in value.items() if k.endswith(LATENCY)}
    return {k: f for k, f in value.items() if not k.endswith(LATENCY)}, slow


def _links_name(value: Any) -> str:
    fast, slow = _links(value)
    told = [f"links of {level} {_times(factor)}" for level, factor in fast.items()]
    return ", ".join(told + [f"latency of {level} {_times(f)}" for level, f in slow.items()])


def _times(factor: Any) -> str:
    number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not number:
        raise AutoDDLError(f"factor: got {shown(factor, 100)}; allowed are numbers such as 2.0")
    return f"{factor:g}x"


def _memory_name(value: Any) -> str:
    return f"memory {bytes_text(parse_bytes(value))}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


_AXES: Mapping[str, Callable[[Any], str]] = {
    "links": _links_name,
    "device": lambda value: f"devices {_times(value)}",
    "memory": _memory_name,
    "mesh": lambda value: f"mesh {_word(value)}",
    "batch": lambda value: f"batch {_word(value)}",
}
"""What may vary, with what a value of it is called."""
