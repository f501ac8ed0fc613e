"""Stamps: their file is read as it is written; a stamped step computes what the plain one does."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from autoddl.calibrate.device.op_timing import OpSource


def event(seconds: float, rest: bytes = b"\x10\x00") -> bytes:
    """Encode an Event as TensorFlow's record format has it: length, checksum, data, checksum."""
    data = b"\x09" + struct.pack("<d", seconds) + rest
    return struct.pack("<Q", len(data)) + b"crc1" + data + b"crc2"


@pytest.mark.oneflow
def test_stamps_become_the_times_of_ops(tmp_path: Path) -> None:
    from autoddl.engine.oneflow.probes.stamps import read_stamps

    # 9 ops take 10, 11, … 18 s, stamps 1 s each; a pair of stamps stands before ops 0 and 8.
    times, now = [0.0], 100.0
    for _ in range(2):  # calls
        times.append(now)
        for position in range(9):
            if position in (0, 8):
                times.append(now := now + 1)
            times.append(now := now + 1 + 10 + position)
        now += 50
    (tmp_path / "event").mkdir()
    file = tmp_path / "event" / "event.1.log"
    file.write_bytes(b"".join(map(event, times)) + event(0.0)[:15])  # the last is being written
    seconds = read_stamps(tmp_path, calls=2, ops=9)
    np.testing.assert_allclose(seconds, [np.arange(10.0, 19.0)] * 2)
    assert not file.exists()


@pytest.mark.ranks
@pytest.mark.oneflow
def test_a_stamped_step_is_the_same_step(tmp_path: Path) -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture.reader import program_of
    from autoddl.engine.oneflow.capture.shadow import kept_gradients, shadow
    from autoddl.engine.oneflow.probes import stamps
    from autoddl.engine.oneflow.probes.device_sources import graph_of
    from autoddl.engine.oneflow.run.global_tensors import make_global
    from autoddl.sbp.state import NdSbp

    here = Path.cwd()
    losses = []
    os.chdir(tmp_path)
    try:
        for stamped in (False, True):
            flow.manual_seed(0)
            graph, inputs = graph_of(OpSource("rows", (256, 512), "adam"))
            mesh = flow.placement("cpu", [0])
            make_global(graph, lambda _, mesh=mesh: mesh, lambda _: NdSbp.parse("B"))
            given = [x.to_global(placement=mesh, sbp=flow.sbp.broadcast) for x in inputs]
            twin = shadow(graph)
            with kept_gradients(graph):
                twin.build_graph(*given)
            job = twin._full_job_proto
            ops = stamps.sequence(program_of(job, twin.name))
            if stamped:
                stamps.write_stamps(job, ops)
            twin._full_graph_proto = job
            twin.finish_complie_and_init_runtime()
            losses.append([float(twin(*given).to_local().numpy()) for _ in range(3)])
        seconds = stamps.read_stamps(tmp_path, calls=3, ops=len(ops))
    finally:
        os.chdir(here)
    assert losses[0] == losses[1]
    assert losses[0][0] > losses[0][-1]
    assert seconds.shape == (3, len(ops))
