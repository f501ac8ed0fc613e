"""The objective "communication": who may do what, and that it is AutoDDL's."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.shards import local_shape
from autoddl.search import baselines
from autoddl.search.network.cost_network import as_ints
from autoddl.search.reductions.objective import COMMUNICATION, TIME, space
from autoddl.search.reductions.restriction import Restriction
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import coordinate
from experiments.lib import oneflow_problems as builder
from tests.search.objects import nodes_of
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer


def communication(mesh: str = "2x2", **sizes: int) -> Restriction:
    program = transformer(**sizes) if sizes else mlp(64, (64, 128, 32))
    return space(builder.build(program, Mesh.parse(mesh), cluster()), COMMUNICATION)


def test_compute_costs_nothing_and_replicating_is_no_choice() -> None:
    p = communication().network
    assert p.lower_bound_s() == 0
    found = coordinate.search(p, SearchOptions(budget=5.0))
    assert found.cost_s == pytest.approx(p.communication_s(found.assignment))
    assert found.cost_s > 0


@pytest.mark.parametrize("mesh", ["4", "2x2", "2x2x2"])
def test_every_product_is_shared_by_all_devices(mesh: str) -> None:
    p = communication(mesh, layers=1).network
    axes = p.mesh.shape
    for node in nodes_of(p):
        if node.kind == "op" and "matmul" in p.program.op[node.name].type:
            op = p.program.op[node.name]
            for choice in node.choices:
                kinds = [
                    {choice[o][axis].kind for o, _ in op.operands} for axis in range(len(axes))
                ]
                assert all("S" in found for found in kinds)


def test_all_else_is_free() -> None:
    whole = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    kept = space(whole, COMMUNICATION).network
    for old, new in zip(nodes_of(whole), nodes_of(kept), strict=True):
        if old.kind != "op" or "matmul" not in whole.program.op[old.name].type:
            assert new.choices == old.choices


def test_products_that_the_mesh_does_not_divide_are_shared_as_far_as_they_can() -> None:
    """Three devices divide none of their dims."""
    program = mlp(64, (16, 16), optimizer="sgd", bias=False)
    p = space(builder.build(program, Mesh.parse("3x2"), cluster()), COMMUNICATION).network
    for node in nodes_of(p):
        if node.kind == "op" and p.program.op[node.name].type == "matmul":
            states = [list(choice.values()) for choice in node.choices]
            assert not any(s[0].is_split for three in states for s in three)
            assert all(any(s[1].is_split for s in three) for three in states)


def test_an_assignment_of_the_space_means_the_same_in_the_whole() -> None:
    whole = builder.build(transformer(), Mesh.parse("2x2"), cluster())
    kept = space(whole, COMMUNICATION)
    found = coordinate.search(kept.network, SearchOptions(budget=2.0), restarts=1).assignment
    same = kept.invert(found)
    for node, choice, old, index in zip(
        nodes_of(kept.network), found, nodes_of(whole), same, strict=True
    ):
        assert node.choices[choice] == old.choices[index]
    assert whole.communication_s(same) == pytest.approx(kept.network.cost_s(found))
    assert whole.memory_bytes(same) == kept.network.memory_bytes(found)


def test_baselines_are_in_the_space() -> None:
    p = communication("2x2", layers=1).network
    known = baselines.assignments(p)
    assert {"data parallel", "Megatron"} <= set(known)
    best = coordinate.search(p, SearchOptions(budget=5.0, starts=known.values()))
    assert best.cost_s <= min(p.cost_s(a) for a in known.values()) * (1 + 1e-12)


def test_for_the_time_of_a_step_nothing_changes() -> None:
    p = builder.build(mlp(), Mesh.parse("2"), cluster())
    same = space(p, TIME)
    assert same.network is p
    last = p.variables.sizes - 1
    assert (as_ints(same.invert(last)) == last).all()


def test_arrays_are_shared_where_they_were() -> None:
    """Solvers recognise repeated layers by it."""
    whole = builder.build(transformer(layers=3), Mesh.parse("2x2"), cluster())
    new = space(whole, COMMUNICATION).network
    for field in ("choices", "compute_s", "memory_bytes"):
        before = {id(getattr(node, field)) for node in nodes_of(whole)}
        assert len({id(getattr(node, field)) for node in nodes_of(new)}) <= len(before)


def test_work_on_a_device_is_the_least_for_products() -> None:
    p = communication("2x2").network
    for node in nodes_of(p):
        if node.kind != "op" or p.program.op[node.name].type != "matmul":
            continue
        shapes = p.program.shapes(p.program.op[node.name])
        flops = {_flops(shapes, choice, p.mesh.shape) for choice in node.choices}
        whole = np.sqrt(prod(prod(shape) for shape in shapes.values()))
        assert flops == {whole / 4}


def _flops(
    shapes: Mapping[str, tuple[int, ...]], choice: NdSignature, mesh: tuple[int, ...]
) -> float:
    """m · n · k is the root of the product of the three operands' elements."""
    local = [local_shape(shapes[o], choice[o], mesh) for o in shapes]
    return float(np.sqrt(prod(prod(shape or ()) for shape in local)))
