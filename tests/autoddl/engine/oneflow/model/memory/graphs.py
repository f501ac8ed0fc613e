"""Task graphs of random programs, for tests of what comes behind the lowering."""

from __future__ import annotations

from hypothesis import strategies as st

from autoddl.engine.oneflow.model.memory.lowering import rank_tasks
from autoddl.engine.oneflow.model.memory.task_graph import RankTasks
from autoddl.engine.oneflow.model.rewrites.gradient_accumulation import summed
from autoddl.sbp.mesh import Mesh
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp, tied

_MESHES = ("2", "2x2")
_PROBLEMS = [
    builder.build(program, Mesh.parse(mesh), cluster())
    for program in (mlp(8, (16, 32, 8), optimizer="adam"), tied())
    for mesh in _MESHES
]


@st.composite
def task_graphs(draw: st.DrawFn) -> RankTasks:
    """Draw the tasks of a rank under a random layout; in every other one gradients are summed up."""
    problem = draw(st.sampled_from(_PROBLEMS))
    layout = assigned_layout(problem, random_assignment(problem, draw(st.integers(0, 99))))
    shape = problem.mesh.shape
    if draw(st.booleans()):
        return rank_tasks(shape, layout, compute_stream=draw(st.booleans()))
    logical = draw(st.booleans())
    return rank_tasks(shape, summed(layout), compute_stream=True, logical_chains=logical)
