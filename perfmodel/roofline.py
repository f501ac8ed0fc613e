"""Compute time of one op on one device: launch overhead + roofline.

At 10 Tflop/s and 1 TB/s an op of 1 Gflop (100 µs) that moves 50 MB (50 µs) takes 100 µs and its overhead.

Source: Williams, Waterman, Patterson, Roofline, CACM 52 (4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoddl.perfmodel.kernel_variants import variant
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device, Kernel, rate_of
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.registry import OpView, find
from autoddl.sbp.shards import local_shape
from autoddl.sbp.shares import Cuts

UNKNOWN_EFFICIENCY = 0.5  # of the peak, for ops that the profile knows nothing of


class OpWork(NamedTuple):
    """What an op does on one device: flops, and bytes that it reads or writes."""

    op_type: str
    family: str
    dtype: str
    flops: float
    moved_bytes: float
    variant: str = ""  # kernel_variants.py

    @classmethod
    def of(cls, program: Program, op: Op, signature: NdSignature, mesh: Cuts) -> OpWork:
        """Return the work of an op on each device of a mesh that is cut so."""
        tensors = {operand: program.tensor[name] for operand, name in op.operands}
        local = [local_shape(t.shape, signature[o], mesh) or t.shape for o, t in tensors.items()]
        return cls.local(op, tensors, local)

    @classmethod
    def local(
        cls, op: Op, tensors: Mapping[str, Tensor], shapes: Sequence[tuple[int, ...]]
    ) -> OpWork:
        """Return the work of an op whose operands have these shapes on each device.

        Flops are those of the op type's rule on them, none for an op without a rule; moved bytes are
        all its operands.
        """
        view, rule = OpView.of(op, dict(zip(tensors, shapes, strict=True))), find(op.type)
        first = next(iter(tensors.values()), None)
        return cls(
            op.type,
            rule.family if rule else "elementwise",
            first.dtype if first else "float32",
            rule.flops(view) if rule else 0.0,
            sum(math.prod(view.shape[o]) * t.item_bytes for o, t in tensors.items()),
            variant(view),
        )

    def kernel(self, device: Device) -> tuple[str, Kernel | None]:
        """Return the kernel of an op and its name; the name of its type, and none, if there is none."""
        for name in names(self.op_type, self.family, self.variant):
            if name in device.kernels:
                return name, device.kernels[name]
        return self.op_type, None


def op_s(profile: Profile, work: OpWork) -> float:
    """Return the seconds of an op on the device that takes longest, of those of a profile."""
    return max([device_s(device, work) for device in profile.devices.values()])


def device_s(device: Device, work: OpWork) -> float:
    """Return overhead + max(flops / rate, bytes / bandwidth), in seconds.

    The numbers are those of the op type (in this variant), else of its family, else the device's
    bandwidth and half of its peak. A dtype that is not listed runs at the float32 rate.
    """
    _, kernel = work.kernel(device)
    if kernel is not None:
        return kernel.op_s(work.dtype, work.flops, work.moved_bytes)
    rate = UNKNOWN_EFFICIENCY * rate_of(device.peak_flops, work.dtype)
    return device.op_overhead_s + max(
        work.flops / rate, work.moved_bytes / device.memory_bytes_per_s
    )


def names(op_type: str, family: str, variant: str) -> tuple[str, ...]:
    """Return the names of the kernels that serve an op, the best first."""
    if not variant:
        return op_type, family
    return f"{op_type}:{variant}", f"{family}:{variant}", op_type, family
