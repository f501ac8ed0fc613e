"""What stages do besides ops and boxings: buffers and sums of gradients, against a count by hand."""

from __future__ import annotations

import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.pipeline.pipeline_step import StageWork
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import PARTS, Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from experiments.lib.oneflow_problems import build
from tests.support.programs import mlp

PROFILE = profiles.load(None)


def staged(micro_batches: int, bounds: tuple[int, ...]) -> Staged:
    program = micro_batch(mlp(batch=8), micro_batches)
    problem = build(program, Mesh.parse("1"), PROFILE)
    links = Links(PROFILE, Cluster.parse("2", PROFILE.levels))
    only = Assigned(problem, [0] * len(problem))
    return Staged.equal(only, positions(program), bounds, micro_batches, links)


def moved_s(op_type: str, family: str, size: int) -> float:
    return op_s(PROFILE, OpWork(op_type, family, "float32", 0.0, size))


def seconds(found: Staged, stage: int, phase: str) -> float:
    """Return the seconds of a stage's ops alone."""
    return sum(
        spent.seconds
        for spent in found.planned
        if (spent.stage, spent.phase, spent.stream) == (stage, phase, "compute")
    )


def total(parts: tuple[tuple[str, float], ...]) -> float:
    return sum(s for _, s in parts)


def test_one_micro_batch_needs_nothing_more() -> None:
    found = staged(1, (2,))
    for stage in range(2):
        work: StageWork = found.step.stages[stage]
        assert total(work.forward) == pytest.approx(seconds(found, stage, "forward"))
        assert total(work.backward) == pytest.approx(seconds(found, stage, "backward"))


def test_sums_and_buffers() -> None:
    found = staged(2, (2,))
    program, stage_of = found.program, found.stage_of
    for stage, buffered in ((0, True), (1, False)):  # one micro-batch at a time in the last stage
        gradients = [p.gradient for p in program.parameters if stage_of[p.tensor] == stage]
        sums = sum(
            moved_s("add_n", "elementwise", 3 * program.tensor[g].size_bytes)
            for g in gradients
            if g
        )
        kept = {
            tensor
            for op in program.ops
            if op.phase == "backward" and stage_of[op.name] == stage
            for _, tensor in op.inputs
            if tensor in program.inputs
            or (tensor in program.producer and program.producer[tensor].phase == "forward")
        }
        copies = sum(moved_s("identity", "memory", 2 * program.tensor[t].size_bytes) for t in kept)
        work = found.step.stages[stage]
        assert gradients and kept
        assert total(work.backward) == pytest.approx(seconds(found, stage, "backward") + sums)
        assert total(work.forward) == pytest.approx(
            seconds(found, stage, "forward") + copies * buffered
        )


def test_passes_are_in_equal_parts() -> None:
    work = staged(2, (2,)).step.stages[0]
    assert len(work.forward) == len(work.backward) == PARTS
    assert len({s for _, s in work.forward}) == 1
