"""Masks of dropout in stages: each stage that reads one draws it, none is sent, the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.planner.stages.staged_assignment import Staged
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_program import run_program
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import positions, stages
from autoddl.sbp.rewrites.in_parts.whole_masks import in_one_dropout, is_drawn, with_whole_masks
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.sbp.rewrites.stage_copies import in_each_stage
from experiments.lib.oneflow_problems import build
from tests.autoddl.planner.stages.test_staged_assignment import random_cuts
from tests.sbp.rewrites.test_halves import drawn
from tests.sbp.rewrites.test_whole_masks import program
from tests.support.clusters import cluster


@pytest.fixture(scope="module")
def cuts() -> list[Staged]:
    """Return random cuts of a program whose masks of one shape are drawn once."""
    parts = with_whole_masks(micro_batch(program(), 2), alike=True)
    return list(random_cuts(build(parts, Mesh.parse("2"), cluster())))


def test_each_stage_draws_what_it_reads(cuts: list[Staged]) -> None:
    several = 0
    for staged in cuts:
        producer = staged.program.producer
        assert not any(is_drawn(item.tensor) for item in staged.transfers)
        for op in staged.program.ops:
            for _, tensor in op.inputs:
                made = producer.get(tensor)
                if made is not None and is_drawn(made.name):
                    assert staged.stage_of[made.name] == staged.stage_of[op.name]
        drawing = [op for op in staged.program.ops if is_drawn(op.name)]
        assert all(
            {
                reader.name
                for _, t in op.outputs
                for reader, _ in staged.program.consumers.get(t, ())
            }
            for op in drawing
        )
        several += len(drawing) > 4
    assert several  # or each mask is read in one stage, with two ops each


def test_every_stage_has_states_seconds_and_memory_for_its_masks(cuts: list[Staged]) -> None:
    for staged in cuts:
        layouts = [staged.stage_layout(stage) for stage in range(staged.stages)]
        ops = [name for layout in layouts for name in layout.signatures]
        assert sorted(ops) == sorted(staged.program.op)
        spent = {item.of[0] for item in staged.planned}
        assert all(op.name in spent for op in staged.program.ops if is_drawn(op.name))
        assert staged.timeline.step_s > 0 and min(m.total for m in staged.memory) > 0


def test_numbers_stay_and_one_op_again_is_what_was_parted() -> None:
    whole: Program = program()
    parts, values = with_whole_masks(whole, alike=True), drawn(whole)
    found = positions(parts)
    stage_of = stages(found, [found.count // 3, 2 * found.count // 3])
    each, placed = in_each_stage(parts, stage_of)
    assert len(each.ops) > len(parts.ops) and set(placed) >= set(each.op)
    assert in_each_stage(parts, dict.fromkeys(stage_of, 0))[0] is parts
    expected, made = run_program(parts, values), run_program(each, values)
    for name in (whole.loss, *(p.gradient for p in whole.parameters)):
        np.testing.assert_array_equal(made[str(name)], expected[str(name)])


def test_scripts_have_one_op_for_each_dropout_whatever_stages_draw(cuts: list[Staged]) -> None:
    for staged in cuts:
        if len({part.assigned for part in staged.parts}) == 1:
            layout = in_one_dropout(staged.layout(0))
            assert [op.name for op in layout.program.ops] == [op.name for op in program().ops]
