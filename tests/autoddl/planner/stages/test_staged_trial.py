"""Plans on devices of several kinds, and on parts of unlike size."""

from __future__ import annotations

from functools import cache, partial
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import autoddl
from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline import part_graph as placed_parts
from autoddl.plan import codec
from autoddl.planner.candidate_plans import mesh_rounds
from autoddl.planner.race import Solution
from autoddl.planner.stages import cuts, staged_trial
from autoddl.planner.stages.part_classes import part_classes
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.stages.staged_trial import staged_trials
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.blocks import layer_path
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.baselines import assignments
from autoddl.search.budget import Budget
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions, SearchResult
from autoddl.search.solvers.named import SOLVERS
from experiments.lib.oneflow_problems import build, read
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp, transformer

# Ops of a millisecond, which a link of the testbed is fast enough for.
SLOW = replace(cluster().device, peak_flops={"float32": 1e8}, kernels={})
KINDS = of_two_kinds(replace(cluster(), devices={"": SLOW}), slower=3.0)
PROGRAM = transformer(layers=5, batch=8)
SHORT = transformer(layers=3, batch=8)
TWO_LAYERS = transformer(layers=2, batch=2)
SOME = Budget(evaluations=1e3)
ASKED: dict[str, Any] = {"cluster": "1*fastx2 + 1*slowx2", "profile": KINDS, "budget": SOME}


@cache
def planned(program: Program = PROGRAM, **options: Any) -> Plan:
    return autoddl.optimize(program, **ASKED, **options)


def layers(plan: Plan, part: int) -> int:
    """Return of how many layers a part has ops."""
    modules = [plan.program.op[name].module for name in plan.parts[part].layout.signatures]
    return len({layer_path(module) for module in modules if ".blocks." in module})


def test_every_op_is_on_one_part_and_every_device_in_one() -> None:
    plan = planned(SHORT, pipeline=3, micro_batches=4)
    assert sorted(rank for part in plan.parts for rank in part.ranks) == [0, 1, 2, 3]
    ops = [op for part in plan.parts for op in part.layout.signatures]
    assert sorted(ops) == sorted(plan.program.op)
    assert len({part.mesh.size for part in plan.parts}) == 2
    assert codec.encode(codec.decode(codec.encode(plan), "again", engines.model)) == codec.encode(
        plan
    )


def test_the_slow_devices_get_fewer_layers() -> None:
    plan = planned(pipeline=4, micro_batches=8)
    count = {part.ranks[0]: layers(plan, number) for number, part in enumerate(plan.parts)}
    assert min(count[0], count[1]) > max(count[2], count[3])


def test_knowing_the_kinds_beats_stages_of_equal_length() -> None:
    """The blind plan is that for four slow devices, as many as keep no other waiting."""
    blind = autoddl.optimize(
        PROGRAM, mesh="1", pipeline=4, micro_batches=4, profile=KINDS.part(["slow"]), budget=SOME
    )
    knowing = planned(pipeline=4, micro_batches=4)
    assert knowing.estimate.step_s < 0.8 * blind.estimate.step_s


@pytest.mark.parametrize("options", [{"pipeline": 2}, {}, {"parts": "equal", "pipeline": 2}])
def test_the_bound_holds(options: dict[str, Any]) -> None:
    plan = planned(TWO_LAYERS, **options)
    assert 0 < plan.search.lower_bound_s <= plan.estimate.step_s * (1 + 1e-9)
    assert 0 <= plan.search.gap < 1


def test_equal_parts_are_equal() -> None:
    plan = planned(parts="equal", pipeline=2, micro_batches=4)
    assert [part.mesh.size for part in plan.parts] == [2, 2]


def test_unlike_parts_of_devices_that_are_alike() -> None:
    plan = autoddl.optimize(
        SHORT, cluster="3", profile=cluster(), parts="any", pipeline=2, micro_batches=4, budget=SOME
    )
    assert sorted(part.mesh.size for part in plan.parts) == [1, 2]


