"""The bundled profiles of GPUs: what the tool writes, times of steps and of all-reduces on such GPUs."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.perfmodel.topology import Crossing

TOOLS = Path(__file__).parents[2] / "tools"


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec and spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tool_writes_what_is_bundled() -> None:
    tool = _tool("data_sheet_profiles")
    for sheet in tool.PROFILES:
        made, known = tool.written(sheet, None), profiles.load(sheet.name, device_type="cuda")
        assert (made.links, made.devices, made.sharing) == (
            known.links,
            known.devices,
            known.sharing,
        )
        assert made.source == known.source


def test_kernels_come_from_timed_ops_and_launches(tmp_path: Path) -> None:
    tool = _tool("data_sheet_profiles")
    rows = ["# a GPU", "op_type,family,variant,dtype,flops,moved_bytes,seconds"]
    for n in (1, 2, 4, 8):  # 100 Tflop/s in float32, 1 TB/s, launches not timed
        rows.append(f"matmul,matmul,,float32,{n * 1e11:g},{1e7 / n:g},{n * 1e-3:g}")
        rows.append(f"add_n,elementwise,,float32,{n * 1e6:g},{n * 1e9:g},{n * 1e-3:g}")
    (tmp_path / "ops.csv").write_text("\n".join(rows) + "\n")
    sheet = next(each for each in tool.PROFILES if each.name == "h100")
    device = tool.written(sheet, tmp_path / "ops.csv").device
    assert device.kernels["matmul"].flops_per_s["float32"] == pytest.approx(1e14, rel=1e-3)
    assert device.kernels["add_n"].bytes_per_s == pytest.approx(1e12, rel=1e-3)
    assert device.kernels["add_n"].overhead_s == tool.LAUNCH_S
    assert device.memory_bytes == sheet.device.memory_bytes


NODE, FOUR, TWO = Crossing("gpu", 8), Crossing("node", 32, inner=8), Crossing("node", 16, inner=8)
NCCL_TESTS = {  # µs of all-reduces, by size
    ("h100", NODE, "8 H20, whose NVLink is that of H100; deepseek-ai/DeepEP issue 303"): {
        8: 12.5, 1 << 10: 16.4, 1 << 12: 16.7,
    },
    ("h100", NODE, "NVIDIA/nccl-tests issue 290"): {1 << 27: 613.3, 1 << 30: 4038.8, 1 << 32: 15870},
    ("h100", TWO, "dstackai/dstack, documentation of Nebius"): {
        1 << 10: 31.4, 1 << 16: 37.9, 1 << 20: 87.1, 1 << 27: 759.6, 1 << 33: 34448,
    },
    ("h100", FOUR, "NVIDIA/nccl-tests issue 309"): {
        1 << 10: 39.8, 1 << 16: 50.8, 1 << 20: 82.2, 1 << 27: 990.7, 1 << 33: 45606,
    },
    ("a100-2x16", NODE, "microsoft/superbenchmark, tests of cuda_nccl_bw"): {
        1 << 20: 74.8, 1 << 22: 112.0, 1 << 24: 226.0, 1 << 30: 8159.5,
    },
    ("v100-8x", NODE, "8 V100-SXM2 in a blog, not those of the fit"): {
        1 << 22: 147.4, 1 << 24: 324.1, 1 << 26: 992.7, 1 << 27: 1818.8,
    },
}  # fmt: skip


@pytest.mark.parametrize("test", NCCL_TESTS, ids=lambda test: f"{test[0]} {test[1].group_size}")
def test_all_reduces_take_what_nccl_tests_print(test: tuple[str, Crossing, str]) -> None:
    profile = profiles.load(test[0], device_type="cuda")
    for size, us in NCCL_TESTS[test].items():
        assert profile.collective_s("all_reduce", test[1], size) == pytest.approx(
            1e-6 * us, rel=0.25
        )


def test_latencies_are_those_of_nccls_tuning_model() -> None:
    """It printed 25.874907 and 26.549810 µs for 4 and 8 kB on 2x8 H100 (NVIDIA/nccl issue 1453)."""
    tool = _tool("data_sheet_profiles")
    tree = tool.nccl_us("all_reduce", "LL", 2, 8, "tree")
    assert tree == pytest.approx(2 * 25.874907 - 26.549810, abs=1e-3)
    assert tool.nccl_us("all_reduce", "LL", 1, 8, "ring") == pytest.approx(6.6 + 14 * 0.6)
    assert tool.nccl_us("all_gather", "Simple", 4, 8, "ring") == pytest.approx(
        8.4 + 28 * 3.4 + 3 * 14
    )
    steps = [tool.nccl_us("all_reduce", "LL", n, 8, "tree") for n in (2, 4, 8, 16)]
    assert [b - a for a, b in pairwise(steps)] == pytest.approx([10, 10, 10])


# Seconds of a step: tools/torch_steps.py with PyTorch 2.11 on one H100 and one H200, in float32 (TF32).
@pytest.mark.oneflow
@pytest.mark.parametrize(
    ("model", "sizes", "seconds"),
    [
        (
            "vgg13",
            {"image": 224, "classes": 1000, "channel_scale": 1, "dense": 4096, "batch": 16},
            {"h100": 0.01334, "h200": 0.01195},
        ),
        (
            "gpt",
            {"layers": 4, "width": 4096, "heads": 32, "sequence": 1024, "vocabulary": 51200, "batch": 4},
            {"h100": 0.1176, "h200": 0.1095},
        ),
    ],
)  # fmt: skip
def test_ops_take_what_pytorch_takes(
    tmp_path: Path, model: str, sizes: dict[str, int], seconds: dict[str, float]
) -> None:
    from experiments.lib.programs import captured

    program = captured(tmp_path / "program.json", model, "toy", "float32", **sizes)
    for name, measured_s in seconds.items():
        profile = profiles.load(name, device_type="cuda")
        total_s = 0.0
        for op in program.ops:
            tensors = {operand: program.tensor[tensor] for operand, tensor in op.operands}
            shapes = [tensor.shape for tensor in tensors.values()]
            total_s += op_s(profile, OpWork.local(op, tensors, shapes))
        assert total_s == pytest.approx(measured_s, rel=0.15)
