"""Ops that rearrange, repeat or pick elements."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case, each


def _slice(start: str, stop: str, step: str) -> dict[str, Any]:
    bounds = {"start": start, "stop": stop, "step": step}
    return {name: tuple(map(int, text.split())) for name, text in bounds.items()}


def _unfolded(window: str, image: str, columns: str) -> tuple[OpView, OpView]:
    """Return unfold and fold with a window of these kernel, stride, padding and dilation."""
    names = ("kernel_size", "strides", "padding", "dilation_rate")
    sizes = {name: (int(n),) * 2 for name, n in zip(names, window.split(), strict=True)}
    attrs = {**sizes, "data_format": "channels_first"}
    size = tuple(map(int, image.split()[2:]))
    return (
        case("unfold", f"x: {image} -> y: {columns}", **attrs),
        case("fold", f"x: {columns} -> y: {image}", **attrs, output_size=size),
    )


_UNFOLDED = (
    ("2 2 0 1", ("4 8 4 8", "4 32 8")),
    ("3 2 1 1", ("4 4 5 8", "4 36 12")),
    ("2 1 0 2", ("4 4 5 6", "4 16 12")),
)
_RESHAPES = (
    "8 12 -> 8 12", "8 8 12 -> 8 8 3 4", "4 8 3 4 -> 4 8 12", "1 4 8 -> 4 8", "4 8 -> 1 4 1 8",
    "4 8 12 -> 32 12", "16 12 -> 4 4 12", "8 12 -> 12 8", "12 4 -> 8 6", "4 6 8 -> 8 3 8",
    "8 -> 8", "1 -> ", " -> 1", " -> 1 1",
)  # fmt: skip

CASES: tuple[OpView, ...] = (
    *(
        case("reshape", f"in: {before} -> out: {after}", shape=tuple(map(int, after.split())))
        for before, after in (text.split("->") for text in _RESHAPES)
    ),
    case("reshape_like", "in: 4 8, like: 4 1 8 -> out: 4 1 8"),
    *each("reshape_like", "in:, like: 1 -> out: 1", "in: 1, like: -> out:"),
    case("expand_dims", "in: -> out: 1", axis=0),
    case("expand_dims", "in: 4 8 -> out: 4 1 8", axis=1),
    case("squeeze", "in: 4 1 8 -> out: 4 8", axes=(1,)),
    case("transpose", "input: 4 8 -> output: 4 8", perm=(0, 1)),
    case("transpose", "input: 4 8 4 12 -> output: 4 4 12 8", perm=(2, 0, 3, 1)),
    case("slice", "x: 12 8 4 -> y: 4 8 4", **_slice("4 0 0", "8 8 4", "1 1 1")),
    case("slice", "x: 4 8 -> y: 4 4", **_slice("0 0", "4 8", "1 2")),
    case("slice_grad", "dy: 4 8 4 -> dx: 12 8 4",
         **_slice("4 0 0", "8 8 4", "1 1 1"), like_shape=(12, 8, 4)),
    case("slice_grad", "dy: 4 4 -> dx: 4 8", **_slice("0 1", "4 8", "1 2"), like_shape=(4, 8)),
    case("slice_update", "ref: 12 8 4, value: 4 8 4 -> y: 12 8 4",
         **_slice("4 0 0", "8 8 4", "1 1 1")),
    case("slice_update", "ref: 4 8, value: 4 4 -> y: 4 8", **_slice("0 0", "4 7", "1 2")),
    case("roll", "in: 4 8 12 -> out: 4 8 12", shifts=(-1, 5), dims=(1, 2)),
    case("roll", "in: 4 8 -> out: 4 8", shifts=(3,), dims=(-1,)),
    case("roll", "in: 4 8 -> out: 4 8", shifts=(3, 1), dims=(-2, 1)),
    *(view for window, shapes in _UNFOLDED for view in _unfolded(window, *shapes)),
    case("unfold_tensor", "x: 8 10 4 -> y: 8 4 4 4", dimension=1, size=4, step=2),
    case("unfold_tensor", "x: 8 16 -> y: 8 4 3", dimension=1, size=3, step=4),
    case("unfold_tensor_grad", "dy: 8 4 4 4, x: 8 10 4 -> dx: 8 10 4",
          dimension=1, size=4, step=2),
    case("unfold_tensor_grad", "dy: 4 8 4, x: 16 8 -> dx: 16 8", dimension=0, size=4, step=4),
    case("expand", "in: -> out: 4", expand_shape=(4,)),
    case("expand", "in: 4 8 -> out: 4 4 8", expand_shape=(4, 4, 8)),
    case("expand", "in: 4 1 8 -> out: 4 12 8", expand_shape=(4, 12, 8)),
    case("broadcast_like", "x:, like: 4 8 -> y: 4 8", broadcast_axes=(0, 1)),
    case("broadcast_like", "x: 4 1, like: 4 8 -> y: 4 8", broadcast_axes=(1,)),
    case("broadcast_like", "x: 4, like: 4 8 4 -> y: 4 8 4", broadcast_axes=(1, 2)),
    case("broadcast_like", "x: 8 1, like: 4 8 4 -> y: 4 8 4", broadcast_axes=(0, 2)),
)  # fmt: skip
