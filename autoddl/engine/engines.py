"""Engines by name, without importing any: `load("oneflow").installed()` is False where it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from autoddl.engine.interface import Engine
from autoddl.engine.limits import ONEFLOW, limits_of

_HOMES: Mapping[str, str] = {ONEFLOW: "autoddl.engine.oneflow.adapter"}


def load(name: str) -> Engine:
    """Return an engine.

    Raises:
        AutoDDLError: there is none of this name.
    """
    limits_of(name)
    engine: Engine = import_module(_HOMES[name]).ENGINE
    return engine
