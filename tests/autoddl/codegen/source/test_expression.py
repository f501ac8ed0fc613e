"""Python texts of expressions and lines, as a Python parser and ruff want them."""

from __future__ import annotations

import ast
import math

import pytest

from autoddl.codegen.source.expression import Expr, binary, call, indexed, literal, number
from autoddl.codegen.source.source_lines import docstring, entry, laid_out, split_arguments


def test_parentheses_come_where_python_needs_them() -> None:
    a, b, c = Expr("a"), Expr("b"), Expr("c")
    total = binary(a, "+", b)
    assert binary(total, "*", c).text == "(a + b) * c"
    assert binary(c, "-", total).text == "c - (a + b)"
    assert binary(total, "-", c).text == "a + b - c"
    assert binary(c, "/", binary(a, "*", b)).text == "c / (a * b)"
    assert total.atom == "(a + b)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (0.8999999761581421, "0.9"),  # a float32
        (9.99999993922529e-09, "1e-08"),
        (0.35355339059327373, "0.35355339059327373"),  # a float64
        (2.0, "2.0"),
    ],
)
def test_numbers_are_as_short_as_they_can_be(value: float, text: str) -> None:
    assert number(value) == text


def test_calls_are_python() -> None:
    text = call("f", Expr("x"), (1,), [1, 2], "none", dim=0.5, keep=True).text
    assert text == 'f(x, (1,), [1, 2], "none", dim=0.5, keep=True)'
    ast.parse(text)
    assert literal(()) == "()"


def test_texts_are_literals() -> None:
    for text in ('"', "'", "\"'", "\\", "a\nb", "\0", "\u2028", "{x}", "größe", "\ud800"):
        assert ast.literal_eval(literal(text)) == text
        assert ast.literal_eval(literal([text, (text,)])) == [text, (text,)]
        assert eval(indexed(text, end="!"), {"i": 3}) == f"{text}3!"
        assert "\n" not in literal(text)
    assert eval(literal(-math.inf)) == -math.inf


def test_strings_are_not_split() -> None:
    name = "x[\"a, (b\", 'c']"
    assert split_arguments(f"{name}, d") == [name, "d"]
    assert laid_out(f"y = f({name * 6}, e)", 4) == [
        "    y = f(", f"        {name * 6},", "        e,", "    )",
    ]  # fmt: skip


def test_long_calls_are_split_as_the_formatter_does() -> None:
    assert laid_out("x = f(a)", 4) == ["    x = f(a)"]
    assert laid_out(f"x = f({'a' * 50}, {'b' * 44})", 0) == [
        "x = f(", f"    {'a' * 50}, {'b' * 44}", ")",
    ]  # fmt: skip
    parts = ["a" * 40, "b" * 40, "c[1, 2]" * 5]
    assert laid_out(f"x = f({', '.join(parts)})", 0) == [
        "x = f(",
        *(f"    {p}," for p in parts),
        ")",
    ]
    assert laid_out(f"x = ({'a' * 60}) + ({'b' * 60})", 0) is None
    assert split_arguments("a, f(b, c), [d, e]") == ["a", "f(b, c)", "[d, e]"]


def test_entries_and_docstrings_keep_to_the_width() -> None:
    name = "x" * 90
    assert entry(f'"{name}": ', "[B, B]", "(8,)")[0] == "    # (8,)"
    assert entry(f'"{name}": ', "[B, B]")[1:] == ["        B,", "        B,", "    ],"]
    assert docstring("Run it: " + "word " * 30, 4)[:2] == ['    """Run it.', ""]
