"""The memory of a step where places of a mesh have unlike portions of cuts, and devices unlike memory.

It is that of the place which has least to spare. With the shares 3/1 a tensor of 64 MB takes 48 MB of
one device and 16 MB of the other: of 80 and 16 GB it is the second that has less room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autoddl.engine.model import EngineModel, MemoryCourse, MemoryEstimate, StepMemory
from autoddl.perfmodel.places import MeshPlace
from autoddl.sbp.layout import Layout
from autoddl.sbp.program import Program


class PlacedMemory:
    """See StepMemory; of the place that has least to spare."""

    def __init__(self, engine: EngineModel, program: Program, places: Sequence[MeshPlace]) -> None:
        self._of = [(engine.memory(program, place.cuts), place.room) for place in places]

    def estimate(self, layout: Layout, *, compute_stream: bool) -> MemoryEstimate:
        return self._tightest(layout, compute_stream=compute_stream)[1]

    def course(self, layout: Layout, *, compute_stream: bool) -> MemoryCourse:
        memory, _ = self._tightest(layout, compute_stream=compute_stream)
        return memory.course(layout, compute_stream=compute_stream)

    def never_reused_bytes(self, layout: Layout) -> int:
        held = [(memory.never_reused_bytes(layout), room) for memory, room in self._of]
        return max(math.floor(size / room) for size, room in held)

    def _tightest(
        self, layout: Layout, *, compute_stream: bool
    ) -> tuple[StepMemory, MemoryEstimate]:
        found = [
            (memory, replace(memory.estimate(layout, compute_stream=compute_stream), room=room))
            for memory, room in self._of
        ]
        return max(found, key=lambda each: each[1].counted)
