"""Names in generated code: those of the model, never those of the script or of Python."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from autoddl.codegen.script_facts import inputs_of, top_module
from autoddl.codegen.source.identifiers import (
    boxed_name,
    first_free,
    function_name,
    identifier,
    last_word,
)
from autoddl.sbp.state import NdSbp
from tests.autoddl.codegen.plans import generate, planned
from tests.support.programs import Builder, attention, linear, mse, transformer


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fc1", "fc1"), ("my-layer", "my_layer"), ("lambda", "lambda_"), ("sum", "sum_"),
        ("l", "l_"), ("2x", "x2x"),
    ],
)  # fmt: skip
def test_identifiers_hide_nothing(text: str, name: str) -> None:
    assert identifier(text) == name


def test_functions_are_called_after_modules() -> None:
    assert function_name("encoder.blocks.3", ()) == "block"
    assert function_name("encoder.blocks.3", (), parts=2) == "encoder_block"
    assert function_name("down.0", ()) == "down_layer"
    assert function_name("class.0", ()) == "class_layer"
    assert last_word("blocks.3") == ""


def test_values_in_another_state_say_how() -> None:
    cut, whole, summed = (NdSbp.parse(text) for text in ("(S0)", "(B)", "(P)"))
    assert boxed_name("x", cut, whole) == "x_gathered"
    assert boxed_name("x", summed, whole) == "x_reduced"
    assert boxed_name("x", summed, cut) == "x_scattered"
    assert first_free(["x"], {"x", "x2"}) == "x3"


def test_modules_with_names_of_the_script_hide_nothing() -> None:
    g = Builder()
    x, target = g.input((4, 8, 16)), g.input((4, 8, 16))
    with g.module("model"):
        for name in ("update", "part", "send"):
            with g.module(name):
                x = attention(g, x, 4)
        with g.module("main"):
            x = linear(g, x, 16)
    text = generate(planned(g.program(mse(g, x, target), "sgd"), "2", "data parallel"))
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    assert set(Counter(f.name for f in functions).values()) == {1}
    model = next(f for f in functions if f.name == "forward")
    called = {
        n.func.id
        for n in ast.walk(model)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    stored = {
        n.id for n in ast.walk(model) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    assert "part" in called
    assert not called & stored


def test_inputs_are_called_after_what_reads_them() -> None:
    program = transformer()
    assert top_module(program) == "model"
    assert [(i.name, i.below) for i in inputs_of(program)] == [("ids", 64), ("labels", 64)]