@pytest.mark.parametrize(
    ("text", "profile", "options"),
    [
        ("1*v100x8 + 1*v100x4", "v100-8x", {"pipeline": 2, "micro_batches": 2}),
        ("1*fastx2 + 1*fastx1", KINDS, {"micro_batches": 4}),
        ("1*slowx1 + 1*fastx2 + 1*slowx1", KINDS, {"pipeline": 3, "micro_batches": 4}),
    ],
)
def test_nodes_of_unlike_size_share_no_part(
    text: str, profile: Any, options: dict[str, Any]
) -> None:
    """Each part is in one node, or is some whole nodes of one size; all devices are used."""
    plan = autoddl.optimize(SHORT, cluster=text, profile=profile, budget=SOME, **options)
    nodes = Cluster.parse(text)
    assert sorted(rank for part in plan.parts for rank in part.ranks) == list(range(nodes.size))
    for part in plan.parts:
        units = {nodes.unit(rank) for rank in part.ranks}
        sizes = {nodes.unit_sizes[unit] for unit in units}
        assert len(units) == 1 or (len(sizes) == 1 and part.mesh.size == len(units) * max(sizes))
    assert plan.search.lower_bound_s <= plan.estimate.step_s * (1 + 1e-9)


def test_parts_of_nodes_of_unlike_size() -> None:
    found = [
        (one.needs, one.mesh.describe(), one.kinds)
        for one in part_classes(Cluster.parse("2*ax2 + 1*ax4 + 1*bx2"), 1)
    ]
    assert sorted(found) == [
        ((0, 0, 1), "[gpu 1]", ("b",)), ((0, 0, 2), "[gpu 2]", ("b",)),
        ((0, 1, 0), "[gpu 1]", ("a",)), ((0, 2, 0), "[gpu 2]", ("a",)),
        ((0, 4, 0), "[gpu 4]", ("a",)), ((1, 0, 0), "[gpu 1]", ("a",)),
        ((2, 0, 0), "[gpu 2]", ("a",)),
    ]  # fmt: skip
    several = {one.needs: str(one.mesh) for one in part_classes(Cluster.parse("3*ax2 + 1*bx4"), 2)}
    assert several[4, 0] == "2x2" and several[6, 0] == "3x2" and several[0, 4] == "2x2"


def test_links_of_nodes_of_unlike_size_are_those_of_equal_ones() -> None:
    """What parts send crosses the same levels as where the smaller node is filled up."""
    unlike, equal = (Links(cluster(), Cluster.parse(text)) for text in ("1*ax8 + 1*ax4", "2*ax8"))
    for ends in (((0,), (7,)), ((7,), (8,)), ((0, 1, 2, 3), (4, 5, 6, 7)), ((4, 5, 6, 7), (8, 9))):
        assert unlike.seconds(*ends, 1e6) == equal.seconds(*ends, 1e6)
    assert unlike.seconds((7,), (8,), 1e6) > 2 * unlike.seconds((0,), (7,), 1e6)


