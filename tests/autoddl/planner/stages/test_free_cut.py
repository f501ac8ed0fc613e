"""Free stages: priced as the program that chooses them has it, faster than cuts, planned as others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autoddl
from autoddl.compare.staged_again import staged_again
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_timeline import closed_form_s
from autoddl.perfmodel.pipeline.stage_graph import descent, orders
from autoddl.plan import codec
from autoddl.planner.stages.cuts import equal_cut
from autoddl.planner.stages.free_cut import free_cut, in_stages, nodes, stage_graph
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import ONCE, Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Level, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.budget import Budget
from experiments.lib.oneflow_problems import build
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import Builder, activation, linear, mse, residual, transformer
from tests.support.zoo import separate_attention

MICRO_BATCHES = 4
EQUAL = 1e-9


def towers(layers: int = 3, width: int = 64, batch: int = 64) -> Program:
    """Return two towers, layer by layer in turns, which are added; each layer has a residual."""
    g = Builder()
    ends = [g.input((batch, width)) for _ in range(2)]
    target = g.input((batch, width))
    with g.module("model"):
        for layer in range(layers):
            for side, name in enumerate(("left", "right")):
                with g.module(f"{name}.{layer}"):
                    ends[side] = activation(g, linear(g, ends[side], width), "relu")
        both = residual(g, *ends)
    return g.program(mse(g, both, target), "sgd")


def branches(*, trunk: bool = True) -> Program:
    """Return two layers that read the input, or what a third one makes: its gradient is a sum."""
    g = Builder()
    x, target = g.input((64, 32)), g.input((64, 32))
    with g.module("model"):
        if trunk:
            with g.module("trunk"):
                x = activation(g, linear(g, x, 32), "relu")
        ends = []
        for name in ("left", "right"):
            with g.module(name):
                ends.append(activation(g, linear(g, x, 32), "gelu"))
        both = residual(g, *ends)
    return g.program(mse(g, both, target), "sgd")


PROGRAMS: dict[str, Callable[[], Program]] = {
    "towers": towers,
    "branches": branches,
    "branches of the input": lambda: branches(trunk=False),
    "gpt": lambda: transformer(layers=2),
    "separate attention": lambda: separate_attention(batch=8),
}


def given(name: str, stages: int) -> tuple[Assigned, int, int, Links]:
    """Return an assignment of a micro-batch on one device, and what its stages are cut with."""
    problem = build(micro_batch(PROGRAMS[name](), MICRO_BATCHES), Mesh.parse("1"), cluster())
    links = Links(problem.profile, Cluster((Level("gpu", stages),)))
    return Assigned(problem, (0,) * len(problem)), stages, MICRO_BATCHES, links


def closed_s(staged: Staged) -> float:
    """Return the closed form of a step from all that it spends and sends, but for copies into buffers."""
    stage_s, once_s = [0.0] * staged.stages, [0.0] * staged.stages
    sums = [item for item in staged.added if item.phase == "backward"]
    for item in staged.planned + sums:
        (once_s if item.phase == ONCE else stage_s)[item.stage] += item.seconds
    sent_s = [sent.seconds for sent in staged.step.transfers]
    return closed_form_s(stage_s, staged.micro_batches, transfer_s=sent_s, once_s=once_s)


def stages_of_nodes(staged: Staged) -> list[int]:
    """Return the stage of each node, of which all that belongs to it is in one."""
    program = staged.assigned(0).problem.program
    place = nodes(program, positions(program))
    found: dict[int, set[int]] = {}
    for name, node in (*place.op.items(), *place.held.items()):
        if name in staged.stage_of and (program.op.get(name) is None or name in place.op):
            found.setdefault(node, set()).add(staged.stage_of[name])
    assert all(len(stages) == 1 for stages in found.values())
    return [found[node].pop() for node in range(place.count)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_has_the_price_of_its_stages(name: str) -> None:
    rng = np.random.default_rng(0)
    for stages in (2, 3, 4):
        assigned, *rest = given(name, stages)
        graph = stage_graph(assigned, *rest)
        # Copies are where the backward pass reads, which may be another stage than the maker's.
        graph = replace(graph, waiting_s=0 * graph.waiting_s)
        for order in orders(graph.edges, len(graph.seconds)):
            units = [node for node in order if node < graph.units]
            bounds = np.sort(rng.choice(np.arange(1, len(units)), stages - 1, replace=False))
            stage_of = np.searchsorted(bounds, np.argsort(units), side="right").tolist()
            staged = in_stages(assigned, stage_of, *rest[1:])
            mine = stages_of_nodes(staged)
            assert mine[: graph.units] == stage_of
            assert graph.step_s(mine, MICRO_BATCHES) == pytest.approx(closed_s(staged), rel=EQUAL)
            for transfer in staged.transfers:
                made = staged.program.producer.get(transfer.tensor)
                back = made is not None and made.phase == "backward"
                assert (transfer.target < transfer.source) is back


@pytest.mark.parametrize("name", ["branches", "branches of the input"])
def test_either_branch_may_come_first(name: str) -> None:
    assigned, *rest = given(name, 2)
    program = assigned.problem.program
    forward = [op.module for op in program.ops if op.phase == "forward"]
    left, right = (forward.index(f"model.{side}") for side in ("left", "right"))
    behind = descent(stage_graph(assigned, *rest))
    assert not behind[left, right]
    assert not behind[right, left]


def test_free_stages_of_branches_in_turns_are_faster_than_cuts() -> None:
    for stages in (2, 4):
        assigned, *rest = given("towers", stages)
        cut = equal_cut(assigned, *rest)
        free = free_cut(assigned, *rest, None, Budget(seconds=60).begin())
        assert free is not None
        assert free.timeline.step_s < cut.timeline.step_s
        program = assigned.problem.program
        forward = [free.stage_of[op.name] for op in program.ops if op.phase == "forward"]
        assert forward != sorted(forward)


def test_free_stages_fit() -> None:
    assigned, *rest = given("towers", 3)
    allowance = Budget(evaluations=1e6).begin()
    free = free_cut(assigned, *rest, None, allowance)
    assert free is not None
    assert allowance.spent_s() > 0
    limit = free.memory_bytes - 1
    less = free_cut(assigned, *rest, limit, allowance)
    assert less is None or less.memory_bytes <= limit
    assert free_cut(assigned, *rest, 1000, allowance) is None


def test_free_stages_are_planned_written_and_priced_again() -> None:
    asked = {"mesh": "1", "pipeline": 3, "micro_batches": MICRO_BATCHES, "budget": LITTLE}
    profile, program = cluster(), towers()
    equal = autoddl.optimize(program, **asked, profile=profile)
    free = autoddl.optimize(program, **asked, profile=profile, parts="free")
    assert free.estimate.step_s < equal.estimate.step_s
    assert free.search.lower_bound_s <= free.estimate.step_s
    encoded = codec.encode(free)
    assert codec.encode(codec.decode(encoded, "again", engines.model)) == encoded
    again = staged_again(free, profile, Cluster((Level("gpu", 3),)))
    assert again.timeline.step_s == pytest.approx(free.estimate.step_s)


def test_free_stages_are_on_devices_that_are_alike() -> None:
    with pytest.raises(AutoDDLError, match=r"parts: got 'free' on .*; here allowed are 'auto'"):
        autoddl.optimize(
            towers(), cluster="1*fastx2 + 1*slowx2", profile=of_two_kinds(cluster()), parts="free"
        )


def test_stages_of_branches_may_be_pinned_in_either_order() -> None:
    """A layer comes before one of the other tower, but no data goes between them."""
    asked: dict[str, Any] = {"mesh": "1", "pipeline": 2, "micro_batches": MICRO_BATCHES}
    asked |= {"profile": cluster(), "budget": LITTLE, "parts": "free"}
    for first, second in (("left", "right"), ("right", "left")):
        pin = {f"model.{first}.2": "stage 0", f"model.{second}.0": "stage 1"}
        found = autoddl.optimize(towers(), **asked, pin=pin)
        for op in found.program.ops:
            if op.phase == "forward" and op.module in ("model.left.2", "model.right.0"):
                assert found.stage_of[op.name] == int(op.module[:-2].endswith(second))
        with pytest.raises(AutoDDLError, match=r"data goes model.*, and goes to later stages only"):
            autoddl.optimize(towers(), **asked, pin={**pin, f"model.{first}.1": "stage 1"})
