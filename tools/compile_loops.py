"""Compile the planner's inner loops (autoddl/compiled.py): those of models and of searches at a time.

    PYTHONPATH=. .venv/bin/python tools/compile_loops.py

Else every process of a test run compiles all of them for itself, as all begin at once. Where they are
compiled already this takes a few seconds.
"""

from __future__ import annotations

import multiprocessing

BUDGET = 300  # evaluations


def of_models() -> None:
    """Compile what simulates a step and its memory."""
    from autoddl.perfmodel import profile
    from autoddl.planner.whole.assigned import Assigned
    from autoddl.sbp.mesh import Mesh
    from autoddl.search.heuristics.descent import replicated
    from experiments.lib.oneflow_problems import build
    from tests.support.programs import mlp

    network = build(mlp(), Mesh.parse("2x2", ("node", "gpu")), profile.load(None))
    found = Assigned(network, replicated(network))
    assert found.memory_bytes > 0 and found.step_s > 0


def of_searches() -> None:
    """Compile what searches plans, without stages and with some; what models compile comes last."""
    import autoddl
    from tests.support.programs import mlp

    budget = autoddl.Budget(evaluations=BUDGET)
    autoddl.optimize(mlp(), mesh="2x2", budget=budget)
    autoddl.optimize(mlp(), cluster="4", pipeline="auto", budget=budget)
    autoddl.optimize(
        mlp(),
        mesh="1",
        pipeline=2,
        micro_batches=2,
        engine="script",
        schedule="searched",
        budget=budget,
    )


if __name__ == "__main__":
    models = multiprocessing.get_context("spawn").Process(target=of_models)
    models.start()
    of_searches()
    models.join()
