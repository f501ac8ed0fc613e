"""What a step of a pipeline consists of: the work of its stages, transfers, a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.schedules import SCHEDULES
from autoddl.perfmodel.resources import ResourceParts

COMPUTE, BOXING = "compute", "boxing"


@dataclass(frozen=True)
class StageWork:
    """What a stage does, as (stream, seconds) in turn; streams are "compute" and "boxing".

    `forward` and `backward` are of one micro-batch, `once` comes after the last backward pass:
    synchronisation of gradients, updates.
    """

    forward: ResourceParts
    backward: ResourceParts
    once: ResourceParts = ()


@dataclass(frozen=True)
class TransferWork:
    """A tensor of one micro-batch on its way between stages: a gradient if it goes to an earlier one."""

    source: int
    target: int
    seconds: float
    tensor: str = ""

    @property
    def kind(self) -> str:
        """Return which passes make and read it: "F" or "B"."""
        return "F" if self.source < self.target else "B"


@dataclass(frozen=True)
class PipelineStep:
    """A step of a pipeline.

    `schedule` is one of "gpipe", "1f1b", "interleaved", "credits". Interleaved has `chunks` stages per
    rank, stage s on rank s % ranks; else each stage has a rank of its own. Under credits a stage begins
    a forward pass while less than `credits[stage]` micro-batches are in flight, by default 2 · stages
    everywhere. `device_of` gives by rank the device that computes, if ranks share one. A stage that no
    transfer reaches waits for its neighbour.
    """

    stages: tuple[StageWork, ...]
    micro_batches: int
    transfers: tuple[TransferWork, ...] = ()
    schedule: str = "1f1b"
    chunks: int = 1
    credits: tuple[int, ...] | None = None
    device_of: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        stages = len(self.stages)
        if self.schedule not in SCHEDULES:
            raise AutoDDLError(
                f"pipeline: schedule {self.schedule!r}; allowed: {', '.join(SCHEDULES)}"
            )
        if stages == 0 or self.micro_batches < 1:
            raise AutoDDLError(
                f"pipeline of {stages} stages, {self.micro_batches} micro-batches; give one or more of "
                "each"
            )
        if (
            self.chunks < 1
            or stages % self.chunks
            or (self.chunks > 1) > (self.schedule == "interleaved")
        ):
            raise AutoDDLError(
                f"pipeline: {self.chunks} chunks per rank of {stages} stages, schedule "
                f"{self.schedule!r}; give a divisor of the stages, above 1 for 'interleaved' only"
            )
        for name, count in (("credits", stages), ("device_of", self.ranks)):
            values = getattr(self, name)
            if values is not None and (len(values) != count or min(values) < (name == "credits")):
                raise AutoDDLError(f"pipeline: {name} is {values}; give {count} numbers")
        for transfer in self.transfers:
            ends = {transfer.source, transfer.target}
            if len(ends) < 2 or not ends <= set(range(stages)) or not transfer.seconds >= 0:
                raise AutoDDLError(
                    f"pipeline: {transfer}; give two stages from 0 to {stages - 1} and seconds from 0 on"
                )
        for stage, work in enumerate(self.stages):
            for stream, seconds in work.forward + work.backward + work.once:
                if stream not in (COMPUTE, BOXING) or not seconds >= 0:
                    raise AutoDDLError(
                        f"pipeline: stage {stage} has {seconds} s on {stream!r}; give seconds from 0 on, "
                        f"on {COMPUTE!r} or {BOXING!r}"
                    )
            if not work.forward or not work.backward:
                raise AutoDDLError(
                    f"pipeline: stage {stage} lacks a forward or backward pass; give at least one part"
                )

    @property
    def ranks(self) -> int:
        """Return how many ranks, or groups of ranks with one stage's mesh each, there are."""
        return len(self.stages) // self.chunks

    @property
    def rank_of(self) -> tuple[int, ...]:
        """Return the rank of each stage."""
        return tuple(stage % self.ranks for stage in range(len(self.stages)))
