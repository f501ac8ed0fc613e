"""Graphs are traced as for CUDA devices without one; mixed precision is what OneFlow makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import autoddl
from autoddl.engine.oneflow.capture import cuda_stand_in
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program
from experiments.lib import without_gpu
from experiments.lib.programs import captured
from tests.support.layers import equal_runs

LAYERS = 3


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    """GPT's programs by precision; "cpu" that of CPU ranks."""
    from experiments.models import build

    folder = tmp_path_factory.mktemp("cuda")

    def program(name: str, precision: str) -> Program:
        return captured(folder / f"{name}.json", "gpt", "toy", precision, layers=LAYERS)

    found = {name: program(name, name) for name in without_gpu.PRECISIONS}
    graph, inputs = build("gpt", layers=LAYERS)
    found["cpu"] = autoddl.capture(graph, *inputs)
    return found


@pytest.mark.oneflow
def test_a_layer_norm_is_one_op_on_cuda(programs: dict[str, Program]) -> None:
    types = {name: [op.type for op in p.ops] for name, p in programs.items()}
    assert programs["cpu"].device == "cpu" and "layer_norm" not in types["cpu"]
    assert programs["float32"].device == "cuda"
    assert types["float32"].count("layer_norm") == 2 * LAYERS + 1
    assert "cast" not in types["float32"]


@pytest.mark.oneflow
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_products_are_in_half_precision_and_updates_in_float32(
    precision: str, programs: dict[str, Program]
) -> None:
    program, whole = programs[precision], programs["float32"]
    added = [op for op in program.ops if op.name not in whole.op]
    assert {op.type for op in added} == {"cast"} and set(whole.op) <= set(program.op)

    def dtypes(kind: str, phase: str) -> set[str]:
        ops = [op for op in program.ops if kind in op.type and op.phase == phase]
        return {program.tensor[t].dtype for op in ops for _, t in op.operands}

    assert dtypes("matmul", "forward") == dtypes("matmul", "backward") == {precision}
    assert dtypes("update", "optimizer") == {"float32"}
    assert {t.dtype for t in program.tensors if t.role in ("parameter", "state")} == {"float32"}


@pytest.mark.oneflow
def test_layers_are_equal(programs: dict[str, Program]) -> None:
    (run,) = equal_runs(programs["float16"].blocks)  # the first layer reads embeddings, in float32
    assert list(run.repeat.layers) == list(range(1, LAYERS))


@pytest.mark.oneflow
def test_scripts_cast_as_the_graph_does(programs: dict[str, Program], tmp_path: Path) -> None:
    plan = autoddl.optimize(programs["float16"], mesh="2", profile="h100", search="data parallel")
    plan.codegen(tmp_path / "train.py")
    text = (tmp_path / "train.py").read_text()
    compile(text, "train.py", "exec")
    program = programs["float16"]
    casts = [op for op in program.ops if op.type == "cast" and op.phase == "forward"]
    layers = [op for op in casts if op.module.startswith("model.blocks.")]
    written = text.count("flow.cast(")  # equal layers are one function
    assert len(casts) - len(layers) < written <= len(casts)
    assert "flow.float16" in text


def test_no_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(AutoDDLError, match=r"CUDA without a GPU: no C compiler .*name it in CC"):
        cuda_stand_in.environment(tmp_path)
