"""Small random graphs for stages, all of whose assignments can be looked at, and proofs on them.

random_graph(7): up to 9 nodes, 2 or 3 stages, gradients among the tensors; all_stages has the stages of
every chain of order ideals. `bounds_row(7)` counts balanced ones that Rhino's bounds cut off.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoddl.perfmodel.pipeline.free_stages import FreeStages, fastest
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT
from autoddl.perfmodel.pipeline.stage_graph import SentTensor, StageGraph, descent, stage_ranges
from experiments.lib.frames import Row

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_NODES, MOST_STAGES = 9, 3


def random_graph(seed: int, *, forward: bool = False) -> StageGraph:
    """Return a random graph, where asked for without gradients; of odd seeds sums may be equal."""
    rng = np.random.default_rng(seed)
    count, stages = int(rng.integers(3, MOST_NODES + 1)), int(rng.integers(2, MOST_STAGES + 1))
    numbers = rng.permutation(count).tolist()  # nodes are not in the order of data
    sent = []
    for place in range(count - 1):
        chosen = rng.integers(place + 1, count, int(rng.integers(0, 4))).tolist()
        readers = sorted({numbers[reader] for reader in chosen})
        if readers:
            sent.append(SentTensor(numbers[place], tuple(readers)))
        if readers and not forward and rng.random() < 0.5:
            to = [numbers[n] for n in range(place + 1) if n == place or rng.random() < 0.2]
            sent.append(SentTensor(readers[0], tuple(to), back=True))

    def draw(*shape: int) -> Floats:
        return rng.integers(0, 5, shape).astype(float) if seed % 2 else rng.random(shape)

    held, active = rng.integers(0, 6, (2, count))
    sent_s = draw(len(sent), stages) * rng.choice([0.1, 1.0])
    sent_bytes = rng.integers(0, 9, len(sent))
    units = max(stages, count - int(rng.integers(0, 2)))
    return StageGraph(
        draw(count) + 0.1, draw(count), 0.3 * draw(count), held, active, tuple(sent), sent_s, sent_bytes,
        units,
    )  # fmt: skip


@dataclass(frozen=True)
class AllStages:
    """All stages of a graph that keep the order of data, with a unit in each: a row by assignment."""

    graph: StageGraph
    every: Ints

    @classmethod
    def of(cls, graph: StageGraph) -> AllStages:
        """Go through all assignments."""
        every = np.array(list(itertools.product(range(graph.stages), repeat=len(graph.seconds))))
        right = np.array([len({*row[: graph.units]}) == graph.stages for row in every.tolist()])
        for maker, readers, back in graph.sent:
            for reader in readers:
                first, then = (reader, maker) if back else (maker, reader)
                right &= every[:, first] <= every[:, then]
        return cls(graph, every[right])

    def sums(self, values: Floats | Ints) -> Floats:
        """Return by assignment and stage the sum of what its nodes have."""
        return np.stack([(self.every == s) @ values for s in range(self.graph.stages)], axis=1)

    def sent(self, weights: Floats) -> Floats:
        """Return by assignment the sum over tensors and the stages they are sent to."""
        total = np.zeros(len(self.every))
        for row, (maker, readers, _) in zip(weights, self.graph.sent, strict=True):
            for stage in range(self.graph.stages):
                read = (self.every[:, list(readers)] == stage).any(axis=1)
                total += row[stage] * (read & (self.every[:, maker] != stage))
        return total

    def step_s(self, micro_batches: int) -> Floats:
        """Return by assignment the seconds of a step, term by term."""
        load_s = self.sums(self.graph.seconds)
        load_s[:, :-1] += self.sums(self.graph.waiting_s)[:, :-1]
        once_s = self.sums(self.graph.once_s).max(axis=1)
        steady_s = (micro_batches - 1) * load_s.max(axis=1) + load_s.sum(axis=1)
        return steady_s + self.sent(self.graph.sent_s) + once_s

    def memory(self, micro_batches: int) -> Floats:
        """Return by assignment the bytes of the fullest stage."""
        flying = [min(micro_batches, self.graph.stages - s) for s in range(self.graph.stages)]
        return (self.sums(self.graph.held) + flying * self.sums(self.graph.active)).max(axis=1)

    def row(self, stage_of: tuple[int, ...]) -> int:
        """Return which assignment that is; there is one."""
        (number,) = np.flatnonzero((self.every == stage_of).all(axis=1))
        return int(number)


def bounds_row(seed: int) -> Row:
    """Return how many balanced assignments of a random graph bounds cut off, of how many."""
    graph = random_graph(seed, forward=True)
    tolerance = float(np.random.default_rng(seed).choice([0.05, 0.1, 0.3, 0.6]))
    mean_s = float(graph.seconds.sum()) / graph.stages
    found = AllStages.of(graph)
    balanced = found.every[found.sums(graph.seconds).max(axis=1) <= (1 + tolerance) * mean_s]
    after = descent(graph)
    upto, onward = after.T @ graph.seconds, after @ graph.seconds
    printed = (
        np.floor((upto - graph.seconds) / mean_s - tolerance),
        np.ceil(onward / mean_s + tolerance),
    )
    repaired = printed[0], np.floor(graph.stages - onward / mean_s + tolerance)

    def lost(low: npt.NDArray[np.generic], high: npt.NDArray[np.generic]) -> int:
        return int(((balanced < low) | (balanced > high)).any(axis=1).sum())

    ranges = stage_ranges(graph, (1 + tolerance) * mean_s)
    return {
        "seed": seed, "balanced": len(balanced), "derived": lost(*ranges), "printed": lost(*printed),
        "repaired": lost(*repaired),
    }  # fmt: skip


def optimum_row(seed: int) -> Row:
    """Return the best step of a random graph by brute force, by the program, and of cuts of chains."""
    graph, micro_batches = random_graph(seed), 1 + seed % 5
    every = AllStages.of(graph)
    step_s, memory = every.step_s(micro_batches), every.memory(micro_batches)
    limit = int(np.sort(memory)[len(memory) // 4]) if seed % 3 else NO_LIMIT

    def solved(tightened: bool) -> FreeStages:
        found = fastest(graph, micro_batches, limit=limit, tightened=tightened)
        assert found is not None, "some stages fit"
        assert memory[every.row(found.stage_of)] <= limit
        return found

    tight, plain = solved(True), solved(False)
    return {
        "seed": seed, "best_s": float(step_s[memory <= limit].min()),
        "tightened_s": float(step_s[every.row(tight.stage_of)]), "told_s": tight.value,
        "plain_s": plain.value, "contiguous_s": tight.contiguous, "gap": tight.gap,
    }  # fmt: skip
