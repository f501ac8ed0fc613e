"""Ops that draw random numbers: never cut, so that every device draws what one device alone would.

Copies that draw from one seed agree. Shards would each begin the sequence of their seed: with one seed
they repeat each other, with several they are not the numbers of one device. An engine may accept both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autoddl.sbp.rules.maps import uncut
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, Shape, register

_Draw = Callable[[np.random.Generator, Mapping[str, Any], Shape], Array]
_DRAWS: dict[str, _Draw] = {
    "uniform": lambda rng, a, shape: rng.uniform(a["from"], a["to"], shape),
    "uniform_int": lambda rng, a, shape: rng.integers(a["from"], a["to"], shape),
    "normal": lambda rng, a, shape: rng.normal(a["mean"], a["std"], shape),
    "exponential": lambda rng, a, shape: rng.exponential(1 / a["lambd"], shape),
    "randperm": lambda rng, a, shape: rng.permutation(*shape),
}


def _map(view: OpView) -> IndexMap:
    return IndexMap(uncut(view, view.inputs + view.outputs))


def _reference(draw: _Draw) -> Callable[[LocalOp], dict[str, Array]]:
    def reference(op: LocalOp) -> dict[str, Array]:
        rng = np.random.default_rng(op.view.attr["seed"])
        return {"out_0": draw(rng, op.view.attr, op.view.shape["out_0"])}

    return reference


def _bernoulli(op: LocalOp) -> dict[str, Array]:
    """Draw ones with probability p, or where that is -1 with those of the input."""
    p = op.view.attr.get("p", -1.0)  # the engine sets it, but does not declare it
    chance = op.inputs["in_0"] if p < 0 else p
    drawn = np.random.default_rng(op.view.attr["seed"]).random(op.view.shape["out_0"])
    return {"out_0": 1.0 * (drawn < chance)}


def _probability(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    return rng.random(view.shape[operand])


register(
    *(OpRule(name, _map, _reference(draw)) for name, draw in _DRAWS.items()),
    OpRule("bernoulli", _map, _bernoulli, samplers={"in_0": _probability}),
)
