"""What OneFlow's CUDA kernels do with memory, by op type: what they share with an input, what they need.

Ops that only change the shape are views of their input; elementwise ones overwrite an input that
nobody reads afterwards. Of workspaces only what follows from shapes is here: convolutions ask cuDNN,
which asks the device, so that theirs is not known before, and counts as nothing.

Source: the InplaceProposalFn and InferTmpSizeFn of the kernels in OneFlow 0.9, user/kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoddl.sbp.program import Op

Shapes = Mapping[str, tuple[int, ...]]

VIEWS = frozenset({
    "identity", "reshape", "reshape_like", "expand_dims", "squeeze", "amp_white_identity",
    "amp_black_identity", "parallel_cast", "hierarchical_parallel_cast", "pinned_identity",
})  # fmt: skip
"""Ops that only change the shape, so that their result is their input's memory."""
_OVERWRITTEN = {
    "bias_add": "a_0",
    **dict.fromkeys(("add_n", "dropout", "hardtanh", "hardsigmoid", "hardshrink", "scalar_add",
                     "scalar_mul", "scalar_floordiv", "scalar_fmod", "scalar_pow", "tril", "triu"),
                    "in_0"),
    **dict.fromkeys(("relu", "scalar_add_by_tensor", "scalar_sub_by_tensor",
                     "scalar_mul_by_tensor", "scalar_div_by_tensor", "mish"), "x_0"),
    **dict.fromkeys(("relu_grad", "dropout_grad", "hardtanh_grad", "hardswish_grad",
                     "hardsigmoid_grad", "leaky_relu_grad", "mish_grad", "hardshrink_grad"), "dy_0"),
    **dict.fromkeys(("matmul", "batch_matmul", "broadcast_matmul", "broadcast_matmul_grad_b"),
                    "_add_to_output_0"),
}  # fmt: skip
# As many bytes as one operand has: the kernel reduces it step by step, or expands it.
_ONE_OPERAND = {
    "reduce_sum_like": "x_0",
    "broadcast_div_grad": "z_0",
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_any",
                     "reduce_all", "reduce_nansum"), "input_tensor_0"),
}  # fmt: skip

_SUMS = {"reduce_sum": "output_tensor_0", "reduce_sum_like": "y_0"}  # with what they make
_HALVES = ("float16", "bfloat16")
_ALIGNED = 512  # bytes, each part of a workspace


def shared_input(op: Op, shapes: Shapes, dtypes: Mapping[str, str]) -> tuple[str, bool] | None:
    """Return the operand whose memory the first result may use, and whether the op writes to it."""
    inputs = dict(op.inputs)
    if op.type in VIEWS:
        return op.inputs[0][0] if "in_0" not in inputs else "in_0", False
    if op.type in ("cast", "cast_like"):
        return ("in_0", False) if dtypes.get("in_0") == dtypes.get("out_0") else None
    if op.type == "transpose" and "input_0" in inputs:
        moved = [dim for dim in op.attr["perm"] if shapes["input_0"][dim] != 1]
        return ("input_0", False) if moved == sorted(moved) else None
    operand = _OVERWRITTEN.get(op.type)
    return (operand, True) if operand in inputs else None


def workspace_bytes(
    op: Op, shapes: Shapes, item_bytes: Mapping[str, int], dtypes: Mapping[str, str]
) -> int:
    """Return the bytes of workspace of an op on operands of these local shapes."""
    if op.type == "argmax":  # a pair of index and value for each result
        return 8 * math.prod(shapes["out_0"])
    if op.type == "where":  # both sides and the condition, broadcast
        return sum(math.prod(shapes["out_0"]) * item_bytes[o] for o, _ in op.inputs)
    if op.type.startswith("unsorted_segment_sum") and dtypes["out_0"] == "float16":
        return _aligned(4 * math.prod(shapes["out_0"]))  # summed up in float32
    operand = _ONE_OPERAND.get(op.type, "")
    if operand not in shapes or (op.type == "reduce_sum_like" and not op.attr.get("axis")):
        return 0
    if op.type in _SUMS and dtypes[operand] in _HALVES:
        return _half_sum_bytes(shapes[operand], shapes[_SUMS[op.type]], op.attr.get("axis") or ())
    return math.prod(shapes[operand]) * item_bytes[operand]


def _half_sum_bytes(shape: tuple[int, ...], result: tuple[int, ...], axes: Sequence[int]) -> int:
    """Return the workspace of a sum in half precision.

    Over the first or the last axes it is a product with ones, else it is done in float32.
    """
    first, last = min(axes, default=0), max(axes, default=-1)
    outer, inner = math.prod(shape[:first]), math.prod(shape[last + 1 :])
    if last - first + 1 == len(axes) and 1 in (outer, inner):
        return _aligned(2 * math.prod(shape[first : last + 1]))
    return 2 * _aligned(4 * math.prod(shape)) + _aligned(4 * math.prod(result))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
