"""Time every op of a training step from inside: the ops in sequence, with a time stamp after each.

OneFlow's op `summary_write_scalar`, which writes a number for TensorBoard, notes the wall time in
microseconds when it runs. Control edges tie all ops of a job into one sequence in which such a
stamp follows every op, so that differences of neighbouring stamps are what the ops took, among the
same neighbours and with the same data in the caches as in training.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.engine.oneflow.capture.reader import DTYPE_NUMBERS
from autoddl.engine.oneflow.job.job_writer import NO_PORTS, JobWriter, Ports, write_signature
from autoddl.sbp.program import Op, Program
from autoddl.sbp.state import NdSbp

_BROADCAST = NdSbp.parse("B")
_PREFIX = "autoddl-stamp-"
_OPERANDS = {"in": "float32", "step": "int64", "tag": "int8"}  # of the stamping op; all one element
_WALL_TIME = 0x09  # tag of the first field of an Event message: a double
_WRITTEN_S = 10.0  # a call may return before its last op, which writes the stamps to the file
_QUIET = 0.25
_EVERY = 8  # ops after which two stamps follow each other: the time between them is that of a stamp


def sequence(program: Program) -> tuple[Op, ...]:
    """Return the ops in an order in which they can run: updates last, since others read weights."""
    return tuple(sorted(program.ops, key=lambda op: op.phase == "optimizer"))


def write_stamps(job: Any, ops: Sequence[Op]) -> None:
    """Rewrite a built job: `ops` run in this order, all broadcast, with a stamp after each.

    The job may run with every rank in a folder of its own only: the stamps go to ./event.
    """
    writer = _StampWriter(job, ops[0].name)
    previous = writer.start()
    for position, op in enumerate(ops):
        if position % _EVERY == 0:
            previous = writer.stamp(after=previous)
        writer.broadcast(op.name, [operand for operand, _ in op.operands])
        writer.ops[op.name].ctrl_in_op_name.append(previous)
        previous = writer.stamp(after=op.name)
    writer.tied("flush_summary_writer", after=previous)


def read_stamps(folder: Path, *, calls: int, ops: int) -> npt.NDArray[np.float64]:
    """Return (`calls`, `ops`) seconds of the ops in all calls since the last reading.

    A stamp's own time is taken off: the lower quartile over all places where two follow each other,
    since where ranks wait for cores the wait is no part of it. Short ops may come out below 0 by
    noise. The stamps are removed.

    Raises:
        ValueError: other than that many calls were stamped.
    """
    (file,) = (folder / "event").iterdir()
    positions = np.arange(ops)
    shape = (calls, 1 + ops + len(positions[::_EVERY]))
    end = time.monotonic() + _WRITTEN_S
    while len(times := _wall_times(file.read_bytes())) < math.prod(shape):
        if time.monotonic() > end:
            raise ValueError(f"{len(times)} stamps were written instead of {math.prod(shape)}")
        time.sleep(0.01)
    file.unlink()
    spans = np.diff(np.array(times).reshape(shape), axis=1)
    at = positions + positions // _EVERY + 1  # the span that ends with the stamp after each op
    seconds: npt.NDArray[np.float64] = spans[:, at] - np.quantile(
        np.delete(spans, at, axis=1), _QUIET
    )
    return seconds


def _wall_times(content: bytes) -> list[float]:
    """Read the records of an event file: length, its checksum, an Event, its checksum."""
    times, at = [], 0
    while at + 12 < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        start = at + 12
        if start + length + 4 > len(content):
            break  # being written
        if content[start] != _WALL_TIME:
            raise ValueError("an event does not begin with its time")
        times.append(struct.unpack_from("<d", content, start + 1)[0])
        at = start + length + 4
    return times[1:]  # the first says which version of the format it is


class _StampWriter(JobWriter):
    """Add ops beside the op `like`: on its devices, in its scope."""

    def __init__(self, job: Any, like: str) -> None:
        super().__init__(job, graph_name="")
        self.like = like
        self.count = 0
        self.sources: dict[str, str] = {}

    def start(self) -> str:
        """Open the file and write the first stamp; return its name."""
        previous = self.tied("create_summary_writer")
        self.ops[previous].user_conf.attr["logdir"].at_string = "."
        for port, dtype in _OPERANDS.items():
            self.sources[port] = self._constant(dtype)
        return self.stamp(after=previous)

    def stamp(self, *, after: str) -> str:
        inputs = {port: [f"{source}/out_0"] for port, source in self.sources.items()}
        name = self.tied("summary_write_scalar", inputs, after=after)
        self.broadcast(name, [f"{port}_0" for port in self.sources])
        return name

    def tied(self, op_type: str, inputs: Ports = NO_PORTS, *, after: str | None = None) -> str:
        """Add an op that runs behind another one and return its name."""
        name = f"{_PREFIX}{self.count}"
        self.count += 1
        op = self.add(name, op_type, self.ops[self.like], inputs)
        op.ctrl_in_op_name.extend([] if after is None else [after])
        return name

    def _constant(self, dtype: str) -> str:
        name = self.tied("constant")
        conf = self.ops[name].user_conf
        conf.attr["floating_value"].at_double = 0.0
        conf.attr["integer_value"].at_int64 = 0
        conf.attr["is_floating_value"].at_bool = dtype == "float32"
        conf.attr["dtype"].at_data_type = DTYPE_NUMBERS[dtype]
        conf.attr["shape"].at_shape.dim.append(1)
        conf.attr["nd_sbp"].at_list_string.val.append("B")
        conf.output["out"].s.append(f"{name}/out_0")
        conf.output_order.append("out")
        desc = self.descs[f"{name}/out_0"]
        desc.shape.dim.append(1)
        desc.stride.dim.append(1)
        desc.data_type = DTYPE_NUMBERS[dtype]
        desc.is_dynamic = False
        self.broadcast(name, ["out_0"])
        return name

    def broadcast(self, name: str, operands: Sequence[str]) -> None:
        """Make an op all-broadcast (the mesh has one axis)."""
        write_signature(self.job, name, dict.fromkeys(operands, _BROADCAST))
