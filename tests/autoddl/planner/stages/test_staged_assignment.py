"""Cuts of assignments: every reader gets what it wants, over one transfer to each stage that reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from autoddl.perfmodel.topology import Crossing
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.boxing import ALL_GATHER
from autoddl.sbp.layout import OUTPUT
from autoddl.sbp.mesh import Cluster, Level, Mesh
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.sbp.rewrites.tied_sums import accumulated, is_late, sums_once, tied_sums
from autoddl.sbp.state import NdSbp
from autoddl.search.network.cost_network import CostNetwork
from experiments.lib import oneflow_problems as builder
from tests.search.objects import edges_of, nodes_of
from tests.support.clusters import cluster
from tests.support.pipelines import once_s, pass_s
from tests.support.programs import tied
from tests.support.zoo import ZOO

MICRO_BATCHES = 4


def problem_of(name: str, mesh: str) -> CostNetwork:
    part = micro_batch(ZOO[name](), 2)
    return builder.build(part, Mesh.parse(mesh), cluster())


def random_cuts(problem: CostNetwork, number: int = 10) -> Iterator[Staged]:
    """Cut random assignments anywhere: most tensors are redistributed, and cuts go through layers."""
    found = positions(problem.program)
    rng = np.random.default_rng(3)
    for _ in range(number):
        assignment = tuple(int(rng.integers(len(node.choices))) for node in nodes_of(problem))
        stages = int(rng.integers(2, 5))
        bounds = sorted(rng.choice(np.arange(1, found.count), stages - 1, replace=False).tolist())
        whole = Cluster((Level("node", stages), *problem.mesh.cluster.levels[-1:]))
        links = Links(problem.profile, whole)
        yield Staged.equal(Assigned(problem, assignment), found, bounds, MICRO_BATCHES, links)


@pytest.fixture(scope="module", params=[(n, m) for n in ZOO for m in ("2", "2x2")], ids=str)
def cuts(request: pytest.FixtureRequest) -> list[Staged]:
    return list(random_cuts(problem_of(*request.param)))


def readers(staged: Staged) -> Iterator[tuple[str, str, str, int]]:
    """Yield (tensor, op, operand, stage of the op) of all reads of planned tensors."""
    for op in staged.program.ops:
        for operand, tensor in op.inputs:
            if tensor in staged.made:
                yield tensor, op.name, operand, staged.stage_of[op.name]


def test_a_tensor_goes_once_to_each_other_stage_that_reads_it(cuts: list[Staged]) -> None:
    for staged in cuts:
        wanted = {
            (tensor, stage)
            for tensor, _, _, stage in readers(staged)
            if stage != staged.where(tensor)
        }
        sent = Counter((t.tensor, t.target) for t in staged.transfers)
        assert set(sent) == wanted
        assert set(sent.values()) <= {1}
        assert wanted


def test_redistributions_have_readers_in_one_stage(cuts: list[Staged]) -> None:
    for staged in cuts:
        for item in staged.redistributions:
            stages = {
                staged.where(item.tensor) if op == OUTPUT else staged.stage_of[op]
                for op, _ in item.readers
            }
            assert len(stages) == 1
            assert item.path


def test_no_reader_is_in_two_redistributions(cuts: list[Staged]) -> None:
    for staged in cuts:
        found = Counter(
            (item.tensor, reader) for item in staged.redistributions for reader in item.readers
        )
        assert set(found.values()) <= {1}


def test_transfer_and_redistribution_are_the_planned_path(cuts: list[Staged]) -> None:
    for staged in cuts:
        planned = {
            (item.tensor, reader): item.path
            for item in staged.assigned(0).layout.redistributions
            for reader in item.readers
        }
        sent = {(t.tensor, t.target): t.path for t in staged.transfers}
        after = {
            (item.tensor, reader): item.path
            for item in staged.redistributions
            for reader in item.readers
        }
        for tensor, op, operand, stage in readers(staged):
            reader = (op, operand)
            path = (*sent.get((tensor, stage), ()), *after.get((tensor, reader), ()))
            assert path == planned.get((tensor, reader), ())
        for tensor in staged.program.outputs:
            reader = (OUTPUT, "")
            assert after.get((tensor, reader), ()) == planned.get((tensor, reader), ())


def test_every_reader_gets_the_state_that_it_wants(cuts: list[Staged]) -> None:
    for staged in cuts:
        arrived = {(t.tensor, t.target): staged.arrived(t) for t in staged.transfers}
        after = {
            (item.tensor, reader): item.path[-1]
            for item in staged.redistributions
            for reader in item.readers
        }
        signatures = staged.assigned(0).layout.signatures
        for tensor, op, operand, stage in readers(staged):
            here = arrived.get((tensor, stage), staged.made[tensor])
            state = after.get((tensor, (op, operand)), here)
            assert state == signatures[op][operand], (tensor, op, operand)


def test_a_tensor_is_sent_where_fewest_bytes_go(cuts: list[Staged]) -> None:
    """Of the states on the way that all readers there share; partial sums only if all are."""
    for staged in cuts:
        planned = {
            (item.tensor, reader): item.path
            for item in staged.assigned(0).layout.redistributions
            for reader in item.readers
        }
        for item in staged.transfers:
            paths = [
                planned.get((tensor, (op, operand)), ())
                for tensor, op, operand, stage in readers(staged)
                if (tensor, stage) == (item.tensor, item.target)
            ]
            states = [staged.made[item.tensor]]
            for column in zip(*paths, strict=False):
                if len(set(column)) > 1:
                    break
                states.append(column[0])
            whole = [state for state in states if not _is_partial(state)]
            sizes = [staged.local(item.tensor, state, 0) for state in whole or states]
            assert _is_partial(staged.arrived(item)) == (not whole)
            assert staged.local(item.tensor, staged.arrived(item), 0) == min(sizes)


def _is_partial(state: NdSbp) -> bool:
    return any(sbp.is_partial for sbp in state)


def test_stages_share_all_the_work_of_the_assignment(cuts: list[Staged]) -> None:
    """Compute is the same, wherever it is cut; a tensor takes at least its dearest redistribution."""
    for staged in cuts:
        problem, assignment = staged.assigned(0).problem, staged.assigned(0).assignment
        seconds = {
            stream: sum(spent.seconds for spent in staged.planned if spent.stream == stream)
            for stream in ("compute", "boxing")
        }
        assert seconds["compute"] == pytest.approx(problem.compute_s(assignment))
        dearest = 0.0
        for edge in edges_of(problem):
            row = edge.table.cost[edge.source[assignment[edge.producer]]]
            dearest += max(row[i] for i in edge.wanted(assignment))
        assert seconds["boxing"] >= dearest * (1 - 1e-9)
        step = staged.step
        work = sum(pass_s(w) + once_s(w) for w in step.stages)
        added = sum(spent.seconds for spent in staged.added)
        assert work == pytest.approx(sum(seconds.values()) + added)


def test_a_step_takes_as_long_as_its_busiest_stream_at_least(cuts: list[Staged]) -> None:
    for staged in cuts:
        for work in staged.step.stages:
            parts = [*MICRO_BATCHES * (work.forward + work.backward), *work.once]
            for stream in ("compute", "boxing"):
                busy = sum(seconds for name, seconds in parts if name == stream)
                assert staged.timeline.step_s >= busy * (1 - 1e-9)


def test_stages_are_numbered_along_the_forward_pass(cuts: list[Staged]) -> None:
    for staged in cuts:
        forward = [staged.stage_of[op.name] for op in staged.program.ops if op.phase == "forward"]
        assert forward == sorted(forward)
        assert set(forward) == set(range(staged.stages))
        for item in staged.transfers:
            producer = staged.program.producer.get(item.tensor)
            forwards = producer is None or producer.phase == "forward"
            assert (item.target > staged.where(item.tensor)) == forwards


def test_a_tied_weight_and_its_gradients_are_sent_once() -> None:
    """Each stage sums up its own; they are added in the first one, where the update is, or before it."""
    problem = builder.build(tied(), Mesh.parse("2"), cluster())
    program, found = problem.program, positions(problem.program)
    (parameter,) = (p for p in program.parameters if p.tensor == "model.weight")
    total = program.producer[parameter.gradient or ""]
    moved = replace(found, op={**found.op, total.name: found.count - 1})
    links = Links(problem.profile, Mesh.parse("2x2").cluster)
    assignment = tuple(0 for _ in nodes_of(problem))
    for places, home in ((found, 0), (moved, 1)):
        staged = Staged.equal(Assigned(problem, assignment), places, (found.count // 2,), 4, links)
        parts = [(t, staged.stage_of[program.producer[t].name]) for _, t in total.inputs]
        wanted = {("model.weight", 1), *((t, home) for t, stage in parts if stage != home)}
        wanted |= {(str(parameter.gradient), 0)} if home else set()
        once = {(t.tensor, t.target) for t in staged.transfers if t.seconds is None}
        assert len({stage for _, stage in parts}) == 2 and once == wanted
        assert not {t.tensor for t in staged.step.transfers} & {tensor for tensor, _ in once}
        late = {s.of[0] for s in staged.planned if s.phase == "once" and s.stream == "boxing"}
        assert late >= {staged.maker(tensor) for tensor, _ in once}  # they are priced
        assert staged.program.op[total.name].phase == "optimizer"
        assert set(accumulated(staged.program)) >= {t for t, _ in parts}
        assert parameter.gradient not in accumulated(staged.program)


def test_gradients_of_one_stage_are_added_for_each_micro_batch() -> None:
    program = tied()
    ((total, _),) = tied_sums(program)
    stage_of = dict.fromkeys(program.op, 0)
    assert sums_once(program, stage_of)[0] is program and not any(map(is_late, program.ops))
    first = program.producer[total.inputs[0][1]].name
    late, _ = sums_once(program, {**stage_of, first: 1})
    assert [op.name for op in late.ops if is_late(op)] == [total.name]
    assert positions(late).op[total.name] == positions(late).held["model.weight"]


LEVELS = Cluster((Level("node", 2), Level("gpu", 4)))


@pytest.mark.parametrize(
    ("size", "source", "target", "level", "groups"),
    [
        (1, 0, 1, "gpu", 1),  # neighbours in a node
        (1, 3, 4, "node", 1),
        (2, 0, 1, "gpu", 2),  # two pairs at once, each with links of its own
        (2, 1, 2, "node", 2),
        (4, 0, 1, "node", 4),  # a node sends to the other one
        (4, 1, 0, "node", 4),
    ],
)
def test_a_transfer_goes_over_the_outermost_level_between_two_stages(
    size: int, source: int, target: int, level: str, groups: int
) -> None:
    """Devices lie one behind the other: number d is in node d // 4."""
    profile = cluster()
    links = Links(profile, LEVELS)
    ends = [tuple(range(stage * size, (stage + 1) * size)) for stage in (source, target)]
    devices = range(size)
    nodes = [((source * size + d) // 4, (target * size + d) // 4) for d in devices]
    assert any(a != b for a, b in nodes) == (level == "node")
    expected = profile.collective_s(ALL_GATHER, Crossing(level, 2, groups=groups), 2 * 1000)
    assert links.seconds(ends[0], ends[1], 1000) == expected
