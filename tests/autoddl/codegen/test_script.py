"""The generated text: a golden script, what it refuses, and what it says."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.cli.app import main
from autoddl.codegen import register_template, templates
from autoddl.codegen.forward.section import forward_ops
from autoddl.codegen.source.expression import call
from autoddl.engine.oneflow.dialect.script_dialect import DIALECT
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import ParameterGroup
from autoddl.sbp.state import NdSbp
from tests.autoddl.codegen.plans import generate, planned, with_updates
from tests.support.pipelines import in_stages, recomputing
from tests.support.programs import Builder, add, linear, mlp, mse, transformer

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def small() -> Plan:
    return planned(mlp(optimizer="momentum"), "2x2")


@pytest.fixture(scope="module")
def attention() -> Plan:
    return planned(transformer(layers=3), "2x2")


def ruff(*files: Path) -> str:
    """Return what ruff finds in files with this project's line length and rules, "" if nothing."""
    pytest.importorskip("ruff")
    found = ""
    for command in (["check", "--quiet"], ["format", "--diff", "--quiet"]):
        config = ["--no-cache", "--config", str(ROOT / "pyproject.toml")]
        # tables of a script have a line per entry, as ruff's own settings leave them
        config += ["--config", "format.skip-magic-trailing-comma=false"]
        line = [sys.executable, "-m", "ruff", *command, *config, *map(str, files)]
        done = subprocess.run(line, capture_output=True, text=True)
        found += done.stdout + done.stderr
        assert done.returncode == 0 or found, "ruff failed without a word"
    return found


