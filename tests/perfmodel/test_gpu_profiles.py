"""The bundled profiles of GPUs: what the tool writes, and the steps that PyTorch took on such a GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.roofline import OpWork, op_s

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
