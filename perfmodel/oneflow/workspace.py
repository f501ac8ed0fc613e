"""Bytes that OneFlow's CUDA kernels need while they run, by op type.

Only what follows from shapes is here. Convolutions ask cuDNN, which asks the device: their workspace
is not known before, and counts as nothing.

Source: the InferTmpSizeFn of the kernels in OneFlow 0.9, user/kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autoddl.sbp.program import Op

Shapes = Mapping[str, tuple[int, ...]]

# As many bytes as one operand has: the kernel reduces it step by step, or expands it.
_ONE_OPERAND = {
    "reduce_sum_like": "x_0",
    "broadcast_div_grad": "z_0",
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all",
         "reduce_nansum"), "input_tensor_0",
    ),
}  # fmt: skip


def workspace_bytes(op: Op, shapes: Shapes, item_bytes: Mapping[str, int]) -> int:
    """Return the bytes of workspace of an op on operands of these local shapes."""
    if op.type == "argmax":  # a pair of index and value for each result
        return 8 * math.prod(shapes["out_0"])
    if op.type == "where":  # both sides and the condition, broadcast
        return sum(math.prod(shapes["out_0"]) * item_bytes[o] for o, _ in op.inputs)
    operand = _ONE_OPERAND.get(op.type, "")
    if operand not in shapes or (op.type == "reduce_sum_like" and not op.attr.get("axis")):
        return 0
    return math.prod(shapes[operand]) * item_bytes[operand]
