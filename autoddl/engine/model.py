"""What planning knows of an engine: one frozen value, `EngineModel`.

Search, planner, plan and perfmodel are given one and import no engine. To add an engine, build a value
in `autoddl.engine.<name>.model`; it needs nothing of the engine itself, which may not be installed:

    limits        what it executes of what the rules (sbp.rules) call right
    streams       how it may run redistributions, the usual way first, and which boxings run there
    collectives   by type of device the queue of those that run beside the computation; none: each
                  goes by itself as soon as its links are free
    schedule      in which order stages of a pipeline run their passes (perfmodel.pipeline.schedules)
    views         op types whose result lies in the memory of their input
    memory        what it allocates for the layouts of a program, on the device that needs most
    stage_memory  the same for a stage of a pipeline, and `joins_stages` whether it lowers all at once
    crosses       in which states a tensor goes between stages on unlike meshes
    masks_alike   whether all dropouts of one shape, dtype and rate have the same mask in a step

If one refuses a partial sum of dy for "abs_grad", which is right, its `limits.refused["abs_grad"]` has
the label "P dy_0". `whole_space()` makes the space in which papers count: plans there can be studied,
not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.shares import Cut, Cuts
from autoddl.sbp.state import NdSbp


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device. Every part counts what is in memory when the step needs most.

    `parameters` includes the model's buffers (running statistics); `activations_peak` also inputs and
    the gradients of activations; `buffers` are copies that redistributions make, workspaces, outputs,
    and gaps between what overlaps in memory. `alive` names what is in memory then, with its bytes,
    largest first. Where devices have unlike memory this one has `room` times that of the smallest.
    """

    parameters: int
    gradients: int
    optimizer_states: int
    activations_peak: int
    buffers: int
    alive: tuple[tuple[str, int], ...] = ()
    room: float = 1.0

    @property
    def total(self) -> int:
        variables = self.parameters + self.gradients + self.optimizer_states
        return variables + self.activations_peak + self.buffers

    @property
    def counted(self) -> int:
        """Return what counts against the memory of the smallest device."""
        return counted(self.total, self.room)


def counted(size_bytes: int, room: float) -> int:
    """Return what bytes on a device of `room` times as much memory count on the smallest one."""
    return size_bytes if room == 1.0 else math.ceil(size_bytes / room)


@dataclass(frozen=True)
class MemoryCourse:
    """The bytes in memory while each task of a step runs, by part, in the order of the engine.

    `parts` have the names of the fields of MemoryEstimate; buffers are without the gaps between what
    overlaps. `backward` is the number of tasks before the first one of the backward pass.
    """

    parts: Mapping[str, tuple[int, ...]]
    backward: int

    @property
    def total(self) -> tuple[int, ...]:
        """Return the bytes of all parts, task by task."""
        return tuple(map(sum, zip(*self.parts.values(), strict=True)))


class StepMemory(Protocol):
    """The memory of the layouts of one program on one mesh, on the device that needs most."""

    def estimate(self, layout: Layout, *, compute_stream: bool) -> MemoryEstimate:
        """Return what a step takes in which boxings are ops of the compute stream, or are not."""

    def course(self, layout: Layout, *, compute_stream: bool) -> MemoryCourse:
        """Return what is in memory while each task runs, on the same device."""

    def never_reused_bytes(self, layout: Layout) -> int:
        """Return what no other buffer ever uses, on streams of their own: a bound, in little time."""


class StageMemory(Protocol):
    """The memory of a stage of a pipeline, on the device that needs most."""

    def __call__(
        self, cuts: Cuts, stage: Layout, *, micro_batches: int, in_flight: int,
        recompute: bool, joined: bool,
    ) -> MemoryEstimate:  # fmt: skip
        """Return what the layout of a stage takes, as a program of its own on a mesh of these cuts.

        Of `in_flight` micro-batches the forward pass is done and the backward pass is not; with
        `recompute` that makes all forward results again. `joined` is what `joins_stages` tells.
        """


