"""What the ranks run: OneFlow's auto-parallel on all of them, or autoddl.optimize on one.

Started by experiments.bench.against_auto_parallel through the launcher. Nothing is compiled or executed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oneflow as flow

import autoddl
from autoddl.engine.oneflow.capture.op_names import neutral_name
from autoddl.engine.oneflow.capture.reader import program_of
from autoddl.engine.oneflow.capture.shadow import kept_gradients, shadow
from autoddl.engine.oneflow.job.job_writer import read_state
from experiments.bench.against_auto_parallel.peer_plan import PeerPlan, beside
from experiments.lib.auto_parallel import auto_parallel, on_mesh
from experiments.models import gpt


def main(argv: Sequence[str]) -> None:
    """Run `peer SIZES MESH RESULT`, or `ours SIZES MESH RESULT PROFILE SEARCH BUDGET`."""
    task, text, mesh, file, *options = argv
    sizes, result = json.loads(text), Path(file)
    if task == "ours":
        ours(sizes, mesh, result, options)
        return
    found = peer(sizes, tuple(map(int, mesh.split("x"))))
    if flow.env.get_rank() == 0:
        found.save(result)
    sys.stdout.flush()
    flow.comm.barrier()
    if flow.env.get_rank() == 0:
        time.sleep(1.0)  # it serves the barrier: it goes last
    os._exit(0)  # graphs that were built and not compiled may hang at the end of the process


def ours(sizes: dict[str, Any], mesh: str, result: Path, options: Sequence[str]) -> None:
    """Plan with autoddl from the graph on; save the plan and the seconds that it took."""
    profile, search, budget = options
    graph, inputs = gpt.build(**sizes)
    begin = time.perf_counter()
    program = autoddl.capture(graph, *inputs)
    capture_s = time.perf_counter() - begin
    plan = autoddl.optimize(
        program, mesh=mesh, profile=profile, search=search, objective="sum", budget=float(budget)
    )
    seconds = time.perf_counter() - begin
    plan.save(beside(result, "plan"))
    program.save(beside(result, "program"))
    result.write_text(json.dumps({"seconds": seconds, "capture_s": capture_s}))


def peer(sizes: dict[str, Any], shape: tuple[int, ...]) -> PeerPlan:
    """Build the graph with auto-parallel, and once without, on tensors that are broadcast."""
    graph, inputs = gpt.build(**sizes)
    inputs = on_mesh(graph, inputs, shape)
    trace_s, _ = _build(shadow(graph), inputs)
    tuned = auto_parallel(graph)
    build_s, processor_s = _build(tuned, inputs)
    job = tuned._full_job_proto
    program = program_of(job, tuned.name)
    table = job.job_parallel_view_conf.op_name2nd_sbp_signature_conf
    signatures = {
        op.name: {o: _text(table[op.name].bn_in_op2nd_sbp[o]) for o, _ in op.operands}
        for op in program.ops
    }
    held = {
        neutral_name(op.name, tuned.name): _text(table[op.name].bn_in_op2nd_sbp["out"])
        for op in job.net.op
        if op.WhichOneof("op_type") in ("input_conf", "variable_conf")
    }
    known = {t: s for t, s in held.items() if t in program.tensor}
    return PeerPlan(program, signatures, known, trace_s, build_s, processor_s)


def _build(graph: flow.nn.Graph, inputs: tuple[Any, ...]) -> tuple[float, float]:
    """Trace a graph; return the seconds and those of this thread's own work."""
    flow.comm.barrier()
    begin, own = time.perf_counter(), time.process_time()
    with kept_gradients(graph):
        graph.build_graph(*inputs)
    return time.perf_counter() - begin, time.process_time() - own


def _text(message: Any) -> str:
    return ",".join(map(str, read_state(message)))


if __name__ == "__main__":
    main(sys.argv[1:])
