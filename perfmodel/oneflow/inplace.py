"""Which of its inputs the result of an op may share memory with, in OneFlow's CUDA kernels.

Ops that only change the shape are views of their input; elementwise ones overwrite an input that
nobody reads afterwards.

Source: the InplaceProposalFn of the kernels in OneFlow 0.9, user/kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoddl.sbp.program import Op

_VIEWS = frozenset({
    "identity", "reshape", "reshape_like", "expand_dims", "squeeze", "amp_white_identity",
    "amp_black_identity", "parallel_cast", "hierarchical_parallel_cast", "pinned_identity",
})  # fmt: skip
_OVERWRITTEN = {
    "add_n": "in_0",
    "bias_add": "a_0",
    "relu": "x_0",
    "dropout": "in_0",
    **dict.fromkeys(
        ("relu_grad", "dropout_grad", "hardtanh_grad", "hardswish_grad", "hardsigmoid_grad",
         "leaky_relu_grad", "mish_grad", "hardshrink_grad"), "dy_0",
    ),
    **dict.fromkeys(("hardtanh", "hardsigmoid", "hardshrink", "scalar_add", "scalar_mul",
                     "scalar_floordiv", "scalar_fmod", "scalar_pow", "tril", "triu"), "in_0"),
    **dict.fromkeys(("scalar_add_by_tensor", "scalar_sub_by_tensor", "scalar_mul_by_tensor",
                     "scalar_div_by_tensor", "mish"), "x_0"),
    **dict.fromkeys(("matmul", "batch_matmul", "broadcast_matmul", "broadcast_matmul_grad_b"),
                    "_add_to_output_0"),
}  # fmt: skip


def shared_input(
    op: Op, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
) -> tuple[str, bool] | None:
    """Return the operand whose memory the first result may use, and whether the op writes to it."""
    inputs = dict(op.inputs)
    if is_view(op):
        return op.inputs[0][0] if "in_0" not in inputs else "in_0", False
    if op.type in ("cast", "cast_like"):
        return ("in_0", False) if dtypes.get("in_0") == dtypes.get("out_0") else None
    if op.type == "transpose" and "input_0" in inputs:
        return ("input_0", False) if _keeps_order(shapes["input_0"], op.attr["perm"]) else None
    operand = _OVERWRITTEN.get(op.type)
    return (operand, True) if operand in inputs else None


def is_view(op: Op) -> bool:
    """Tell whether an op only changes the shape, so that its result is its input's memory."""
    return op.type in _VIEWS


def _keeps_order(shape: tuple[int, ...], perm: tuple[int, ...]) -> bool:
    """Tell whether a transposition moves only dims of size 1."""
    kept = [dim for dim in perm if shape[dim] != 1]
    return kept == sorted(kept)
