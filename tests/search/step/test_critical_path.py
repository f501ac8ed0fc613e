"""Weights of critical paths: against the simulation itself, and alike for equal layers."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.perfmodel.timeline import StepTimeline
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Point
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.step.critical_path import PathWeights, needed
from autoddl.search.step.tuning import LATEST, OFF_PATH
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, tied, transformer


def timeline(network: CostNetwork, point: Point) -> StepTimeline:
    return StepTimeline(network.setting.prices, assigned_layout(network, point), orders=True)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_a_second_on_the_critical_path_is_one_of_the_step(mesh: str) -> None:
    """What is on it adds up to the step, and what is not does not matter."""
    network = build(transformer(2), Mesh.parse(mesh), cluster())
    for seed in range(5):
        found = timeline(network, random_assignment(network, seed))
        critical = found.works.critical_s()
        assert critical.sum() == pytest.approx(found.works.end_s)
        ops, tensors = found.waited_for()
        assert ((ops >= 0) & (ops <= 1 + 1e-9)).all()
        known = ~np.isnan(tensors)
        assert ((tensors[known] >= 0) & (tensors[known] <= 1 + 1e-9)).all()
        moved = {item.tensor for item in found.layout.redistributions}
        assert {t.name for t, k in zip(network.program.tensors, known, strict=True) if k} == moved
        on_ops = float((ops * found.compute_s).sum())
        assert on_ops <= critical.sum() * (1 + 1e-9)


def test_equal_layers_have_equal_weights() -> None:
    network = build(transformer(4), Mesh.parse("2x2"), cluster())
    weights = PathWeights(network)
    weights.learn(timeline(network, random_assignment(network, 1)))
    blocks = network.program.blocks.ops
    layers = [
        np.flatnonzero((blocks.layer == layer) & (blocks.position >= 0)) for layer in range(4)
    ]
    by_position = [dict(zip(blocks.position[ops], weights.ops[ops], strict=True)) for ops in layers]
    assert by_position[0] and all(each == by_position[0] for each in by_position)
    assert len(set(weights.ops.tolist())) > 1


def test_weights_are_averages_with_a_floor() -> None:
    network = build(mlp(8, (16, 16, 16)), Mesh.parse("4"), cluster())
    weights = PathWeights(network)
    found = timeline(network, np.zeros(len(network), np.int64))
    ops, _ = found.waited_for()
    for _ in range(2):
        weights.learn(found)
    once = (1 - LATEST) ** 2
    assert weights.ops == pytest.approx(once + (1 - once) * ops)
    # All that is replicated is never moved.
    assert (weights.tensors == 1.0).all()
    prices = weights.prices()
    assert (np.asarray(prices.device) >= OFF_PATH).all()


@pytest.mark.parametrize("program", [mlp(16, (16, 16, 16)), tied(), transformer(2)])
def test_what_only_one_update_waits_for_is_not_needed(program: Program) -> None:
    """Against a walk from each tensor to all ops that depend on it."""
    found = build(program, Mesh.parse("4"), cluster())
    updates = {p.update for p in program.parameters}
    readers: dict[str, list[str]] = {}
    for op in program.ops:
        for _, tensor in op.inputs:
            readers.setdefault(tensor, []).append(op.name)
    flags = needed(found).tolist()
    for tensor, is_needed in zip(program.tensors, flags, strict=True):
        ends, seen, waiting = set(), set(), list(readers.get(tensor.name, []))
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            after = [r for _, t in program.op[name].outputs for r in readers.get(t, [])]
            waiting += after
            if not after:
                ends.add(name)
        made = tensor.name in program.producer
        assert is_needed == (made and bool(ends - updates or len(ends) > 1)), tensor.name
    gradients = {dict(program.op[u].inputs)["model_diff_0"] for u in updates if u}
    by_name = dict(zip((t.name for t in program.tensors), flags, strict=True))
    assert gradients and not any(by_name[name] for name in gradients)
    assert any(flags)
