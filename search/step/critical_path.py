"""Weights by critical paths: which seconds of ops and boxings a step waits for.

A step in which ops and boxings overlap takes as long as its critical path. To first order a second of
a work on it is a second of the step, and one of any other work is none. So an assignment that is cheap
where works of the critical path count in full, and others little, mostly has a shorter step; what is
critical there counts more from then on. Weights are averages over the paths seen so far, the latest
ones most, and the same for equal layers, so that these still have a quotient.

    ops of 3 ms beside a boxing of 2 ms: weights 1 and 1/2. With these, ops of 2 ms beside a boxing
    of 3 ms are better (3.5 against 4), though both take 5 ms: the step is 3 ms either way, and now the
    boxing is critical: weights 1/2 and 3/4.

Source: Robbins and Monro 1951 (averages of noisy gradients); Sheffi 1985 (successive averages).
"""

from __future__ import annotations

import numpy as np

from autoddl.perfmodel.timeline import StepTimeline
from autoddl.ragged import Ragged
from autoddl.sbp.program.blocks import Places
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints
from autoddl.search.network.evaluator import Flags
from autoddl.search.reductions.prices import Prices
from autoddl.search.step import tuning


class PathWeights:
    """What a second of each op counts, 1 in the beginning, and of each tensor's boxings.

    With `free` boxings that no more than the update of one parameter waits for (`needed`) begin at that.
    """

    def __init__(self, network: CostNetwork, free: float = 1.0) -> None:
        self.network, self._alike = network, network.derived(alike)
        self.ops = np.ones(len(self._alike[0]))
        self.tensors = np.where(network.derived(needed), 1.0, free)

    def learn(self, timeline: StepTimeline) -> None:
        """Take in the critical path of another step; tensors that it does not move stay as they are."""
        ops, tensors = map(_means, timeline.waited_for(), self._alike)
        self.ops += tuning.LATEST * (ops - self.ops)
        moved = ~np.isnan(tensors)
        self.tensors[moved] += tuning.LATEST * (tensors - self.tensors)[moved]
        for weights in (self.ops, self.tensors):
            np.maximum(weights, tuning.OFF_PATH, out=weights)

    def prices(self) -> Prices:
        """Return what the seconds of variables and factors count."""
        return _prices(self.network, self.ops, self.tensors)


def critical_prices(network: CostNetwork, timeline: StepTimeline) -> Prices:
    """Return what seconds count for moves of one step: those on its critical path, layer by layer.

    Boxings of tensors that it does not move count where more than one update waits for them (`needed`).
    """
    ops, tensors = timeline.waited_for()
    tensors = np.where(np.isnan(tensors), network.derived(needed), tensors)
    return _prices(network, np.maximum(ops, tuning.OFF_PATH), np.maximum(tensors, tuning.OFF_PATH))


def _prices(network: CostNetwork, ops: Floats, tensors: Floats) -> Prices:
    variables, factors = network.variables, network.factors
    device = np.where(variables.op >= 0, ops[variables.op], 1.0)
    return Prices(device=device, links=tensors[factors.tensor])


def needed(network: CostNetwork) -> Flags:
    """Tell of every tensor whether an op makes it for which more waits than the update of one parameter.

    Gradients of parameters are not; those of activations are, since updates of several parameters follow.
    """
    program, columns = network.program, network.program.columns
    waits, makers = columns.waits
    readers = Ragged.sorted(makers, waits, len(program.ops))
    several = len(program.ops)
    update = np.full(several, several)  # of each op the only one that follows, else `several`
    for parameter in program.parameters:
        if parameter.update is not None:
            update[columns.place[parameter.update]] = columns.place[parameter.update]
    for op in range(several - 1, -1, -1):
        followers = update[readers.items[readers.start[op] : readers.start[op + 1]]]
        if len(followers):
            update[op] = followers[0] if (followers == followers[0]).all() else several
    inputs = columns.inputs
    least, most = np.full(len(program.tensors), several), np.full(len(program.tensors), -1)
    np.minimum.at(least, inputs.tensor, update[inputs.op])
    np.maximum.at(most, inputs.tensor, update[inputs.op])
    found: Flags = (columns.maker >= 0) & ((most == several) | (least < most))
    return found


def alike(network: CostNetwork) -> tuple[Ints, Ints]:
    """Return equal numbers for ops, and tensors, at the same position of different layers."""
    blocks = network.program.blocks
    return _alike(blocks.ops), _alike(blocks.tensors)


def _alike(places: Places) -> Ints:
    count = len(places.position)
    key = np.stack([places.stack, places.position, np.zeros(count, dtype=np.int64)])
    alone = places.position < 0
    key[2, alone] = 1 + np.flatnonzero(alone)
    found: Ints = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    return found


def _means(values: Floats, alike: Ints) -> Floats:
    """Return for each value the mean of all that are alike and known; NaN where none is."""
    known = ~np.isnan(values)
    count = np.bincount(alike[known], minlength=len(values))
    total = np.bincount(alike[known], values[known], len(values))
    with np.errstate(invalid="ignore"):
        found: Floats = (total / count)[alike]
    return found
