"""What an engine refuses: labels of right signatures that it can't execute, by op type.

The tables are data, written by `python -m experiments.check_rules --engine --write` from the
engine's own lists; rules stay pure mathematics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

from autoddl.errors import AutoDDLError

ONEFLOW = "oneflow"
ENGINES = (ONEFLOW,)


def refused(op_type: str, engine: str | None) -> frozenset[str]:
    """Return the labels of `registry.labelled` that the engine refuses for an op type.

    `engine` None stands for no engine: nothing is refused.

    Raises:
        AutoDDLError: the engine is unknown.
    """
    if engine is None:
        return frozenset()
    if engine not in ENGINES:
        raise AutoDDLError(f"engine {engine!r}: allowed are {', '.join(ENGINES)} or None")
    return table(engine).get(op_type, frozenset())


@cache
def table(engine: str) -> Mapping[str, frozenset[str]]:
    """Return what an engine refuses, by op type."""
    folder = resources.files("autoddl.sbp.rules") / "tables"
    data = json.loads((folder / f"{engine}.json").read_text())
    return {op_type: frozenset(labels) for op_type, labels in data["refused"].items()}
