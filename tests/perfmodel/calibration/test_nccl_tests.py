"""Logs of nccl-tests become a profile, with the memory that the GPU's name says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.nccl_tests import profile_of
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.topology import Crossing
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


LL, SIMPLE = (15.0, 40.0), (60.0, 200.0)  # µs and GB/s of the printed size


def test_the_lines_of_several_protocols_come_back(tmp_path: Path) -> None:
    """Their least is that of the log to two digits, and a third line is not made up."""
    file, sizes = tmp_path / "log.txt", tuple(1 << i for i in range(3, 31))
    file.write_text(output("all_reduce_perf", ("a",) * 8, sizes, us=1e6, more=(LL, SIMPLE)))
    profile = profile_of([file])
    lines = sorted(profile.links, key=lambda link: link.alpha_s)
    assert [14e6 * line.alpha_s for line in lines] == pytest.approx([15.0, 60.0], rel=0.02)
    rates = [1e-9 / line.beta_s_per_byte for line in lines]  # of the bytes that are sent
    assert rates == pytest.approx([1.75 * 40, 1.75 * 200], rel=0.02)
    assert {(line.algorithm, line.group_size) for line in lines} == {("ring", 8)}
    for n in sizes:
        taken = profile.collective_s("all_reduce", Crossing("gpu", 8), n)
        assert taken == pytest.approx(
            min(1e-6 * us + n / rate / 1e9 for us, rate in (LL, SIMPLE)), rel=0.02
        )


@pytest.mark.parametrize(
    ("latencies", "algorithm", "of_16"),
    [
        ({2: 10.0, 4: 20.0, 8: 30.0}, "tree", 40.0),  # 5 µs for each step up and down
        (
            {2: 30.0, 4: 62.0, 8: 126.0},
            "ring",
            254.0,
        ),  # 1 µs for each of 2(4 N − 1) messages, about
        ({4: 20.0}, "tree", 40.0),  # of one number, taken for it
    ],
)
def test_logs_of_several_numbers_of_nodes_tell_trees_from_rings(
    latencies: dict[int, float], algorithm: str, of_16: float, tmp_path: Path
) -> None:
    files = []
    for nodes, us in latencies.items():
        hosts = [host for host in "abcdefgh"[:nodes] for _ in range(4)]
        files.append(tmp_path / f"{nodes}.txt")
        files[-1].write_text(output("all_reduce_perf", hosts, SIZES, us))
    profile = profile_of(files)
    assert {link.algorithm for link in profile.links} == {algorithm}
    for nodes, us in latencies.items():
        way = Crossing("node", 4 * nodes, inner=4)
        assert profile.collective_s("all_reduce", way, 0) == pytest.approx(1e-6 * us, rel=0.02)
    way = Crossing("node", 64, inner=4)
    assert profile.collective_s("all_reduce", way, 0) == pytest.approx(1e-6 * of_16, rel=0.02)


def test_gathers_between_nodes_are_rings(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(output("all_gather_perf", ("a", "a", "b", "b"), SIZES))
    (link,) = profile_of([tmp_path / "log.txt"]).links
    assert (link.algorithm, link.alpha_s) == ("ring", pytest.approx(20e-6 / 3, rel=0.02))


def test_a_single_size_tells_no_latency(tmp_path: Path) -> None:
    good, file = tmp_path / "good.txt", tmp_path / "one.txt"
    good.write_text(output("all_reduce_perf", ("a",) * 2, SIZES))
    file.write_text(output("all_reduce_perf", ("a",) * 2, (1 << 30,)))
    for files in ([file], [good, file]):
        with pytest.raises(
            AutoDDLError, match=r"one.txt: a single message size.*as -b 8 -e 1G -f 2$"
        ):
            profile_of(files)


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
