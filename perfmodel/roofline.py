"""Compute time of one op on one device: launch overhead + roofline.

At 10 Tflop/s and 1 TB/s an op of 1 Gflop (100 µs) that moves 50 MB (50 µs) takes 100 µs and its overhead.

Source: Williams, Waterman, Patterson, Roofline, CACM 52 (4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoddl.perfmodel.kernel_variants import variant as variant_of
from autoddl.perfmodel.profile import Device
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.registry import OpView, find
from autoddl.sbp.shards import local_shape

UNKNOWN_EFFICIENCY = 0.5  # of the peak, for ops that the profile knows nothing of


def signature_s(
    device: Device, program: Program, op: Op, signature: NdSignature, mesh: Sequence[int]
) -> float:
    """Return the seconds of an op on each device of a mesh with these axis sizes.

    Flops are those of the op type's rule on the local shapes, moved bytes all its local operands.
    """
    view, rule = _local(program, op, signature, mesh), find(op.type)
    tensors = {operand: program.tensor[name] for operand, name in op.operands}
    first = next(iter(tensors.values()), None)
    return op_s(
        device,
        op_type=op.type,
        family=rule.family if rule else "elementwise",
        dtype=first.dtype if first else "float32",
        flops=rule.flops(view) if rule else 0.0,
        moved_bytes=sum(math.prod(view.shape[o]) * t.item_bytes for o, t in tensors.items()),
        variant=variant_of(view),
    )


def local_flops(program: Program, op: Op, signature: NdSignature, mesh: Sequence[int]) -> float:
    """Return the flops of an op on each device of a mesh; none for an op without a rule."""
    view, rule = _local(program, op, signature, mesh), find(op.type)
    return rule.flops(view) if rule else 0.0


def kernel_name(
    device: Device, program: Program, op: Op, signature: NdSignature, mesh: Sequence[int]
) -> str:
    """Return the name of the kernel that prices an op, or its type where there is none."""
    view, rule = _local(program, op, signature, mesh), find(op.type)
    candidates = names(op.type, rule.family if rule else "elementwise", variant_of(view))
    return next((name for name in candidates if name in device.kernels), op.type)


def _local(program: Program, op: Op, signature: NdSignature, mesh: Sequence[int]) -> OpView:
    """Return the op with the shapes that its operands have on one device."""
    shapes = {operand: program.tensor[name].shape for operand, name in op.operands}
    return OpView.of(op, {o: local_shape(s, signature[o], mesh) or s for o, s in shapes.items()})


def op_s(
    device: Device,
    *,
    op_type: str,
    family: str,
    dtype: str,
    flops: float,
    moved_bytes: float,
    variant: str = "",
) -> float:
    """Return overhead + max(flops / rate, bytes / bandwidth), in seconds.

    `flops` and `moved_bytes` (read and written) are those of one device. The numbers are those of
    the op type (in this variant, kernel_variants.py), else of its family, else the device's bandwidth
    and half of its peak. A dtype that is not listed runs at the float32 rate.
    """
    kernel = next(filter(None, map(device.kernels.get, names(op_type, family, variant))), None)
    if kernel is None:
        rate = UNKNOWN_EFFICIENCY * rate_of(device.peak_flops, dtype)
        return device.op_overhead_s + max(flops / rate, moved_bytes / device.memory_bytes_per_s)
    rate = rate_of(kernel.flops_per_s, dtype)
    return kernel.overhead_s + max(flops / rate, moved_bytes / kernel.bytes_per_s)


def names(op_type: str, family: str, variant: str) -> tuple[str, ...]:
    """Return the names of the kernels that serve an op, the best first."""
    if not variant:
        return op_type, family
    return f"{op_type}:{variant}", f"{family}:{variant}", op_type, family


def rate_of(by_dtype: Mapping[str, float], dtype: str) -> float:
    """Return the rate of a dtype, of float32 if it is not listed."""
    return by_dtype.get(dtype) or by_dtype["float32"]
