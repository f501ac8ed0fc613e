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

    `schedule` is one of "gpipe", "1f1b", "credits". Each stage has a rank, or a group of ranks, of its
    own. Under credits it begins a forward pass while less than `credits[stage]` micro-batches are in
    flight, by default 2 · stages everywhere. `device_of` gives by stage the device that computes, if
    stages share one. Where no transfer goes forward, or none back, stages wait for their neighbours; else
    one that none reaches waits for nothing. With `rendezvous` a message occupies both stages, and so
    belongs to their orders. These are the schedule's, or `orders` of rendezvous (step_tasks.py).
    """

    stages: tuple[StageWork, ...]
    micro_batches: int
    transfers: tuple[TransferWork, ...] = ()
    schedule: str = "1f1b"
    credits: tuple[int, ...] | None = None
    device_of: tuple[int, ...] | None = None
    rendezvous: bool = False
    orders: tuple[str, ...] = ()

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
        for name in ("credits", "device_of"):
            values = getattr(self, name)
            if values is not None and (len(values) != stages or min(values) < (name == "credits")):
                raise AutoDDLError(f"pipeline: {name} is {values}; give {stages} numbers")
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
