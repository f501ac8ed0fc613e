"""What plans consist of: parts with states on devices, what goes between them, costs, inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autoddl.engine.model import counted
from autoddl.json_files import Bytes, Seconds, Times
from autoddl.perfmodel.boxing_prices import GroupedGather
from autoddl.perfmodel.pipeline.pipeline_step import StageWork
from autoddl.sbp.cluster_kinds import text_of
from autoddl.sbp.layout import Layout, Path
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.shards import shard_slices
from autoddl.sbp.state import NdSbp


@dataclass(frozen=True)
class Transfer:
    """A tensor that goes from the devices of the part that makes it to those of another part.

    `path` are the states after boxings that come before, in the part that makes it; in the last one it
    is sent, without any in the one in which it is made. In the state `arrival` of the other part's mesh
    it arrives; None is for the same state on a mesh of the same shape, where every device sends its shard
    to the one at its place. It takes `seconds` for each micro-batch; None is for what goes once per step,
    or in plans made by hand.
    """

    tensor: str
    source: int
    target: int
    path: Path = ()
    seconds: Seconds | None = None
    arrival: NdSbp | None = None

    def sent(self, made: NdSbp) -> NdSbp:
        """Return the state in which it is sent, if it is made in `made`."""
        return self.path[-1] if self.path else made

    def arrived(self, made: NdSbp) -> NdSbp:
        """Return the state in which it arrives, if it is made in `made`."""
        return self.sent(made) if self.arrival is None else self.arrival


@dataclass(frozen=True)
class ModuleCost:
    """What a module takes of a step on each device, and the signature of its main op.

    `memory_bytes` are those of parameters, their states and gradients, and of inputs and what the
    backward pass reads, as they are made, of all micro-batches in flight.
    """

    module: str
    signature: str
    compute_s: Seconds
    communication_s: Seconds
    memory_bytes: Bytes


@dataclass(frozen=True)
class Part:
    """What a group of devices does: all of a step, or one stage of it.

    Its devices are a mesh on these `ranks`, which ascend; parts share none. `layout` has the states of
    what is made or kept here; where a tensor is one of the `arrivals` from other parts, its
    redistributions begin in the state in which it arrives. If the part is `recomputed` its backward pass
    makes activations again (activation checkpointing). Forward results of `in_flight` micro-batches are
    kept at once: with one-forward-one-backward the number of stages from this one on. `work` are the
    seconds of a micro-batch by pass, `rows` what each module takes of a step, computed when they are
    first read, `memory_bytes` all that the device needs that needs most. `kinds` are those of its
    devices, where these are not all alike; where they have shares, too, `device_kinds` has that of each.
    Gathers over shares are padded, but for those that are `grouped`: a broadcast from each place
    (perfmodel.boxing_prices).
    """

    mesh: Mesh
    layout: Layout
    ranks: tuple[int, ...]
    arrivals: tuple[Transfer, ...] = ()
    recomputed: bool = False
    in_flight: int = 1
    work: StageWork | None = None
    memory_bytes: int = 0
    rows: Sequence[ModuleCost] = ()
    kinds: tuple[str, ...] = ()
    device_kinds: tuple[str, ...] = ()
    grouped: tuple[GroupedGather, ...] = ()

    @property
    def cluster(self) -> Cluster:
        """Return the devices, with the kind of each node where these are told one by one."""
        found = self.mesh.cluster
        return replace(found, kinds=self.device_kinds[:: found.unit_sizes[0]])

    @property
    def devices_text(self) -> str:
        """Return the mesh, with the kinds where these are told one by one: "2:1/3 on 1*slow + 1*fast"."""
        kinds = f" on {text_of(self.device_kinds, ())}" if self.device_kinds else ""
        return f"{self.mesh}{kinds}"

    def place(self, rank: int) -> int:
        """Return which of its devices a rank is; of a rank of another part, a place that there is."""
        return self.ranks.index(rank) if rank in self.ranks else rank % len(self.ranks)


@dataclass(frozen=True)
class Estimate:
    """What one assignment costs per step and device, under the plan's profile.

    `overlap_s` are the seconds in which ops and boxings go on at once (perfmodel.timeline), and those
    that collectives spare which share a launch.
    `memory_bytes` is all that the engine allocates on the device that has least to spare, which has
    `room` times as much as the smallest; `uncertainty_s` is how far the step time may be off by what the
    profile's own fits and the model miss. With stages compute and communication are those of the busiest
    stage, which waits `idle_s` for others.
    """

    name: str
    compute_s: Seconds
    communication_s: Seconds
    memory_bytes: Bytes
    uncertainty_s: Seconds = 0.0
    overlap_s: Seconds = 0.0
    idle_s: Seconds = 0.0
    room: Times = 1.0

    @property
    def step_s(self) -> float:
        """Return the seconds of a step: compute plus communication, less what overlaps, and waiting."""
        return self.compute_s + self.communication_s - self.overlap_s + self.idle_s

    @property
    def counted_bytes(self) -> int:
        """Return what its memory counts against that of the smallest device."""
        return counted(self.memory_bytes, self.room)


@dataclass(frozen=True)
class InputPlan:
    """One input of the graph: its logical shape and its state in the part that reads it."""

    name: str
    shape: tuple[int, ...]
    state: NdSbp
    part: Part = field(repr=False)

    def local_slice(self, rank: int) -> tuple[slice, ...]:
        """Return which part of the logical batch a rank needs, one slice per dim.

        What a rank of another part gives is not looked at; it has the shape of some rank's.
        """
        mesh = self.part.mesh
        return shard_slices(self.shape, self.state, mesh.cuts, mesh.coords(self.part.place(rank)))