def test_each_kind_has_its_own_memory() -> None:
    """What the slow devices lack in memory goes to the fast ones."""
    free = planned(SHORT, pipeline=2, micro_batches=4)
    need = {part.ranks[0] // 2: part.memory_bytes for part in free.parts}
    limit = int(0.8 * need[1])
    plan = autoddl.optimize(SHORT, **ASKED, pipeline=2, micro_batches=4, memory={"slow": limit})
    held = {part.ranks[0] // 2: part.memory_bytes for part in plan.parts}
    assert held[1] <= limit < need[1]


def test_where_parts_can_be_placed_in_too_many_ways_stages_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked for, that is told."""
    monkeypatch.setattr(placed_parts, "MOST_EDGES", 2000)
    asked = partial(read, PROGRAM, cluster="4*fastx8 + 4*slowx8", profile=KINDS)
    found = list(staged_trials(asked(), partial(micro_batch, PROGRAM)))
    stages = {trial.candidate.stages for trial in found}
    assert stages == {1, 2, 4, 8}  # the batch has no more samples for micro-batches
    with pytest.raises(AutoDDLError, match=r"ways to place parts .*; plan with parts='equal'"):
        list(staged_trials(asked(parts="any"), partial(micro_batch, PROGRAM)))


def test_parts_of_any_size_start_from_equal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the budget ends they are not slower; and no search is made twice."""
    searched = []

    def noted(network: CostNetwork, options: SearchOptions) -> SearchResult:
        searched.append((network.mesh, network.profile.kinds, id(network.program)))
        return SOLVERS["exact"](network, options)

    monkeypatch.setattr(staged_trial, "SOLVERS", {"exact": noted})
    asked = read(TWO_LAYERS, cluster="1*fastx2 + 1*slowx2", profile=KINDS, parts="any")
    trials = sorted(staged_trials(asked, partial(micro_batch, TWO_LAYERS)), key=lambda t: t.turn())
    stages = [trial.candidate.stages for trial in trials]
    assert all(stages[: stages.index(0)]) and not any(stages[stages.index(0) :])
    unlike = autoddl.optimize(TWO_LAYERS, **ASKED, parts="any", pipeline="auto")
    assert len(searched) == len(set(searched)) > 0
    equal = planned(TWO_LAYERS, parts="equal", pipeline="auto")
    assert unlike.estimate.step_s <= equal.estimate.step_s


def test_nodes_as_parts_are_tried_first_and_any_parts_last() -> None:
    asked = read(PROGRAM, cluster="2*fastx2 + 2*slowx2", profile=KINDS, parts="any")
    trials = sorted(staged_trials(asked, partial(micro_batch, PROGRAM)), key=lambda t: t.turn())
    stages = [trial.candidate.stages for trial in trials]
    assert (
        stages[0] == 4 and stages[-1] == 0 and stages.index(0) > max(map(stages.index, (1, 2, 8)))
    )


def test_what_one_part_sends_is_in_its_bound() -> None:
    """The first bound has ops alone, the second what the search proved; no plan is below either."""
    asked = read(
        PROGRAM,
        cluster="1*fastx2 + 1*slowx2",
        profile=KINDS,
        parts="equal",
        pipeline=1,
        micro_batches=4,
    )
    (trial,) = staged_trials(asked, partial(micro_batch, PROGRAM))
    ops_s, proven_s, solution = islice(trial.search(SOME.begin(), rough=True), 3)
    assert isinstance(ops_s, float) and isinstance(proven_s, float)
    assert isinstance(solution, Solution) and isinstance(solution.found, Staged)
    assert 0 < ops_s < proven_s <= solution.found.bounded_s * (1 + 1e-9)
    assert solution.result.lower_bound_s == proven_s


@pytest.mark.parametrize("count", [2, 8, 4])
def test_what_has_to_be_beaten_changes_no_better_plan(count: int) -> None:
    """A slower plan is not returned; a better one is the same as without anything to beat."""
    asked = read(SHORT, cluster="1*fastx2 + 1*slowx2", profile=KINDS, parts="any")
    trials = staged_trials(asked, partial(micro_batch, SHORT))
    (trial,) = (t for t in trials if (t.candidate.stages, t.candidate.micro_batches) == (0, count))
    *_, solution = trial.search(SOME.begin(), rough=True)
    assert isinstance(solution, Solution)
    step_s = solution.judged_s
    for below_s in (1.001 * step_s, 1.1 * step_s):
        *_, found = trial.search(SOME.begin(), rough=True, below_s=below_s)
        assert isinstance(found, Solution) and found.judged_s == pytest.approx(step_s)
    *_, last = trial.search(SOME.begin(), rough=True, below_s=0.9 * step_s)
    assert not isinstance(last, Solution)


def test_other_numbers_of_parts_are_looked_at_where_the_first_is_too_slow() -> None:
    """Two parts are fastest by their closed form, 11 s simulated; three take 9; 10 are to be beaten."""
    found = {
        number: SimpleNamespace(stages=number, timeline=SimpleNamespace(step_s=step_s))
        for number, step_s in ((2, 11.0), (3, 9.0))
    }
    graph = SimpleNamespace(of=lambda number: found[number])
    known: Any = SimpleNamespace(
        parts=graph, graphs=[graph], numbers=(2, 3), fits=lambda staged: True,
        _least_s=lambda staged: staged.timeline.step_s,
        _none_is_faster=lambda below_s: False,
        _tried=lambda parts, again, below_s, close=0: iter([found[2] if parts is graph else parts]),
    )  # fmt: skip
    assert cuts.Cuts.best(known, 10.0) is found[3]
    assert cuts.Cuts.best(known, 8.0) is None


def test_cuts_that_are_alike_by_their_closed_form_are_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One long op decides the closed form of many cuts; the shorter step of two counts."""
    inner = (128, 96, 192, 64, 64, 256, 64, 128, 256, 64, 256, 96)
    inner += (64, 64, 192, 192, 64, 96, 64, 256, 192, 64, 256, 64)
    program, step_s = mlp(256, (*inner, 1024)), []
    for close in (cuts.CLOSE, cuts.CLOSE[:1], cuts.CLOSE[1:]):
        monkeypatch.setattr(cuts, "CLOSE", close)
        found = autoddl.optimize(
            program, profile=cluster(), mesh="1", pipeline=6, micro_batches=16,
            budget=Budget(evaluations=500),
        )  # fmt: skip
        step_s.append(found.estimate.step_s)
    assert step_s[0] == min(step_s[1:]) < 0.97 * max(step_s[1:])


def test_more_in_flight_is_what_a_cut_made_so_would_be() -> None:
    program = micro_batch(SHORT, 4)
    problem = build(program, Mesh.parse("1"), cluster())
    assigned = Assigned(problem, assignments(problem)["data parallel"])
    links, found = Links(cluster(), Cluster.parse("3")), positions(program)
    cut = partial(Staged.equal, assigned, found, (found.count // 3, found.count // 2), 4, links)
    strict, more = cut(), cut(in_flight=(4, 4, 2))
    assert strict.timeline.step_s > 0 and strict.memory  # computed before
    changed = strict.with_in_flight((4, 4, 2))
    assert changed.timeline == more.timeline != strict.timeline
    assert changed.memory == more.memory != strict.memory
    assert changed.flying == more.flying and strict.in_flight == (3, 2, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster": "2*fastx1 + 1*a100x1"}, "no kind 'a100'; its kinds are fast, slow"),
        ({"cluster": "2x2"}, "devices of kinds fast, slow; say which node is what"),
        ({"cluster": "1*fastx2 + 1*slowx2", "pipeline": 5}, "can't be parted into 5 stages"),
        ({"cluster": "1*fastx2 + 1*slowx2", "memory": {"a100": "1GB"}}, "memory of kind 'a100'"),
        ({"cluster": "1*fastx2 + 1*slowx2", "memory": {"slow": "much"}}, "memory: got 'much'"),
        (
            {"cluster": "1*fastx2 + 1*slowx2", "memory": "1KB", "pipeline": 2},
            "needs least, 2 stages of mesh 2 with 2",
        ),
        ({"cluster": "1*fastx2 + 1*slowx2", "parts": "some"}, "parts: got 'some'; allowed are"),
        ({"cluster": "1*fastx2 + 1*slowx2", "mesh": "2"}, "mesh: got [gpu 2] with cluster 1*fast"),
        ({"mesh": "2", "parts": "any"}, "mesh: got 2 with parts='any', where each part has a mesh"),
        (
            {"cluster": "1*fastx2 + 1*slowx1", "objective": "sum"},
            "1*slowx1 with objective='sum'; no ",
        ),
        (
            {"cluster": "1*fastx2 + 1*slowx1", "search": "Megatron"},
            "with search='Megatron'; no mesh ",
        ),
        ({"cluster": "1*fastx2 + 1*slowx1", "pipeline": 1}, "with pipeline=1; no mesh spans nodes"),
        (
            {"cluster": "1*fastx2 + 1*slowx1", "duplex": True},
            "with duplex=True; no mesh spans nodes",
        ),
        ({"cluster": "1*fastx2 + 1*slowx1", "pipeline": 4}, "can't be parted into 4 stages"),
    ],
)
def test_one_line_for_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        autoddl.optimize(TWO_LAYERS, profile=KINDS, budget=SOME, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_one_stage_has_a_mesh_that_parts_may_have() -> None:
    """Cut into prime axes the devices make a mesh of three, which OneFlow's jobs do not execute."""
    asked = {"cluster": "2*fastx2 + 2*slowx2", "profile": KINDS}
    axes = {
        engine: {
            len(mesh.shape)
            for mesh in chain(*mesh_rounds(read(PROGRAM, engine=engines.model(engine), **asked)))
        }
        for engine in ("oneflow", None)
    }
    assert axes == {"oneflow": {2}, None: {2, 3}}
