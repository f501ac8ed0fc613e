"""Python expressions as text that knows how tightly it binds.

Only an Expr is code. Whatever else stands in an expression, texts too, is written as a literal: names and
attributes come from files, and must stay data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoddl.sbp.program import Op

ATOM, PRODUCT, SUM, COMPARISON = 9, 5, 4, 2
"""How tightly names and calls, products, sums and comparisons bind."""


@dataclass(frozen=True)
class Expr:
    """Python text, how tightly it binds, and what it was made from.

    `op`, `args` and `shape` are kept for an op whose text stands inside that of its reader: the
    reader's template may have a shorter form for both.
    """

    text: str
    binds: int = ATOM
    op: Op | None = None
    args: Mapping[str, Expr] = field(default_factory=dict)
    shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def at(self, level: int) -> str:
        """Return the text for a place that needs this level, in parentheses if it binds less."""
        return self.text if self.binds >= level else f"({self.text})"

    @property
    def atom(self) -> str:
        """Return the text for a place before a dot."""
        return self.at(ATOM)


def call(function: str, *args: object, **options: object) -> Expr:
    """Return a call of a function with expressions and literals."""
    parts = [literal(a) for a in args] + [f"{k}={literal(v)}" for k, v in options.items()]
    return Expr(f"{function}({', '.join(parts)})")


def literal(value: object) -> str:
    """Return a value as Python text: an expression as it is, a text in quotes."""
    if isinstance(value, Expr):
        return value.text
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, tuple | list):
        inner = ", ".join(literal(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    return repr(value)


def quoted(text: str) -> str:
    """Return a text as a Python string, in double quotes where it has none itself."""
    found = repr(text)
    return f'"{found[1:-1]}"' if found[0] == "'" and '"' not in found else found


def indexed(pattern: str, *, end: str = "") -> str:
    """Return an f-string of a text, then "{i}", then `end` as it is."""
    braces = pattern.replace("{", "{{").replace("}", "}}")
    return f"f{quoted(f'{braces}{{i}}{end}')}"


def number(value: float) -> str:
    """Return the shortest text of a number; what has float32's digits only is written with those."""
    if not math.isfinite(value):
        return f'float("{value}")'
    if value == int(value) and abs(value) < 1e6:
        return repr(float(value))
    short = str(np.float32(value))
    exact = repr(float(value))
    return short if float(np.float32(value)) == value and len(short) < len(exact) else exact


def binary(left: Expr, sign: str, right: Expr) -> Expr:
    """Return `left sign right` with the parentheses that it needs."""
    level = PRODUCT if sign in "*/" else SUM
    return Expr(f"{left.at(level)} {sign} {right.at(level + 1)}", level)


def compared(left: Expr, sign: str, right: Expr) -> Expr:
    return Expr(f"{left.at(COMPARISON + 1)} {sign} {right.at(COMPARISON + 1)}", COMPARISON)


def ordered(args: Mapping[str, Expr], prefix: str) -> Sequence[Expr]:
    """Return the operands of a variadic port in order: in_0, in_1, …"""
    found = {k: v for k, v in args.items() if k.rpartition("_")[0] == prefix}
    return [found[key] for key in sorted(found, key=lambda k: int(k.rpartition("_")[2]))]
