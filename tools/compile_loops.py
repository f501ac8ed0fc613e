"""Compile the planner's inner loops (autoddl/compiled.py): those of plans without stages, and with some.

    PYTHONPATH=. .venv/bin/python tools/compile_loops.py

Else every process of a test run compiles all of them for itself, as all begin at once. Where they are
compiled already this takes a few seconds.
"""

from __future__ import annotations

import autoddl
from tests.support.programs import mlp

BUDGET = autoddl.Budget(evaluations=300)

if __name__ == "__main__":
    autoddl.optimize(mlp(), mesh="2x2", budget=BUDGET)
    autoddl.optimize(mlp(), cluster="4", pipeline="auto", budget=BUDGET)
