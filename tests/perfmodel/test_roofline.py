"""The time of an op by hand, from the kernel of its type, of its family, or from the device."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.perfmodel.profile_entries import Device, Kernel
from autoddl.perfmodel.roofline import OpWork, device_s

DEVICE = Device(
    name="made up",
    memory_bytes=1 << 30,
    peak_flops={"float32": 1e12, "float16": 4e12},
    memory_bytes_per_s=1e11,
    op_overhead_s=1e-5,
    kernels={
        "matmul": Kernel(2e-5, 5e10, {"float32": 8e11, "float16": 3e12}),
        "broadcast_matmul": Kernel(3e-5, 2e10, {"float32": 4e11}),
    },
)


@pytest.mark.parametrize(
    ("case", "seconds"),
    [
        ({"op_type": "broadcast_matmul"}, 3e-5 + 1e9 / 4e11),
        ({"op_type": "batch_matmul"}, 2e-5 + 1e9 / 8e11),
        ({"op_type": "batch_matmul", "dtype": "float16"}, 2e-5 + 1e9 / 3e12),
        ({"op_type": "batch_matmul", "dtype": "int8"}, 2e-5 + 1e9 / 8e11),
        ({"op_type": "relu", "family": "elementwise"}, 1e-5 + 1e9 / 5e11),
        ({"op_type": "relu", "family": "elementwise", "dtype": "float16"}, 1e-5 + 1e9 / 2e12),
        ({"op_type": "broadcast_matmul", "moved_bytes": 1e9}, 3e-5 + 1e9 / 2e10),
        ({"op_type": "batch_matmul", "moved_bytes": 1e9}, 2e-5 + 1e9 / 5e10),
        ({"op_type": "relu", "family": "elementwise", "moved_bytes": 1e9}, 1e-5 + 1e9 / 1e11),
        ({"op_type": "relu", "family": "elementwise", "flops": 0.0}, 1e-5),
    ],
)
def test_seconds_of_an_op(case: dict[str, Any], seconds: float) -> None:
    default = {"family": "matmul", "dtype": "float32", "flops": 1e9, "moved_bytes": 0.0}
    assert device_s(DEVICE, OpWork(**{**default, **case})) == pytest.approx(seconds)
