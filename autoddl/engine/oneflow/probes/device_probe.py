"""Time the ops of probes.device_sources on every rank; the rank program of fit-device.

Each source becomes one nn.Graph on global tensors, everything broadcast, so that all ranks compute
the same at the same time, share cores and memory bus as in training, and send each other nothing.
Rank 0 appends a line to results.jsonl for every source that all ranks have timed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import oneflow as flow

from autoddl.calibrate.device.op_timing import OpSource, OpTask
from autoddl.engine.oneflow.capture.reader import program_of
from autoddl.engine.oneflow.capture.shadow import kept_gradients, shadow
from autoddl.engine.oneflow.probes import stamps
from autoddl.engine.oneflow.probes.device_sources import graph_of
from autoddl.engine.oneflow.probes.estimates import in_step
from autoddl.engine.oneflow.probes.stopwatch import of_all_ranks, report
from autoddl.engine.oneflow.run.global_tensors import make_global
from autoddl.perfmodel.calibration.kernel_fits import Timed
from autoddl.perfmodel.roofline import OpWork
from autoddl.sbp.program import Op, Program
from autoddl.sbp.state import NdSbp

_WARM_UP = 2
_CALLS = (6, 30)  # least, most
_FLOPS_PER_S, _BYTES_PER_S = 1e10, 1e9  # about; how many calls fit into a source's time
_SLOW = 1.5  # calls that take so many times the median were disturbed


def time_source(source: OpSource, *, seconds: float, wanted: Collection[str]) -> list[Timed]:
    """Return the ops of a source, of the types in `wanted` or all, with what each takes in a step."""
    graph, inputs = graph_of(source)
    placement = flow.placement("cpu", list(range(flow.env.get_world_size())))
    make_global(graph, lambda _: placement, lambda _: NdSbp.parse("B"))
    twin = shadow(graph)
    inputs = tuple(x.to_global(placement=placement, sbp=flow.sbp.broadcast) for x in inputs)
    with kept_gradients(graph):
        twin.build_graph(*inputs)
    job = twin._full_job_proto
    program = program_of(job, twin.name)
    order = stamps.sequence(program)
    if wanted and not any(op.type in wanted for op in order):
        return []
    stamps.write_stamps(job, order)
    twin._full_graph_proto = job
    twin.finish_complie_and_init_runtime()
    known = [_untimed(program, op) for op in order]
    calls = _WARM_UP + _calls(known, seconds)
    for _ in range(calls):
        flow.comm.barrier()
        twin(*inputs).to_local().numpy()
        flow._oneflow_internal.eager.Sync()
    spans = stamps.read_stamps(Path.cwd(), calls=calls, ops=len(order))[_WARM_UP:]
    everywhere = of_all_ranks([*_means(spans), *spans.sum(axis=1)])
    taken = in_step(everywhere[:, : len(order)], everywhere[:, len(order) :])
    timed = [replace(op, seconds=s) for op, s in zip(known, taken.tolist(), strict=True)]
    return [op for op in timed if not wanted or op.op_type in wanted]


def _untimed(program: Program, op: Op) -> Timed:
    """Return what the cost model knows of an op."""
    tensors = {operand: program.tensor[name] for operand, name in op.operands}
    work = OpWork.local(op, tensors, [tensor.shape for tensor in tensors.values()])
    return Timed(**work._asdict(), seconds=0.0)


def _calls(ops: Sequence[Timed], seconds: float) -> int:
    """Return how many calls to time: the same on all ranks, which a clock would not give."""
    ranks = flow.env.get_world_size()
    call_s = sum(op.flops / _FLOPS_PER_S + op.moved_bytes / _BYTES_PER_S for op in ops)
    return int(np.clip(seconds / (call_s * max(1.0, ranks / (os.cpu_count() or 1))), *_CALLS))


def _means(spans: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean of each op over the calls that nothing from outside disturbed.

    The mean, not the median: where ranks share cores, an op that is short most of the time waits
    now and then for its turn, and the sum over all ops has to be the time of the call.
    """
    totals = spans.sum(axis=1)
    quiet = totals <= _SLOW * np.median(totals)
    means: npt.NDArray[np.float64] = spans[quiet].mean(axis=0)
    return means


def main(folder: Path) -> None:
    task = msgspec.json.decode((folder / "task.json").read_bytes(), type=OpTask)
    settings = task.settings
    with tempfile.TemporaryDirectory(prefix="autoddl-") as own:
        os.chdir(own)
        for source in task.sources:
            ops = time_source(source, seconds=settings.seconds_per_source, wanted=settings.ops)
            report(folder, {"source": source.name, "ops": ops})
        os.chdir(folder)
    flow.comm.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
