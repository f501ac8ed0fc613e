"""Signatures in words, and modules in rows: what people would say, each module once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import autoddl
from autoddl.explain.layer_rows import GRAPH, joined, layer_rows, main_ops, modules_of
from autoddl.explain.words import words_of
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.state import NdSbp
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster
from tests.support.programs import transformer

PROGRAM = transformer(layers=3)
TWO, FLAT = Mesh.parse("2x4"), Mesh.parse("4")


@pytest.mark.parametrize(
    ("mesh", "x", "w", "out", "kept", "expected"),
    [
        (TWO, "S0,B", "B,S1", "S0,S2", "B,S1",
         "batch over nodes, columns of the weight over GPUs; weight a copy on each node"),
        (TWO, "S0,S2", "B,S0", "S0,P", "B,S0",
         "batch over nodes, rows of the weight over GPUs; weight a copy on each node; "
         "results to be added up over GPUs"),
        (TWO, "S0,S0", "B,B", "S0,S0", "S0,S1",
         "batch over nodes and GPUs; weight kept in parts over nodes and GPUs, gathered for use"),
        (TWO, "S0,S0", "B,B", "S0,S0", "B,S0",
         "batch over nodes and GPUs; weight a copy on each node and kept in parts over GPUs, "
         "gathered for use"),
        (TWO, "S1,B", "B,B", "S1,B", "B,B",
         "dim 1 of the activations over nodes, the same on each GPU; weight a copy on every device"),
        (FLAT, "B", "B", "B", "B", "all of it on every device; weight a copy on every device"),
        (FLAT, "P", "B", "P", "B",
         "parts of sums over GPUs; weight a copy on every device; results to be added up over GPUs"),
    ],
)  # fmt: skip
def test_a_product_in_words(mesh: Mesh, x: str, w: str, out: str, kept: str, expected: str) -> None:
    op = main_ops(PROGRAM, modules_of(PROGRAM)["model.blocks.0.fc1"])[0]
    weight = dict(op.inputs)["b_0"]
    if op.attr["transpose_b"]:
        swap = str.maketrans("01", "10")
        w = w.translate(swap)
    texts = {"a_0": x, "b_0": w, "out_0": out}
    signature: Mapping[str, NdSbp] = {o: NdSbp.parse(s, mesh) for o, s in texts.items()}
    words = words_of(PROGRAM, op, signature, mesh, {weight: NdSbp.parse(kept, mesh)})
    assert str(words) == expected


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["model.head"], "model.head"),
        ([f"model.blocks.{n}.fc1" for n in range(24)], "model.blocks.0 … 23.fc1 (24 times)"),
        ([f"model.blocks.{n}" for n in (3, 4)], "model.blocks.3 … 4 (2 times)"),
        ([f"blocks.{n}.fc" for n in (0, 1, 2, 7)], "blocks.[0-2, 7].fc (4 times)"),
        ([f"blocks.{n}.fc" for n in range(0, 60, 2)], "blocks.*.fc (30 times)"),
        (["a.0.b.1", "a.1.b.0"], "a.*.b.* (2 times)"),
    ],
)
def test_equal_modules_have_one_name(modules: list[str], expected: str) -> None:
    assert joined(modules) == expected


@pytest.mark.parametrize("search", ["Megatron", "data parallel", "ZeRO 2"])
def test_each_module_has_one_row(search: str) -> None:
    plan = autoddl.optimize(PROGRAM, mesh="2x4", profile=cluster(), search=search, budget=LITTLE)
    rows = layer_rows(plan)
    modules = [name for row in rows for name in row.modules]
    forward = {op.module or GRAPH for op in PROGRAM.ops if op.phase == "forward"}
    assert len(modules) == len(set(modules)) and set(modules) == forward
    layered = [row for row in rows if row.modules[0].startswith("model.blocks.")]
    assert layered and all(len(row.modules) == 3 for row in layered)
    of_plan = [row for row in plan.rows if row.module in forward]
    for name in ("compute_s", "communication_s", "memory_bytes"):
        told, planned = (sum(getattr(row, name) for row in of) for of in (rows, of_plan))
        assert told == pytest.approx(planned)


def test_a_row_is_there_for_its_product() -> None:
    ops = modules_of(PROGRAM)["model.blocks.0.fc1"]
    assert len(ops) > 1 and "matmul" in main_ops(PROGRAM, ops)[0].type
