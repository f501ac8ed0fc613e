"""Time the ops of probes.device_sources on every rank; the rank program of fit-device.

Each source becomes one nn.Graph on global tensors, everything broadcast, so that all ranks compute
the same at the same time, share cores and memory bus as in training, and send each other nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import oneflow as flow

from autoddl.engine.oneflow.capture.reader import program_of
from autoddl.engine.oneflow.capture.shadow import kept_gradients, shadow
from autoddl.engine.oneflow.probes import stamps
from autoddl.engine.oneflow.probes.device_sources import Source, sources
from autoddl.engine.oneflow.run.training_step import make_global
from autoddl.perfmodel.kernel_variants import variant
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.registry import OpView, find
from autoddl.sbp.state import NdSbp

_WARM_UP = 2
_CALLS = (6, 30)  # least, most
_FLOPS_PER_S, _BYTES_PER_S = 1e10, 1e9  # about; how many calls fit into a source's time
_SLOW = 1.5  # calls that take so many times the median were disturbed


def time_source(source: Source, *, seconds: float, ops: frozenset[str] | None) -> dict[str, Any]:
    """Return "records", one for every op of a source (of the types in `ops`), and "calls_s".

    A record has the op's type, family, dtype, flops, moved_bytes and its mean seconds in a call;
    `calls_s` are the seconds of all ops in each call. Both are empty for a source without such ops.
    """
    graph, inputs = source.make()
    placement = flow.placement("cpu", list(range(flow.env.get_world_size())))
    make_global(graph, lambda _: placement, NdSbp.parse("B"))
    twin = shadow(graph)
    inputs = tuple(x.to_global(placement=placement, sbp=flow.sbp.broadcast) for x in inputs)
    with kept_gradients(graph):
        twin.build_graph(*inputs)
    job = twin._full_job_proto
    program = program_of(job, twin.name)
    order = stamps.sequence(program)
    if ops is not None and not any(op.type in ops for op in order):
        return {"records": [], "calls_s": []}
    stamps.write_stamps(job, order)
    twin._full_graph_proto = job
    twin.finish_complie_and_init_runtime()
    known = [_record(program, op) for op in order]
    calls = _WARM_UP + _calls(known, seconds)
    for _ in range(calls):
        flow.comm.barrier()
        twin(*inputs).to_local().numpy()
        flow._oneflow_internal.eager.Sync()
    spans = stamps.read_stamps(Path.cwd(), calls=calls, ops=len(order))[_WARM_UP:]
    timed = zip(known, _means(spans).tolist(), strict=True)
    records = [{**r, "seconds": s} for r, s in timed if ops is None or r["op_type"] in ops]
    return {"records": records, "calls_s": spans.sum(axis=1).tolist()}


def _record(program: Program, op: Op) -> dict[str, Any]:
    """Return what the cost model knows of an op: flops and bytes as search.builder counts them."""
    tensors = {operand: program.tensor[name] for operand, name in op.operands}
    rule = find(op.type)
    view = OpView.of(op, {operand: tensor.shape for operand, tensor in tensors.items()})
    return {
        "op_type": op.type,
        "variant": variant(view),
        "family": rule.family if rule else "elementwise",
        "dtype": next(iter(tensors.values())).dtype,
        "flops": float(rule.flops(view)) if rule else 0.0,
        "moved_bytes": float(sum(tensor.size_bytes for tensor in tensors.values())),
    }


def _calls(records: list[dict[str, Any]], seconds: float) -> int:
    """Return how many calls to time: the same on all ranks, which a clock would not give."""
    ranks = flow.env.get_world_size()
    call_s = sum(r["flops"] / _FLOPS_PER_S + r["moved_bytes"] / _BYTES_PER_S for r in records)
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


def _todo(task: dict[str, Any]) -> Iterator[Source]:
    for source in sources(quick=task["quick"]):
        if source.name not in task["done"]:
            yield source


def main(folder: Path) -> None:
    """Do the task of folder/task.json; append a line for every source to folder/rank<k>.jsonl."""
    task = json.loads((folder / "task.json").read_text())
    ops = frozenset(task["ops"]) if task["ops"] else None
    with (
        tempfile.TemporaryDirectory(prefix="autoddl-") as own,
        (folder / f"rank{flow.env.get_rank()}.jsonl").open("a") as output,
    ):
        os.chdir(own)
        for source in _todo(task):
            timed = time_source(source, seconds=task["seconds_per_source"], ops=ops)
            output.write(json.dumps({"source": source.name, **timed}) + "\n")
            output.flush()
        os.chdir(folder)
    flow.comm.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
