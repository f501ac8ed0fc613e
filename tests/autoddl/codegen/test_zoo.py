"""Scripts of all models of the zoo, and of functional ones, under random plans, with and without stages.

All ops have templates, and ruff finds nothing: no name that is not there (F821), no line too long.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.api import Plan
from autoddl.perfmodel import profile
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.autoddl.codegen import functional_models
from tests.autoddl.codegen.plans import generate
from tests.autoddl.codegen.test_script import ruff
from tests.support.pipelines import in_stages

# Those that are a model above with other sizes are left out.
MODELS = (
    "mlp", "alexnet", "vgg13", "resnet50", "unet", "gpt", "bert", "vit", "t5", "llama", "dlrm",
    "bert_moe", "vit_moe", "transgan",
)  # fmt: skip


def in_halves(plan: Plan) -> Plan:
    """Return a plan in two stages: the first half of the modules, the rest."""
    assert plan.program is not None
    forward = [op.module for op in plan.program.ops if op.phase == "forward"]
    place = {module: i for i, module in enumerate(dict.fromkeys(forward))}
    return in_stages(plan, 2, 4, lambda module: int(2 * place[module] >= len(place)))


@pytest.mark.oneflow
@pytest.mark.parametrize("name", (*MODELS, *functional_models.MODELS))
def test_ruff_finds_nothing_in_scripts(name: str, tmp_path: Path) -> None:
    import autoddl

    graph, inputs = functional_models.build(name)
    program = autoddl.capture(graph, *inputs)
    problem = builder.build(program, Mesh.parse("2x2"), profile.load(None))
    plan = make_plan(problem, problem.result("random", random_assignment(problem, 0)))
    if name in functional_models.MODELS:
        staged = in_stages(plan, 2, 4, functional_models.halves)
    else:
        staged = in_halves(plan)
    files = [tmp_path / "whole.py", tmp_path / "stages.py"]
    for file, each in zip(files, (plan, staged), strict=True):
        file.write_text(generate(each))
    assert ruff(*files) == ""