class StreamUse(NamedTuple):
    """A way to run redistributions, for a whole plan: beside the computation or in one queue with it."""

    name: str
    compute_stream: bool
    """Redistributions are ops of the compute stream: less memory, and nothing overlaps."""
    devices: tuple[str, ...]
    """Types of devices on which plans of one micro-batch can run so."""
    accumulating: tuple[str, ...]
    """Types of devices on which plans of several micro-batches run so."""
    axes: int | None = None
    """Most mesh axes of more than one device; None: any number."""
    stages: bool = True
    """Whether plans of several stages and one micro-batch can run so."""
    boxes: Callable[[NdSbp, NdSbp, tuple[int, ...]], bool] | None = None
    """Whether the boxing from one state to another runs so on a mesh of these sizes; None: all do."""

    def runs_for(self, device: str, stages: int = 1, micro_batches: int = 1) -> bool:
        """Tell whether plans of so many stages (0: any number) can run so on a type of device."""
        if micro_batches > 1:
            return device in self.accumulating
        return device in self.devices and (self.stages or stages == 1)

    def runs_on(self, mesh: Mesh) -> bool:
        """Tell whether a mesh has not too many axes, and on the compute stream no shares."""
        few = self.axes is None or sum(n > 1 for n in mesh.shape) <= self.axes
        return few and (mesh.cuts == mesh.shape or not self.compute_stream)


@dataclass(frozen=True)
class CollectiveQueue:
    """Collectives that go one after the other, in one order for all devices, and in part together.

    One that is ready waits for all before it in the order. Neighbours of a type that may be `fused`, over
    the same groups of devices, none of which waits for another, are one launch: at most `max_ops` of
    them, and in all at most `threshold_mb` MiB, where each counts as a multiple of `alignment` bytes.
    """

    threshold_mb: int
    max_ops: int
    fused: tuple[str, ...]
    alignment: int

    @property
    def threshold_bytes(self) -> int:
        """Return the most bytes of a launch of several."""
        return self.threshold_mb << 20


class Limits(NamedTuple):
    """What an engine can execute of what is right."""

    axes: int | None
    """Most axes of a mesh that the planner chooses by itself; None: any number."""
    any_order: bool
    """Whether axes may cut one dim in another order than the mesh's."""
    one_axis: frozenset[str]
    """Types of ops that run on meshes of one axis alone."""
    refused: Mapping[str, frozenset[str]]
    """By op type the labels of right signatures that the engine refuses (registry.labelled)."""
    writes_once: frozenset[str] = frozenset()
    """Types of devices on which no op may write to a variable in every micro-batch."""
    shares: bool = False
    """Whether axes may have shares: unlike parts of a cut for unlike devices."""
    clips_stages: bool = True
    """Whether gradients of several stages may be clipped by a norm, which is of all of them."""
    strides: bool = False
    """Whether cuts may have strides (sbp.state)."""


@dataclass(frozen=True, eq=False)
class EngineModel:
    """An engine as planning sees it; the module's text says what each field is."""

    name: str | None
    """How users and files call it; None: no engine, plans are for the whole space."""
    title: str
    """Its name in messages."""
    limits: Limits
    streams: tuple[StreamUse, ...]
    schedule: str
    views: frozenset[str] = field(repr=False)
    memory: Callable[[Program, tuple[Cut, ...]], StepMemory] = field(repr=False)
    stage_memory: StageMemory = field(repr=False)
    joins_stages: Callable[[Sequence[int], Program], bool] = field(repr=False)
    """Of stages on so many devices each; what a stage takes may depend on it."""
    crosses: Callable[[NdSbp, Sequence[int]], bool] = field(repr=False)
    """Whether a tensor in this state on such a mesh goes to another mesh without being made whole."""
    masks_alike: bool = False
    rendezvous: bool = False
    """Whether a message between stages blocks both of them; then every task of a stage has its turn."""
    collectives: Mapping[str, CollectiveQueue] = field(default_factory=dict)
    runs_graphs: bool = True
    """Whether users' graphs run under its plans; else scripts are generated from them."""

    def whole_space(self) -> EngineModel:
        """Return the same engine without limits, under no name: all that is right may be planned.

        Papers price each collective by itself, so there is no queue.
        """
        limits = self.limits._replace(
            any_order=True,
            one_axis=frozenset(),
            refused={},
            writes_once=frozenset(),
            shares=True,
            strides=True,
        )
        return replace(self, name=None, limits=limits, collectives={})
