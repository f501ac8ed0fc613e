"""What goes between stages on unlike meshes: over boxings that run where the plan's boxings run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from msgspec import structs

from autoddl.engine.oneflow.model.memory.compute_stream import is_converted
from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile_entries import Link
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.boxing import LOCAL, boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.state import NdSbp
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import transformer


def steps(staged: Staged) -> Iterator[tuple[str, tuple[int, ...], NdSbp, NdSbp]]:
    """Yield all boxings of the stages: tensor, mesh, state before and after."""
    arrived = {(t.tensor, t.target): staged.arrived(t) for t in staged.transfers}
    for sent in staged.transfers:
        mesh = staged.assigned(sent.source).problem.mesh.shape
        for pair in pairwise((staged.made[sent.tensor], *sent.path)):
            yield sent.tensor, mesh, *pair
    for item in staged.redistributions:
        stage = staged.stage(item)
        begin = arrived.get((item.tensor, stage), staged.made[item.tensor])
        for pair in pairwise((begin, *item.path)):
            yield item.tensor, staged.assigned(stage).problem.mesh.shape, *pair


@pytest.mark.parametrize("seed", range(6))
def test_no_boxing_between_stages_leaves_the_compute_stream(seed: int) -> None:
    program, profile = replace(transformer(), device="cuda"), cluster()
    parts, begin = [], 0
    for text in ("2x2", "4"):
        problem = build(program, Mesh.parse(text), profile, compute_stream=True)
        assigned = Assigned(problem, random_assignment(problem, seed))
        parts.append(StagePart(assigned, tuple(range(begin, begin + 4))))
        begin += 4
    found = positions(program)
    links = Links(profile, Mesh.parse("2x4").cluster)
    staged = Staged(parts, found, [found.count // 2], 4, links)
    tensors, moved = program.tensor, 0
    for tensor, mesh, before, after in steps(staged):
        step = boxing(before, after, tensors[tensor].shape, mesh, uneven=True)
        assert step is not None
        runs = is_converted(before.executed, after.executed, mesh)
        assert step.primitive == LOCAL or runs, (tensor, before, after)
        moved += 1
    assert moved > 0


def test_a_transfer_takes_the_fastest_line_of_its_size() -> None:
    """Every device of two sends to one of two others: a message of each size over the links of a node."""
    lines = (Link(SEND_RECEIVE, "gpu", 2, 1e-6, 1e-9), Link(SEND_RECEIVE, "gpu", 2, 1e-4, 1e-10))
    links = Links(structs.replace(cluster(), links=lines), Mesh.parse("4").cluster)
    sizes = np.array([0.0, 1e3, 1e6, 1e9])
    taken = links.all_seconds((0, 1), (2, 3), sizes)
    assert taken == pytest.approx(np.minimum(1e-6 + 1e-9 * sizes, 1e-4 + 1e-10 * sizes))
