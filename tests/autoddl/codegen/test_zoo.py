"""Scripts of all models of the zoo, under random plans: ruff finds nothing, all ops have templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.codegen import generate
from autoddl.make_plan import make_plan
from autoddl.perfmodel import profile
from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.random import random_assignment
from tests.autoddl.codegen.test_script import ruff

# Those that are a model above with other sizes are left out.
MODELS = (
    "mlp", "alexnet", "vgg13", "resnet50", "unet", "gpt", "bert", "vit", "t5", "llama", "dlrm",
    "bert_moe", "vit_moe",
)  # fmt: skip


@pytest.mark.oneflow
@pytest.mark.slow
def test_ruff_finds_nothing_in_scripts_of_the_zoo(tmp_path: Path) -> None:
    import autoddl
    from experiments.models import build

    files = []
    for seed, name in enumerate(MODELS):
        graph, inputs = build(name)
        program = autoddl.capture(graph, *inputs)
        problem = builder.build(program, Mesh.parse("2x2"), profile.load(None))
        plan = make_plan(problem, problem.result("random", random_assignment(problem, seed)))
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(generate(plan))
    assert ruff(*files) == ""
