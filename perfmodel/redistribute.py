"""Redistribution: the cheapest path of boxings between any two states of a tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.sbp.boxing import ALL_GATHER, LOCAL, PAD, Boxing, boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.state import NdSbp, all_states, axis_states

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RedistributionTable:
    """Costs and paths between all states of tensors of one shape.

    `cost[i, j]` is in seconds from `states[i]` to `states[j]`; `hop[i, j]` is the state after the
    first step.
    """

    shape: tuple[int, ...]
    states: tuple[NdSbp, ...]
    cost: Floats
    hop: npt.NDArray[np.int64]

    @cached_property
    def index(self) -> dict[NdSbp, int]:
        """Return the position of every state."""
        return {state: i for i, state in enumerate(self.states)}

    def path(self, src: NdSbp, dst: NdSbp) -> tuple[NdSbp, ...]:
        """Return the states after each step, ending in `dst`; empty where nothing changes.

        Raises:
            AutoDDLError: one of the states does not cut the tensor evenly.
        """
        for state in (src, dst):
            if state not in self.index:
                raise AutoDDLError(f"state {state} does not cut shape {self.shape} evenly")
        here, goal = self.index[src], self.index[dst]
        steps = []
        while here != goal:
            here = int(self.hop[here, goal])
            steps.append(self.states[here])
        return tuple(steps)


class Redistributor:
    """Price redistributions on one mesh under one profile; tables are cached by shape."""

    def __init__(self, mesh: Mesh, profile: Profile) -> None:
        self.mesh = mesh
        self.profile = profile
        self._tables: dict[tuple[tuple[int, ...], int], RedistributionTable] = {}

    def table(self, shape: tuple[int, ...], item_bytes: int) -> RedistributionTable:
        """Return the table of tensors with this logical shape and element size in bytes."""
        key = (shape, item_bytes)
        if key not in self._tables:
            self._tables[key] = self._build(shape, item_bytes)
        return self._tables[key]

    def step_s(self, step: Boxing, item_bytes: int) -> float:
        """Return the seconds of one boxing, its launch included.

        OneFlow's nn.Graph has no kernel that pads: S→P costs it about what a gather does.
        """
        size = step.elements * item_bytes
        device = self.profile.device
        if step.primitive == LOCAL:
            return device.op_overhead_s + 2 * size / device.memory_bytes_per_s
        axis = self.mesh.axes[step.axis]
        collective = ALL_GATHER if step.primitive == PAD else step.primitive
        return device.op_overhead_s + self.profile.collective_s(
            collective, axis.level, axis.size, size
        )

    def _build(self, shape: tuple[int, ...], item_bytes: int) -> RedistributionTable:
        states = tuple(all_states(shape, self.mesh.shape))
        index = {state: i for i, state in enumerate(states)}
        count = len(states)
        cost = np.full((count, count), np.inf)
        np.fill_diagonal(cost, 0.0)
        for src in states:
            for dst in _neighbours(src, len(shape)):
                step = boxing(src, dst, shape, self.mesh.shape) if dst in index else None
                if step is not None:
                    cost[index[src], index[dst]] = self.step_s(step, item_bytes)
        hop = np.tile(np.arange(count), (count, 1))
        for middle in range(count):  # Floyd–Warshall, one vectorised row and column at a time
            through = cost[:, middle, None] + cost[None, middle, :]
            shorter = through < cost
            cost = np.where(shorter, through, cost)
            hop = np.where(shorter, hop[:, middle, None], hop)
        return RedistributionTable(shape, states, cost, hop)


def _neighbours(state: NdSbp, ndim: int) -> Iterator[NdSbp]:
    for axis, sbp in itertools.product(range(len(state)), axis_states(ndim)):
        if sbp != state[axis]:
            yield state.replace(axis, sbp)
