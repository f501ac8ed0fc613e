"""AMP's strategies as plans: ranks and meshes by hand, steps by closed forms, states by the planner's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import autoddl
from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.topology import crossing
from autoddl.sbp.boxing import ALL_REDUCE
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.rivals.amp.strategies import Strategy, megatron_stages, strategies
from experiments.amp import setups
from experiments.amp.amp_studies import priced
from experiments.amp.strategy_plans import StrategyPlans, stage_mesh
from experiments.amp.unit_paces import apart, paces, unit_begins
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp, transformer

LEVELS = ("node", "gpu")
WIDTHS = (64, 64, 64, 64, 64)
LAYERS = {unit: f"model.fc{unit + 1}" for unit in range(4)}


def plans(
    program: Program, text: str, profile: Profile, modules: dict[int, str], units: int,
    measured: dict[str, tuple[float, ...]] | None = None,
) -> StrategyPlans:  # fmt: skip
    return StrategyPlans(program, Cluster.parse(text, LEVELS), profile, modules, units, measured)


def test_megatrons_stages_on_four_nodes_of_four() -> None:
    for tmp, dp, mesh in (
        (1, 16, "4x4"), (2, 8, "4x2x2"), (4, 4, "4x4"), (2, 4, "2x2x2"), (1, 4, "4"), (2, 2, "2x2"),
        (2, 1, "2"), (1, 1, "1"),
    ):  # fmt: skip
        stages = megatron_stages(16, tmp, dp)
        (found,) = {stage_mesh(stage, tmp, 4, LEVELS) for stage in stages}
        assert found[0].shape == tuple(map(int, mesh.split("x")))
        assert sorted(rank for stage in stages for rank in stage) == list(range(16))


def test_dominoes_that_lie_and_stand() -> None:
    stands, tensor = stage_mesh((0, 1, 4, 5, 8, 9, 12, 13), 2, 4, LEVELS)  # two of each node
    assert (stands.shape, tensor) == ((4, 2), 1)
    lies, tensor = stage_mesh((0, 4, 1, 5, 2, 6, 3, 7), 2, 4, LEVELS)  # two nodes, pairs across
    assert (lies.shape, tensor) == ((2, 4), 0)
    assert [axis.level for axis in lies.axes] == ["node", "gpu"]


def test_tensor_groups_of_all_449_lie_along_one_axis() -> None:
    """What differs along the axis of the mesh is a group of the domino, in its order."""
    for strategy in strategies(4, 4, 32):
        for domino in strategy.stages:
            mesh, tensor = stage_mesh(domino, strategy.tmp, 4, LEVELS)
            grid = np.array(sorted(domino)).reshape(mesh.shape)
            groups = {domino[a : a + strategy.tmp] for a in range(0, len(domino), strategy.tmp)}
            rows = grid.reshape(-1, 1) if tensor is None else np.moveaxis(grid, tensor, -1)
            assert {tuple(row) for row in rows.reshape(-1, strategy.tmp).tolist()} == groups
            nodes = grid.reshape(mesh.shape)[..., None] // 4
            for axis, each in enumerate(mesh.axes):  # an axis of a node stays in it
                along = np.moveaxis(nodes, axis, 0)
                assert (each.level == "node") == bool((along != along[:1]).any()) or each.size == 1


def test_shared_links_are_slower() -> None:
    """Two stages across both nodes send their gradients over the same two links."""
    program, profile = mlp(4, (256, 256, 256)), cluster()
    made = plans(program, "2x2", profile, {0: "model.fc1", 1: "model.fc2"}, 2)
    shared = made.plan(Strategy(1, 2, 1, ((0, 2), (1, 3))), (0, 1, 2))
    alone = made.plan(Strategy(1, 2, 1, ((0, 2),)), (0, 2))
    way = crossing(Mesh.parse("[node 2]", LEVELS), (0,), "gpu")
    weight_s, nothing_s = (profile.collective_s(ALL_REDUCE, way, n) for n in (256 * 256 * 4, 0.0))
    found_s = []
    for staged in (alone, shared):
        sent = [i.seconds for i in staged.planned if (i.phase, i.stream) == ("once", "boxing")]
        weights = [seconds for seconds in sent if seconds > weight_s / 2]
        assert weights == pytest.approx([weights[0]] * 2)
        found_s.append(weights[0])
    assert found_s[0] == pytest.approx(weight_s + profile.op_overhead_s)
    assert found_s[1] - found_s[0] == pytest.approx(weight_s - nothing_s)


@pytest.mark.parametrize("tmp", [1, 2])
def test_one_stage_is_the_baseline_of_the_planner(tmp: int) -> None:
    program, profile = transformer(), cluster()
    found = plans(program, "1x2", profile, {0: ""}, 1)
    staged = found.plan(Strategy(tmp, 2 // tmp, 8 // (2 // tmp), ((0, 1),)), (0, 1))
    plan = autoddl.optimize(
        program, mesh="2", profile=profile, search="data parallel" if tmp == 1 else "Megatron"
    )
    expected_s = plan.estimate.compute_s + plan.estimate.communication_s
    assert staged.bounded_s == pytest.approx(expected_s, rel=1e-9)
    assert priced(staged).memory_bytes == plan.estimate.memory_bytes


def test_stages_are_where_the_strategy_and_the_cut_have_them() -> None:
    program = mlp(8, WIDTHS)
    staged = plans(program, "2x2", cluster(), LAYERS, 4).plan(
        Strategy(1, 2, 2, megatron_stages(4, 1, 2)), (0, 3, 4)
    )
    assert staged.micro_batches == 2
    assert [part.ranks for part in staged.parts] == [(0, 1), (2, 3)]
    weights = {staged.where(p.tensor): p.tensor for p in program.parameters}
    assert sorted(weights) == [0, 1]
    for parameter in program.parameters:
        last = parameter.tensor.startswith("model.fc4.")
        assert staged.where(parameter.tensor) == int(last), parameter.tensor


@pytest.mark.parametrize(("count", "cut"), [(8, (0, 2, 4)), (4, (0, 1, 4))])
def test_measured_layers_make_the_closed_form(count: int, cut: tuple[int, ...]) -> None:
    """Seconds of layers are so long that nothing else counts: (m − 1) · max t + Σ t under 1F1B."""
    seconds = {"fast": (1.0, 2.0, 1.0, 2.0), "slow": (2.0, 3.0, 2.0, 3.0)}
    profile = of_two_kinds(cluster())
    found = plans(mlp(count, WIDTHS), "1*fastx1 + 1*slowx1", profile, LAYERS, 4, seconds)
    strategy = Strategy(1, 1, 1, ((0,), (1,)))
    first, second = (
        sum(seconds[kind][a:b]) for kind, a, b in (("fast", 0, cut[1]), ("slow", cut[1], 4))
    )
    expected = (count - 1) * max(first, second) + first + second
    price = priced(found.plan(strategy, cut))
    assert price.closed_form_s == pytest.approx(expected, rel=2e-3)
    assert price.strict_s <= price.closed_form_s * (1 + 2e-3)
    if second >= first:  # then the last stage is never idle
        assert price.strict_s == pytest.approx(expected, rel=0.15)


def test_paces_of_units_by_hand() -> None:
    program, profile = micro_batch(mlp(8, WIDTHS), 8), of_two_kinds(cluster())
    begins = unit_begins(program, LAYERS, 5)
    assert begins[0] == 0
    assert begins[4:] == [begins[5]] * 2  # a fifth unit has no ops
    both = [paces(program, begins, profile.part((kind,)), np.ones(5), begins) for kind in
            ("fast", "slow")]  # fmt: skip
    np.testing.assert_allclose(both[0], 2 * both[1])  # all ops of the slow one take twice as long
    assert set(np.diff(np.flatnonzero(np.diff(both[0])))) <= {*np.diff(begins)}


def test_stages_without_ops_take_the_next_one() -> None:
    assert apart([2, 2, 9], 9) == [2, 3, 8]
    assert apart([0, 0, 5], 9) == [1, 2, 5]
    assert apart([], 9) == []


def test_a_unit_that_is_not_there() -> None:
    with pytest.raises(autoddl.AutoDDLError, match=r"unit 1: no op of module 'head' behind unit 0"):
        unit_begins(mlp(8, WIDTHS), {0: "model.fc1", 1: "head"}, 2)


@pytest.mark.parametrize(
    ("kinds", "expected"), [(("t4",), 0.427), (("v100",), 2.133), (("t4", "v100"), 2.133)]
)
def test_gradients_of_gpt_over_the_links_of_the_profile(
    kinds: tuple[str, ...], expected: float
) -> None:
    """355.5 million float32 gradients on 4 × 4 devices, at 50 and at 10 Gbit/s between nodes."""
    profile = setups.profile(mlp(1, (8, 8)))
    size = 4 * (24 * 12 * 1024**2 + 52256 * 1024)
    way = crossing(Mesh.parse("4x4", LEVELS), (0, 1), "gpu")
    found = profile.part(kinds).collective_s(ALL_REDUCE, way, size)
    assert found - 30 * setups.LATENCY_S == pytest.approx(expected, abs=5e-4)
    assert SEND_RECEIVE in {link.collective for link in profile.links}
    assert math.isfinite(found)
