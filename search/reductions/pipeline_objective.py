"""The prices of a step in which micro-batches are many and updates come once.

With k stages and m micro-batches a step takes at least Σ t · ((m − 1) / k + 1) + Σ o / k: t are seconds
of the ops and redistributions of one micro-batch, o of what comes once per step, and the slowest
stage takes at least the mean. So a bound on this sum bounds the step of every cut into k stages.

    k = 4, m = 8: what repeats counts 7 / 4 + 1 = 2.75 times, an update 1 / 4.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Factors, Variables
from autoddl.search.network.evaluator import Flags
from autoddl.search.reductions.prices import Prices


def weights(stages: int, micro_batches: int) -> tuple[float, float]:
    """Return by how much seconds per micro-batch and seconds per step count at least."""
    return (micro_batches - 1) / stages + 1, 1 / stages


def repeated(network: CostNetwork, stages: int, micro_batches: int) -> CostNetwork:
    """Return the network of one micro-batch with the prices of a step.

    Of a tensor that is read both in each micro-batch and once per step, only the former counts.
    Memory counts forward results for the micro-batches that are in flight in the mean stage, and
    gradients twice, as there is a sum besides each: what all stages of a device each hold together.
    """
    micro, once = weights(stages, micro_batches)
    in_flight = sum(min(micro_batches, stages - stage) for stage in range(stages)) / stages
    variables = network.variables
    of_op = variables.op >= 0
    forward = np.append(network.program.columns.phase, "")[variables.op] == "forward"
    held = np.where(forward, in_flight, 2.0 if micro_batches > 1 else 1.0)
    factors, repeats = _read_each_time(network.factors, variables)
    prices = Prices(
        device=np.where(of_op, micro, once),
        links=np.where(repeats, micro, once),
        held=np.where(of_op, held, 1.0),
    )
    return prices.apply(replace(network, factors=factors))


def _read_each_time(factors: Factors, variables: Variables) -> tuple[Factors, Flags]:
    """Leave out readers once per step where others read in each micro-batch; tell where these are."""
    each = ~variables.of_kind("parameter", "output")[factors.variable] & factors.reads
    repeats = np.bincount(factors.factor, each, minlength=len(factors.table)) > 0
    return factors.reading(each | ~repeats[factors.factor]), repeats
