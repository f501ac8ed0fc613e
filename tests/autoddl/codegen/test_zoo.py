"""Scripts of all models of the zoo, and of functional ones, under random plans, with and without stages,
and over shares.

All ops have templates, and ruff finds nothing: no name that is not there (F821), no line too long.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.api import Plan
from autoddl.engine.oneflow.model.script_model import SCRIPT
from autoddl.perfmodel import profile
from autoddl.plan.value import PlanValue
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import synchronised
from autoddl.sbp.rewrites.in_parts.whole_masks import with_whole_masks
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.autoddl.codegen import functional_models
from tests.autoddl.codegen.plans import generate
from tests.autoddl.codegen.test_script import ruff
from tests.support.pipelines import in_stages
from tests.support.unlike_parts import parted

# Those that are a model above with other sizes are left out.
MODELS = (
    "mlp", "alexnet", "vgg13", "resnet50", "unet", "gpt", "bert", "vit", "t5", "llama", "dlrm",
    "bert_moe", "vit_moe", "transgan",
)  # fmt: skip
BY_SHARES = "resnet50", "llama", "vit_moe"  # BatchNorms, embeddings, experts


def in_halves(plan: Plan) -> Plan:
    """Return a plan in two stages: the first half of the modules, the rest."""
    assert plan.program is not None
    forward = [op.module for op in plan.program.ops if op.phase == "forward"]
    place = {module: i for i, module in enumerate(dict.fromkeys(forward))}
    return in_stages(plan, 2, 4, lambda module: int(2 * place[module] >= len(place)))


def by_shares(program: Program) -> PlanValue:
    """Return a random plan over shares, of what scripts can."""
    parted = with_whole_masks(synchronised(program), alike=False)
    problem = builder.build(parted, Mesh.parse("2:3/1x2"), profile.load(None), engine=SCRIPT)
    return make_plan(problem, problem.result("random", random_assignment(problem, 0)))


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
    plans = {"whole.py": plan, "stages.py": staged}
    if name in BY_SHARES:
        plans["shares.py"] = by_shares(program)
    files = [tmp_path / file for file in plans]
    for file, each in zip(files, plans.values(), strict=True):
        file.write_text(generate(each))
    assert ruff(*files) == ""


@pytest.mark.oneflow
@pytest.mark.parametrize(("name", "sizes"), [("resnet50", {}), ("gpt", {"dropout": 0.1})])
def test_stages_stay_where_batch_norms_and_dropouts_are_in_parts(
    name: str, sizes: dict[str, float], tmp_path: Path
) -> None:
    import autoddl

    graph, inputs = functional_models.build(name, **sizes)
    program = with_whole_masks(synchronised(autoddl.capture(graph, *inputs)), alike=True)
    text = generate(parted(program, ("2", "1"), 2))
    assert "def stage_0(" in text and "def stage_1(" in text
    (tmp_path / "stages.py").write_text(text)
    assert ruff(tmp_path / "stages.py") == ""
