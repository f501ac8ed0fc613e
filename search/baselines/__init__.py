"""What experts do by hand, as assignments of the same CostNetwork.

A baseline holds the states of inputs and parameters, and of contractions where that defines it. All
other ops follow their producers and are then refined, so that a baseline is as good as its
definition allows. One that does not apply to a program or a mesh is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from autoddl.search.baselines.data_parallel import data_parallel, hybrid_zero_2, zero_2
from autoddl.search.baselines.experts import expert_parallel
from autoddl.search.baselines.held_states import best
from autoddl.search.baselines.megatron import megatron
from autoddl.search.baselines.summa import summa
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment

BASELINES: Mapping[str, Callable[[CostNetwork], Assignment | None]] = {
    "data parallel": partial(best, family=data_parallel),
    "ZeRO 2": partial(best, family=zero_2),
    "hybrid ZeRO 2": partial(best, family=hybrid_zero_2),
    "Megatron": partial(best, family=megatron),
    "SUMMA": partial(best, family=summa),
    "expert parallel": partial(best, family=expert_parallel),
}

NEEDS: Mapping[str, str] = {
    "ZeRO 2": "parameters that some axis of the mesh divides",
    "hybrid ZeRO 2": "a mesh of two axes or more, and parameters that some axis divides",
    "Megatron": "linear layers, and two devices or more",
    "SUMMA": "linear layers, and a mesh of two axes or more",
    "expert parallel": "weights (experts, in, out) in batched products, with experts that an axis of "
    "the mesh divides",
}
"""What a baseline needs to apply; those that are not named always do."""


def assignments(problem: CostNetwork) -> dict[str, Assignment]:
    """Return the assignments of all baselines that apply; they are made once."""
    return dict(problem.derived(_assignments))


def _assignments(problem: CostNetwork) -> dict[str, Assignment]:
    found = {name: baseline(problem) for name, baseline in BASELINES.items()}
    return {name: a for name, a in found.items() if a is not None}


__all__ = ["BASELINES", "NEEDS", "assignments"]
