"""Compile the planner's inner loops (autoddl/compiled.py): those of searches, and of predictions beside.

    PYTHONPATH=. .venv/bin/python tools/compile_loops.py

Else every process of a test run compiles all of them for itself, as all begin at once. Where they are
compiled already this takes two seconds.
"""

from __future__ import annotations

import sys
from multiprocessing import Process

from autoddl.engine.oneflow.model.memory.device_memory import estimate
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.timeline import predict
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.state import broadcast
from autoddl.search.warm_up import prepare
from tests.support.programs import mlp


def predictions() -> None:
    """Predict seconds and bytes of a step in which every device does everything."""
    program, mesh, whole = mlp(), Mesh.parse("2"), broadcast(1)
    signatures = {op.name: {operand: whole for operand, _ in op.operands} for op in program.ops}
    held = [name for p in program.parameters for name in (p.tensor, *p.states)]
    layout = Layout.of(
        program, signatures, dict.fromkeys(held, whole), dict.fromkeys(program.inputs, whole), ()
    )
    predict(mesh, profiles.load(None), layout)
    for compute_stream in (False, True):
        estimate(mesh.shape, layout, compute_stream=compute_stream)


if __name__ == "__main__":
    processes = [Process(target=work) for work in (prepare, predictions)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
