"""Kernels: planted ones are found again; what a kernel predicts is what roofline.py makes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.calibration.kernel_fits import Timed, device_of
from autoddl.perfmodel.roofline import OpWork, device_s

# op type: family, overhead, flop/s, bytes/s, flops of n elements
PLANTED: dict[str, tuple[str, float, float, float, Callable[[float], float]]] = {
    "matmul": ("matmul", 2e-5, 2e10, 8e9, lambda n: 2 * n**1.5),
    "batch_matmul": ("matmul", 4e-5, 1e10, 8e9, lambda n: 2 * n**1.5),
    "relu": ("elementwise", 1e-5, 1e12, 3e9, lambda n: n),
    "gelu": ("elementwise", 3e-5, 4e9, 8e9, lambda n: 20 * n),
    "transpose": ("memory", 1e-5, 1e12, 5e8, lambda n: 0.0),
}


def planted(noise: float = 0.0, seed: int = 0) -> Iterator[Timed]:
    rng = np.random.default_rng(seed)
    for op_type, (family, overhead_s, rate, bandwidth, flops) in PLANTED.items():
        for n in np.geomspace(1e3, 1e7, 12):
            seconds = overhead_s + max(flops(n) / rate, 12 * n / bandwidth)
            yield Timed(
                op_type,
                family,
                "float32",
                flops(n),
                12 * n,
                float(seconds * rng.uniform(1 - noise, 1 + noise)),
            )


def test_planted_kernels_are_found() -> None:
    device = device_of(planted(noise=0.03), name="d", memory_bytes=1 << 30)
    for op_type, (_, overhead_s, rate, bandwidth, flops) in PLANTED.items():
        kernel = device.kernels[op_type]
        assert kernel.overhead_s == pytest.approx(overhead_s, rel=0.25)
        if op_type == "gelu":  # all of one intensity: its seconds tell no rate
            assert kernel.op_s("float32", 20e6, 12e6) == pytest.approx(20e6 / rate, rel=0.05)
        elif flops(1e6) / rate > 12e6 / bandwidth:
            assert kernel.flops_per_s["float32"] == pytest.approx(rate, rel=0.05)
        else:
            assert kernel.bytes_per_s == pytest.approx(bandwidth, rel=0.05)
        assert kernel.mean_error is not None
        assert kernel.mean_error < 0.03


def test_the_device_predicts_what_was_timed() -> None:
    ops = list(planted())
    device = device_of(ops, name="d", memory_bytes=1 << 30)
    for op in ops:
        work = OpWork(op.op_type, op.family, op.dtype, op.flops, op.moved_bytes)
        assert device_s(device, work) == pytest.approx(op.seconds, rel=0.05)


def test_families_serve_types_that_were_not_timed() -> None:
    device = device_of(planted(), name="d", memory_bytes=1 << 30)
    assert {"elementwise", "memory"} <= device.kernels.keys()
    pooled = device.kernels["elementwise"].bytes_per_s
    rates = [12e6 / (12e6 / 3e9), 12e6 / (20e6 / 4e9)]  # of relu and gelu, in bytes/s
    assert min(rates) * 0.9 < pooled < max(rates) * 1.1


def test_another_dtype_has_its_own_rate() -> None:
    double = [
        Timed("matmul", "matmul", "float64", op.flops, 2 * op.moved_bytes, op.seconds * 2)
        for op in planted()
        if op.op_type == "matmul"
    ]
    device = device_of([*planted(), *double], name="d", memory_bytes=1 << 30)
    rates = device.kernels["matmul"].flops_per_s
    assert rates["float64"] == pytest.approx(rates["float32"] / 2, rel=0.05)


def test_times_below_zero_are_short_ones() -> None:
    """Noise takes more off short ops than they took."""
    short = [Timed("relu", "elementwise", "float32", 10, 120, s) for s in (-3e-6, 2e-6, 1e-6)]
    kernel = device_of([*planted(), *short], name="d", memory_bytes=1 << 30).kernels["relu"]
    assert kernel.overhead_s >= 0
    assert kernel.bytes_per_s == pytest.approx(3e9, rel=0.1)


def test_a_type_that_does_not_fit_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    odd = [
        Timed("var", "normalisation", "float32", n, 4 * n, s)
        for n, s in ((1e6, 1.0), (1e6, 0.1), (2e6, 0.05), (2e6, 2.0))
    ]
    with caplog.at_level(logging.WARNING):
        device_of([*planted(), *odd], name="d", memory_bytes=1 << 30)
    assert [record.args[0] for record in caplog.records if record.args] == ["var"]


def test_nothing_to_tell_a_rate_from() -> None:
    with pytest.raises(AutoDDLError, match="no float32 op took 100 µs"):
        device_of([Timed("relu", "elementwise", "float32", 1, 1, 1e-6)], name="d", memory_bytes=1)


def test_variants_have_kernels_of_their_own() -> None:
    slow = [
        Timed("mul", "elementwise", "float32", n, 8 * n, n * 4e-8, "reference")
        for n in (1e4, 1e5, 1e6)
    ]
    fast = [Timed("mul", "elementwise", "float32", n, 8 * n, n * 1e-9) for n in (1e5, 1e6, 1e7)]
    kernels = device_of([*planted(), *slow, *fast], name="d", memory_bytes=1 << 30).kernels
    assert kernels["mul:reference"].bytes_per_s == pytest.approx(2e8, rel=0.01)
    assert kernels["mul"].bytes_per_s == pytest.approx(8e9, rel=0.01)
    assert kernels["elementwise:reference"] == kernels["mul:reference"]
    alone = device_of([*planted(), *slow], name="d", memory_bytes=1 << 30).kernels
    assert alone["mul"] == alone["mul:reference"]


def test_one_size_gives_a_rate_and_the_overhead_of_tiny_ops() -> None:
    tiny = [Timed("cast", "memory", "float32", 1, 8, 3e-5)] * 100
    single = [Timed("tanh", "elementwise", "float32", n, 8 * n, 3e-5 + 8 * n / 1e9) for n in (1e6,)]
    kernel = device_of([*planted(), *tiny, *single], name="d", memory_bytes=1 << 30).kernels["tanh"]
    assert kernel.overhead_s == pytest.approx(3e-5)
    assert kernel.bytes_per_s == pytest.approx(1e9)


@pytest.mark.parametrize("sizes", [(1.0,), (1.0, 1.3), (1.0, 10.0)])
def test_flops_bound_ops_of_one_intensity(sizes: tuple[float, ...]) -> None:
    """Of convolutions of 100 flop per byte one of as many bytes and twice the flops takes twice that."""
    timed = [Timed("conv2d", "conv", "float32", n * 1e8, n * 1e6, n * 0.05) for n in sizes]
    device = device_of([*planted(), *timed], name="d", memory_bytes=1 << 30)
    for flops, moved, expected_s in ((2e8, 1e6, 0.1), (1e8, 5e5, 0.05)):
        work = OpWork("conv2d", "conv", "float32", flops, moved)
        assert device_s(device, work) == pytest.approx(expected_s, rel=0.01)


def test_bytes_bound_ops_of_one_intensity() -> None:
    timed = [Timed("add_n", "other", "float32", n * 1e4, n * 1e6, n * 0.05) for n in (1.0, 10.0)]
    device = device_of([*planted(), *timed], name="d", memory_bytes=1 << 30)
    work = OpWork("add_n", "other", "float32", 1e4, 2e6)
    assert device_s(device, work) == pytest.approx(0.1, rel=0.01)