def without_predictions(text: str) -> list[str]:
    """Return the lines of a script but for its costs, which follow the profile."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Predicted: "))
    end = lines.index("", start)
    return lines[:start] + lines[end:]


def test_a_small_script_is_the_golden_one(small: Plan, tmp_path: Path) -> None:
    small.codegen(tmp_path / "train.py")
    text = (tmp_path / "train.py").read_text()
    golden = (HERE / "golden_mlp.py").read_text()
    assert without_predictions(text) == without_predictions(golden)


def test_ruff_finds_nothing(small: Plan, attention: Plan, tmp_path: Path) -> None:
    staged = in_stages(attention, 3, 4, lambda m: int(m.split(".")[2]) if "blocks." in m else None)
    recomputed = recomputing(staged, (0, 2))
    summed = in_stages(small, 1, 4, lambda _: 0)
    plans = [small, attention, staged, recomputed, summed, planned(mlp(), "2x2x2")]
    plans.append(planned(mlp(64, (64, 64, 64)), "4x8"))
    files = []
    for number, plan in enumerate(plans):
        for checked in (False, True):
            files.append(tmp_path / f"plan{number}_{checked}.py")
            files[-1].write_text(generate(plan, checked=checked))
    assert ruff(*files) == ""


def test_scripts_need_only_oneflow_and_numpy(attention: Plan) -> None:
    tree = ast.parse(generate(attention))
    imports = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imports |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    assert imports == {"argparse", "itertools", "logging", "numpy", "oneflow", "oneflow.nn"}


def test_equal_modules_share_one_function(attention: Plan) -> None:
    text = generate(attention)
    assert text.count("\ndef block(") == text.count("\ndef attention(") == 1
    assert text.count("\ndef layer_norm(") == 1
    assert '    for i in range(3):\n        x = block(part(params, f"blocks.{i}"), x)\n' in text


def test_names_are_those_of_the_model(attention: Plan) -> None:
    tree = ast.parse(generate(attention))
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    names = {
        target.id
        for node in ast.walk(functions["block"])
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert {"ln1", "ln2", "fc1", "act", "fc2"} <= names
    inside = ast.unparse(functions["attention"])
    assert all(f"{name} = " in inside for name in ("qkv", "q", "k", "v", "scores", "weights"))


def test_every_redistribution_of_the_forward_pass_is_written(small: Plan) -> None:
    program = small.program
    assert program is not None
    forward = {op.name for op in forward_ops(program)} | {"output"}
    steps = {
        (r.tensor, r.path[: i + 1])
        for r in small.redistributions
        if any(op in forward for op, _ in r.readers)
        for i in range(len(r.path))
    }
    text = generate(small)
    body = text[text.index("def forward") : text.index("def make_optimizer")]
    assert body.count(".to_global(") == body.count("# (") == len(steps) > 0


def test_gradients_come_back_in_the_state_before(small: Plan) -> None:
    lines = generate(small).splitlines()
    (line,) = [n for n in lines if "fc1_weight = " in n]
    assert line.endswith('params["fc1.weight"].to_global(sbp=[B, S(0)], grad_sbp=[S(1), S(0)])')


def test_the_optimizer_is_that_of_the_program() -> None:
    text = generate(planned(mlp(optimizer="adam"), "2", "data parallel"), learning_rate=0.01)
    assert "flow.optim.Adam(trained, lr=learning_rate, betas=(0.9, 0.999), eps=1e-08)" in text
    assert '"--learning-rate", type=float, default=0.01' in text
    program = with_updates(mlp(optimizer="adam"), weight_decay=0.05000000074505806)
    plan = autoddl.optimize(program, mesh="2", search="data parallel")
    assert "AdamW(" in generate(plan)
    assert "weight_decay=0.05" in generate(plan)


def test_groups_have_their_rates_decay_and_clipping(small: Plan, tmp_path: Path) -> None:
    names = [p.tensor for p in small.program.parameters]
    weights = tuple(name for name in names if name.endswith("weight"))
    biases = tuple(name for name in names if name.endswith("bias"))
    groups = (
        ParameterGroup(weights, 0.02, weight_decay=0.1),
        ParameterGroup(biases, 0.01, clip=(0.5, math.inf)),
    )
    text = generate(replace(small, program=replace(small.program, groups=groups)))
    for line in (
        '["fc1.bias", "fc2.bias"],',
        '{"params": [params[name] for name in names[0]], "weight_decay": 0.1},',
        '"lr": learning_rate * 0.5,', '"clip_grad_max_norm": 0.5,',
        '"clip_grad_norm_type": float("inf"),', "optimizer.clip_grad()",
        'parser.add_argument("--learning-rate", type=float, default=0.02)',
    ):  # fmt: skip
        assert line in [written.strip() for written in text.splitlines()]
    (tmp_path / "script.py").write_text(text)
    assert ruff(tmp_path / "script.py") == ""


def test_a_group_that_rests_does_not_stop_the_others(small: Plan) -> None:
    first, *others = (p.tensor for p in small.program.parameters)
    groups = ParameterGroup((first,), 0.0), ParameterGroup(tuple(others), 0.5)
    text = generate(replace(small, program=replace(small.program, groups=groups)))
    assert '{"params": [params[name] for name in names[0]], "lr": learning_rate * 0.0},' in text
    assert '{"params": [params[name] for name in names[1]]},' in text
    assert '"--learning-rate", type=float, default=0.5)' in text


def test_the_schedule_is_that_of_the_graph(small: Plan, tmp_path: Path) -> None:
    (group,) = small.program.groups or [
        ParameterGroup(tuple(p.tensor for p in small.program.parameters), 0.1)
    ]
    step = ("step", (("gamma", 0.5), ("step_size", 3)))
    linear = ("linear_lr", (("end_factor", 1.0), ("start_factor", 0.25), ("total_iters", 4)))
    both = (("interval_rescaling", (0,)), ("milestones", (4,)), ("schedulers", (linear, step)))
    for schedule in (step, ("sequential_scheduler", both)):
        own = replace(group, schedule=schedule)
        text = generate(replace(small, program=replace(small.program, groups=(own,))))
        assert "flow.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)" in text
        assert "        schedule.step()\n" in text
        (tmp_path / "script.py").write_text(text)
        assert ruff(tmp_path / "script.py") == ""
    for schedule in (("none", ()), ("step", (("gamma", 0.5),)), ("step",), ("step", 3), (3, ())):
        own = replace(group, schedule=schedule)
        with pytest.raises(AutoDDLError, match="codegen: "):
            generate(replace(small, program=replace(small.program, groups=(own,))))


def test_programs_that_do_not_tell_decay_or_clipping_are_refused(small: Plan) -> None:
    for kind in ("RegularizeGradient-L1L2", "ClipGradient-Norm"):
        parameters = tuple(
            replace(p, gradient=f"System-{kind}-7/out") for p in small.program.parameters
        )
        with pytest.raises(
            AutoDDLError, match=r"codegen: the program has .*capture the graph again"
        ):
            generate(replace(small, program=replace(small.program, parameters=parameters)))


def test_states_that_oneflow_has_not_are_refused(small: Plan) -> None:
    variables = {**small.variables, "model.fc1.weight": NdSbp.parse("(S0', S0)")}
    part = replace(small.parts[0], layout=replace(small.layout, variables=variables))
    with pytest.raises(
        AutoDDLError, match=r"model.fc1.weight is in state \(S0', S0\).*engine='oneflow'"
    ):
        generate(replace(small, parts=(part,)))


def test_an_unknown_op_is_named_with_the_remedy(
    small: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "_OWN", {})
    monkeypatch.delitem(cast(dict, DIALECT.templates), "gelu")
    with pytest.raises(AutoDDLError, match=r"op .*gelu.* has type 'gelu'.*register_template"):
        generate(small)
    register_template("gelu", lambda op: call("flow.nn.functional.gelu", op.args["in_0"]))
    assert "flow.nn.functional.gelu(fc1)" in generate(small)


def test_a_sum_behind_a_linear_layer_with_bias_is_a_sum(tmp_path: Path) -> None:
    g = Builder()
    x, target = g.input((8, 16)), g.input((8, 32))
    with g.module("model"):
        y = add(g, linear(g, x, 32), g.parameter("shift", (32,)))
    plan = planned(g.program(mse(g, y, target), "sgd"), "2", "data parallel")
    text = generate(plan)
    assert 'F.linear(x, params["weight"], params["bias"]) + params["shift"]' in text
    (tmp_path / "script.py").write_text(text)
    assert ruff(tmp_path / "script.py") == ""


def test_constants_are_made_on_the_devices_of_their_stage(tmp_path: Path) -> None:
    g = Builder()
    x, target = g.input((8, 16)), g.input((8, 32))
    with g.module("model"):
        with g.module("fc"):
            y = linear(g, x, 32)
        with g.module("last"):
            value = {"is_floating_value": True, "floating_value": 0.5, "integer_value": 0}
            half = g.op("constant", "-> out_0", [], (32,), shape=(32,), **value)
            y = linear(g, add(g, y, half), 32)
    plan = planned(g.program(mse(g, y, target), "sgd"), "2", "data parallel")
    staged = in_stages(plan, 2, 2, lambda module: int(module.endswith("last")))
    for name, each in (("PLACEMENT", plan), ("PLACEMENTS[STAGE]", staged)):
        text = generate(each)
        assert f"flow.full((32,), 0.5, dtype=flow.float32, placement={name}, sbp=[" in text
        (tmp_path / "script.py").write_text(text)
        assert ruff(tmp_path / "script.py") == ""


def test_learning_rates_have_their_scales(tmp_path: Path) -> None:
    program = with_updates(mlp(), learning_rate_scale=0.25)
    text = generate(autoddl.optimize(program, mesh="2", search="data parallel"))
    assert '    groups = [{"params": trained, "lr": learning_rate * 0.25}]\n' in text
    (tmp_path / "script.py").write_text(text)
    assert ruff(tmp_path / "script.py") == ""


def test_scripts_that_can_not_be_written_are_refused(small: Plan, tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match=r"codegen: .*none.*: No such file.*; give a path"):
        small.codegen(tmp_path / "none" / "script.py")
    for rate in (math.nan, math.inf):
        with pytest.raises(AutoDDLError, match=r"codegen: learning rate (nan|inf)"):
            small.codegen(tmp_path / "script.py", learning_rate=rate)
    with pytest.raises(AutoDDLError, match="codegen: the graph has no loss"):
        generate(replace(small, program=replace(small.program, loss=None)))
    assert list(tmp_path.iterdir()) == []


def test_the_learning_rate_is_the_default_of_an_option(small: Plan) -> None:
    line = '"--learning-rate", type=float, default=0.025)'
    assert line in generate(small, learning_rate=0.025)


def test_the_command_writes_the_script(
    small: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.save(tmp_path / "plan.json")
    out = tmp_path / "out.py"
    assert main(["codegen", str(tmp_path / "plan.json"), "-o", str(out)]) == 0
    assert capsys.readouterr().err == ""
    assert out.read_text() == generate(small)
    assert main(["codegen", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_stages_send_what_later_ones_read(attention: Plan) -> None:
    staged = in_stages(attention, 3, 4, lambda m: int(m.split(".")[2]) if "blocks." in m else None)
    text = generate(staged)
    rows = [line for line in text.splitlines() if line.startswith('    ("blocks_')]
    assert [row.split(", ")[:3] for row in rows] == [
        ['    ("blocks_0"', "0", "1"],
        ['    ("blocks_1"', "1", "2"],
    ]
    assert text.count("\ndef block(") == 1  # shared by all stages
    assert "def one_f_one_b(stage: int, stages: int, micro_batches: int)" in text


def test_a_recomputed_stage_must_do_the_same_again(small: Plan) -> None:
    program = small.program
    assert program is not None
    staged = in_stages(small, 2, 2, lambda m: int(m.endswith("2")))
    changed = tuple(replace(op, type="dropout") if op.type == "gelu" else op for op in program.ops)
    plan = recomputing(replace(staged, program=replace(program, ops=changed)), (0,))
    with pytest.raises(AutoDDLError, match="stage 0 is computed twice"):
        generate(plan)
