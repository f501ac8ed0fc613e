"""Ops that rearrange, repeat or pick elements."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case


def _slice(start: str, stop: str, step: str) -> dict[str, Any]:
    bounds = {"start": start, "stop": stop, "step": step}
    return {name: tuple(map(int, text.split())) for name, text in bounds.items()}


_RESHAPES = (
    "8 12 -> 8 12", "8 8 12 -> 8 8 3 4", "4 8 3 4 -> 4 8 12", "1 4 8 -> 4 8", "4 8 -> 1 4 1 8",
    "4 8 12 -> 32 12", "16 12 -> 4 4 12", "8 12 -> 12 8", "12 4 -> 8 6", "4 6 8 -> 8 3 8",
    "8 -> 8", "1 -> ",
)  # fmt: skip

CASES: tuple[OpView, ...] = (
    *(
        case("reshape", f"in: {before} -> out: {after}", shape=tuple(map(int, after.split())))
        for before, after in (text.split(" -> ") for text in _RESHAPES)
    ),
    case("reshape_like", "in: 4 8, like: 4 1 8 -> out: 4 1 8"),
    case("expand_dims", "in: 4 8 -> out: 4 1 8", axis=1),
    case("squeeze", "in: 4 1 8 -> out: 4 8", axes=(1,)),
    case("transpose", "input: 4 8 -> output: 4 8", perm=(0, 1)),
    case("transpose", "input: 4 8 4 12 -> output: 4 4 12 8", perm=(2, 0, 3, 1)),
    case("slice", "x: 12 8 4 -> y: 4 8 4", **_slice("4 0 0", "8 8 4", "1 1 1")),
    case("slice", "x: 4 8 -> y: 4 4", **_slice("0 0", "4 8", "1 2")),
    case("slice_grad", "dy: 4 8 4 -> dx: 12 8 4",
         **_slice("4 0 0", "8 8 4", "1 1 1"), like_shape=(12, 8, 4)),
    case("slice_grad", "dy: 4 4 -> dx: 4 8", **_slice("0 1", "4 8", "1 2"), like_shape=(4, 8)),
    case("expand", "in: 4 8 -> out: 4 4 8", expand_shape=(4, 4, 8)),
    case("expand", "in: 4 1 8 -> out: 4 12 8", expand_shape=(4, 12, 8)),
    case("broadcast_like", "x:, like: 4 8 -> y: 4 8", broadcast_axes=(0, 1)),
    case("broadcast_like", "x: 4 1, like: 4 8 -> y: 4 8", broadcast_axes=(1,)),
    case("broadcast_like", "x: 4, like: 4 8 4 -> y: 4 8 4", broadcast_axes=(1, 2)),
    case("broadcast_like", "x: 8 1, like: 4 8 4 -> y: 4 8 4", broadcast_axes=(0, 2)),
)  # fmt: skip
