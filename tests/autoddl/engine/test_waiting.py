"""Ranks that share cores: bound to one core each, and OneFlow's scheduler does not burn it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autoddl.engine.launch import launch
from autoddl.engine.ranks.job import LaunchJob

# While one long chain of products is under way, see how much time each thread of the process takes.
SCRIPT = """
import json, os, sys, threading, time
import oneflow as flow

x = flow.ones(512, 512)
(x @ x).numpy()

def spent():
    hertz = os.sysconf("SC_CLK_TCK")
    return [
        sum(map(int, open(f"/proc/self/task/{t}/stat").read().rpartition(")")[2].split()[11:13])) / hertz
        for t in sorted(os.listdir("/proc/self/task"), key=int)
    ]

before, begin = spent(), time.perf_counter()
for _ in range(200):
    x = x @ x * 1e-3
x.numpy()
wall = time.perf_counter() - begin
busy = [b - a for a, b in zip(before, spent())]
if flow.env.get_rank() == 0:
    print(json.dumps({"cores": sorted(os.sched_getaffinity(0)), "wall": wall, "busy": sorted(busy)}))
"""


@pytest.mark.parametrize(("share", "ranks", "bound"), [(True, 1, True), (False, 64, False)])
def test_what_the_caller_says_counts(share: bool, ranks: int, bound: bool) -> None:
    job = LaunchJob(("x.py",), ranks, share_cores=share)
    assert all((job.core(k) is not None) is bound for k in range(ranks))


def test_by_default_ranks_with_fewer_than_two_cores_each_are_bound() -> None:
    cores = len(os.sched_getaffinity(0))
    assert LaunchJob(("x.py",), cores // 2 + 1).core(0) is not None
    if cores >= 2:
        assert LaunchJob(("x.py",), cores // 2).core(0) is None


def test_ranks_of_all_nodes_take_the_cores_in_turn() -> None:
    cores = sorted(os.sched_getaffinity(0))
    found = [
        LaunchJob(("x.py",), 3, nnodes=2, node_rank=node, share_cores=True).core(k)
        for node in range(2)
        for k in range(3)
    ]
    assert found == [cores[rank % len(cores)] for rank in range(6)]


@pytest.mark.oneflow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code for x86-64 only")
@pytest.mark.parametrize("share", [True, False])
def test_the_scheduler_sleeps(tmp_path: Path, share: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = launch(
        [str(script)],
        nproc_per_node=1,
        share_cores=share,
        timeout_s=100,
        stream_rank0=False,
        check=True,
    )
    found = json.loads(next(line for line in result.logs[0].splitlines() if line.startswith("{")))
    second = found["busy"][-2] / found["wall"]  # the first is the thread that multiplies
    if share:
        assert len(found["cores"]) == 1
        assert second < 0.2
    else:  # so that the test would see it
        assert second > 0.3
