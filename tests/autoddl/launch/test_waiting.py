"""Ranks that share cores: bound to one core each, and OneFlow's scheduler does not burn it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import autoddl
from autoddl.launch.job import LaunchJob
from autoddl.launch.launcher import launch

# Where OneFlow's calls of sched_yield go, how long one takes, and how often threads went to sleep
# while a long chain of products was under way.
SCRIPT = """
import ctypes, json, os, time
import oneflow as flow
from autoddl.launch import waiting

def sleeps():
    texts = [open(f"/proc/self/task/{t}/status").read() for t in os.listdir("/proc/self/task")]
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)

x = flow.ones(512, 512)
(x @ x).numpy()
slot = waiting._slot(waiting._base(), b"sched_yield")
target = ctypes.c_uint64.from_address(slot).value
rights = {}
for line in open("/proc/self/maps"):
    span, right, *_, inode = line.split()[:5]
    first, last = (int(end, 16) for end in span.split("-"))
    if first <= target < last:
        rights = {"rights": right, "inode": int(inode)}
begin, before = time.perf_counter(), sleeps()
for _ in range(100):
    ctypes.CFUNCTYPE(ctypes.c_int)(target)()
call_s = (time.perf_counter() - begin) / 100
for _ in range(100):
    x = x @ x * 1e-3
x.numpy()
slept = sleeps() - before
print(json.dumps({"cores": sorted(os.sched_getaffinity(0)), "call_s": call_s, "slept": slept, **rights}))
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
@pytest.mark.ranks
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code for x86-64 only")
@pytest.mark.parametrize("share", [True, False])
def test_the_scheduler_sleeps(tmp_path: Path, share: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = launch(
        [str(script)],
        nproc_per_node=1,
        share_cores=share,
        timeout_s=300,
        env={"PYTHONPATH": str(Path(autoddl.__file__).parents[1])},
        stream_rank0=False,
        check=True,
    )
    found = json.loads(next(line for line in result.logs[0].splitlines() if line.startswith("{")))
    if share:  # into our own page, asleep for 200 µs and more, again and again
        assert len(found["cores"]) == 1
        assert (found["inode"], found["rights"][:3]) == (0, "rwx")
        assert found["call_s"] >= 200e-6 and found["slept"] > 200
    else:  # into a library
        assert found["inode"] > 0
