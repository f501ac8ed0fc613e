"""Works one by one, as tests write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from autoddl.perfmodel.resources import DEVICE, ResourceParts
from autoddl.perfmodel.simulation.event_simulation import Works, by_number


@dataclass(slots=True)
class SimulatedWork:
    """One work: its parts in turn, how many works it waits for, and what waits for it."""

    name: str
    parts: ResourceParts
    waits: int = 0
    next: list[int] = field(default_factory=list)


def works_of(found: Sequence[SimulatedWork], slow: Mapping[str, float] | None = None) -> Works:
    pairs = [(number, later) for number, work in enumerate(found) for later in work.next]
    first, then = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    parts = by_number([work.parts for work in found])
    return Works.of([work.name for work in found], *parts, first, then, slow)


@st.composite
def graphs(draw: st.DrawFn) -> list[SimulatedWork]:
    found: list[SimulatedWork] = []
    for index in range(draw(st.integers(1, 12))):
        before = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        parts = draw(
            st.lists(
                st.tuples(st.sampled_from([DEVICE, "node", "gpu"]), st.integers(1, 9)), max_size=2
            )
        )
        found.append(SimulatedWork(str(index), tuple((r, float(s)) for r, s in parts), len(before)))
        for earlier in before:
            found[earlier].next.append(index)
    return found
