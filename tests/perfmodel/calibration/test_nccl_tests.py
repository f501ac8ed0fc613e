"""Logs of nccl-tests become a profile, with the memory that the GPU's name says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.nccl_tests import profile_of
from autoddl.perfmodel.profile import Profile
from tests.perfmodel.calibration.nccl_outputs import H100, output

SIZES = tuple(1 << i for i in range(10, 28, 2))


def of_gpu(folder: Path, gpu: str, memory_bytes: int | None = None) -> Profile:
    file = folder / "log.txt"
    file.write_text(output("all_reduce_perf", ("a",) * 2, SIZES, gpu=gpu))
    return profile_of([file], memory_bytes=memory_bytes)


def test_a_profile_of_two_files(tmp_path: Path) -> None:
    inside, between = tmp_path / "inside.txt", tmp_path / "between.txt"
    inside.write_text(output("all_reduce_perf", ("a",) * 2, SIZES, 20.0))
    between.write_text(output("all_reduce_perf", ("a", "b"), SIZES, 60.0))
    profile = profile_of([inside, between])
    assert profile.device_type == "cuda" and profile.device.name == H100
    found = {link.level: link for link in profile.links}
    assert found["gpu"].alpha_s == pytest.approx(10e-6, rel=0.01)
    assert found["node"].alpha_s == pytest.approx(30e-6, rel=0.01)
    assert found["gpu"].beta_s_per_byte == pytest.approx(1e-11, rel=0.01)
    with pytest.raises(AutoDDLError, match="level 'rack'; levels are node, gpu"):
        profile_of([inside], level="rack")
    with pytest.raises(AutoDDLError, match=r"nofile.*can't be read"):
        profile_of([tmp_path / "nofile"])
    flat = profiles.load("cpu-loopback")
    with pytest.raises(
        AutoDDLError, match="groups over level node; levels are gpu; say with --level"
    ):
        profile_of([between], base=flat)


@pytest.mark.parametrize(
    ("gpu", "gib", "priced_as"),
    [
        ("Tesla V100-SXM2-16GB", 16, "v100-8x"),
        ("Tesla V100-SXM3-32GB", 32, "v100-8x"),
        ("NVIDIA A100-SXM4-40GB", 40, "a100-2x16"),
        ("NVIDIA A100-SXM4-80GB", 80, "a100-2x16"),
        ("NVIDIA A100 80GB PCIe", 80, "a100-2x16"),
        ("Tesla P100-PCIE-12GB", 12, "p100-aries"),
        (H100, 80, "h100"),
    ],
)
def test_the_memory_is_that_of_the_name(
    gpu: str, gib: int, priced_as: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        device = of_gpu(tmp_path, gpu).device
    assert (device.name, device.memory_bytes) == (gpu, gib << 30)
    assert device.peak_flops == profiles.load(priced_as).device.peak_flops
    assert "is not known" not in caplog.text


def test_a_name_without_a_size_where_there_is_one_only(tmp_path: Path) -> None:
    assert of_gpu(tmp_path, "NVIDIA H200").memory_bytes == profiles.load("h200").memory_bytes


@pytest.mark.parametrize(
    "gpu",
    ["NVIDIA L40S", "NVIDIA A100-PG509-200", "NVIDIA H100 NVL", "NVIDIA GH200 480GB", "NVIDIA A10G",
     "NVIDIA A100-SXM4-40GB MIG 1g.5gb"],
)  # fmt: skip
def test_an_unknown_memory_is_asked_for(
    gpu: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        AutoDDLError, match=rf"how much memory have GPU {gpu}\? say it with --memory"
    ):
        of_gpu(tmp_path, gpu)
    with caplog.at_level(logging.WARNING):
        device = of_gpu(tmp_path, gpu, memory_bytes=5 << 30).device
    assert (device.name, device.memory_bytes) == (gpu, 5 << 30)
    known = "A100-PG" in gpu or "H100" in gpu
    assert ("is not known; ops are priced as on A100" in caplog.text) != known


def test_gpus_of_several_kinds_need_a_device(tmp_path: Path) -> None:
    files = []
    for number, gpu in enumerate((H100, "NVIDIA A100-SXM4-40GB")):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(output("all_reduce_perf", ("a",) * 2, SIZES, gpu=gpu))
    with pytest.raises(AutoDDLError, match=r"several GPUs \(NVIDIA H100 .*, NVIDIA A100.*--device"):
        profile_of(files)
    base = profiles.load("h100")
    assert profile_of(files, base=base).device == base.device
