"""HAP's alternation and the planner's shares, against all shares and assignments of small programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from msgspec import structs

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile_entries import Link
from autoddl.sbp.boxing import LOCAL, boxing
from autoddl.sbp.mesh import Mesh
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.network.cost_network import CostNetwork, as_ints
from autoddl.search.result import Point
from autoddl.search.rivals.hap import alternation
from autoddl.search.rivals.hap.share_stages import stages_of
from autoddl.search.rivals.hap.shares_lp import stages_s
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.hap.share_toys import MOST_UNITS, ShareToy, toy
from tests.search.random_problems import every_cost

SOME = range(50)


@pytest.fixture(scope="module")
def least() -> list[float]:
    """The seconds of the best of all shares and assignments, of every toy."""
    found = []
    for seed in SOME:
        one = toy(seed)
        costs = [every_cost(one.problem(mesh))[0].min() for mesh in one.meshes(MOST_UNITS)]
        found.append(float(min(costs)))
    return found


def test_the_race_finds_the_best_of_all_shares(least: list[float]) -> None:
    found = [toy(seed).race_s() for seed in SOME]
    assert all(ours <= best * (1 + 1e-9) for ours, best in zip(found, least, strict=True))


def test_alternation_is_never_better_than_all_shares(least: list[float]) -> None:
    losses = []
    for seed, best in zip(SOME, least, strict=True):
        found = toy(seed).hap()
        assert found.result.cost_s == min(one.cost_s for one in found.tried.values())
        losses.append(found.result.cost_s / best - 1)
    assert min(losses) >= -1e-9
    assert any(loss < 1e-9 for loss in losses) and any(loss > 1e-9 for loss in losses)


def test_the_mesh_of_shares_is_a_place_for_each_device() -> None:
    """Every vector of up to so many units, each once, alike within a kind."""
    one = replace(toy(0), cluster=toy(0).cluster)
    meshes = [*one.meshes(6)]
    assert len(set(meshes)) == len(meshes)
    for mesh in meshes:
        units = dict(zip(one.cluster.kinds, mesh.axes[0].shares or (1,) * mesh.size, strict=True))
        assert sum(units[kind] * n for kind, n in Counter(one.cluster.kinds).items()) <= 6


def alike(one: ShareToy) -> ShareToy:
    """The same with slow devices as fast as the others."""
    devices = dict.fromkeys(one.profile.devices, one.profile.devices["fast"])
    return replace(one, profile=structs.replace(one.profile, devices=devices))


@pytest.mark.parametrize("seed", range(8))
def test_stages_are_the_costs_of_the_network(seed: int) -> None:
    """Where devices are alike that with the largest share is always the last."""
    one = alike(toy(seed))
    for mesh in one.meshes(MOST_UNITS):
        problem = one.problem(mesh)
        devices = [one.profile.devices[kind] for kind in one.cluster.kinds]
        units = np.array(mesh.axes[0].shares or (1,) * mesh.size)
        for number in range(5):
            point = random_assignment(problem, number)
            seconds = stages_s(stages_of(problem, point, devices), units / units.sum())
            assert seconds == pytest.approx(problem.cost_s(point), rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_stages_of_unlike_devices_wait_less_often_than_ops(seed: int) -> None:
    one = toy(seed)
    problem = one.problem(one.even)
    devices = [one.profile.devices[kind] for kind in one.cluster.kinds]
    for number in range(10):
        point = random_assignment(problem, number)
        stages = stages_of(problem, point, devices)
        even_s = stages_s(stages, [1 / len(devices)] * len(devices))
        assert even_s <= problem.cost_s(point) * (1 + 1e-9)
        assert max(problem.compute_s(point), problem.communication_s(point)) <= even_s * 2


@pytest.mark.parametrize(
    ("mesh", "ranks", "message"),
    [
        ("2x2", "fast fast slow slow", "got 'hap' on mesh 2x2; it gives shares of one axis"),
        ("4", "fast fast fast fast", "got 'hap' for devices of one kind;"),
    ],
)
def test_what_it_is_not_for(mesh: str, ranks: str, message: str) -> None:
    one = toy(0)
    with pytest.raises(AutoDDLError, match=message):
        alternation.search(one.problem, Mesh.parse(mesh), one.profile.devices, ranks.split())


@pytest.mark.parametrize(("broadcasts", "gathers"), [(1.0, "all_gather"), (0.0, "broadcast")])
def test_lines_are_what_the_program_takes_under_other_shares(
    broadcasts: float, gathers: str
) -> None:
    """The same choices on another mesh, of devices that are alike, with one line for each link."""
    checked = 0
    for seed in range(4):
        one = flat(alike(toy(seed)), broadcasts)
        meshes = [*one.meshes(MOST_UNITS)]
        devices = [one.profile.devices[kind] for kind in one.cluster.kinds]
        problems = [one.problem(mesh) for mesh in meshes]
        for number in range(10):
            first = problems[number % len(meshes)]
            point = random_assignment(first, number)
            stages, moves = stages_of(first, point, devices), moved(first, point)
            for mesh, problem in zip(meshes, problems, strict=True):
                there = same_choices(first, point, problem)
                if there is None or moved(problem, there) != moves or "all_to_all" in moves:
                    continue
                units = np.array(mesh.axes[0].shares or (1,) * mesh.size)
                seconds = stages_s(stages, units / units.sum())
                assert seconds == pytest.approx(problem.cost_s(there), rel=1e-6)
                checked += mesh is not first.mesh and gathers in moves
    assert checked > 30


def flat(one: ShareToy, broadcasts: float) -> ShareToy:
    """The same where flop/s bound each op, and each link has one line: of broadcasts this β."""
    told = [Link("broadcast", level, 2, 0.0, broadcasts) for level in one.profile.levels]
    links = {(link.key, link.collective): link for link in (*one.profile.links, *told)}
    fast = one.profile.devices["fast"]
    kernels = {n: structs.replace(k, bytes_per_s=1e18) for n, k in fast.kernels.items()}
    devices = dict.fromkeys(
        one.profile.devices, structs.replace(fast, kernels=kernels, op_overhead_s=0.0)
    )
    profile = structs.replace(one.profile, links=tuple(links.values()), devices=devices)
    return replace(one, profile=profile)


def moved(problem: CostNetwork, point: Point) -> list[str]:
    """How all boxings go, padded or grouped, in the order of the redistributions."""
    layout = assigned_layout(problem, as_ints(point).tolist())
    prices = problem.setting.redistributor.boxings
    found = []
    for move in layout.redistributions:
        tensor = problem.program.tensor[move.tensor]
        for states in pairwise((layout.made[move.tensor], *move.path)):
            step = boxing(*states, tensor.shape, problem.mesh.cuts, uneven=True)
            way = None if step is None else prices.way(step, tensor.item_bytes)
            found.append(LOCAL if way is None else way.collective)
    return found


def same_choices(first: CostNetwork, point: Point, other: CostNetwork) -> list[int] | None:
    """The choices with the same states on another mesh; None where one of them is not there."""
    found = []
    for variable, choice in enumerate(as_ints(point).tolist()):
        wanted, known = first.variables.of(variable).choices[choice], other.variables.of(variable)
        if wanted not in known.choices:
            return None
        found.append(known.choices.index(wanted))
    return found
