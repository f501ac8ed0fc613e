"""Engines by name, without importing any: `load("oneflow").installed()` is False where it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from autoddl.engine.interface import Engine
from autoddl.engine.model import EngineModel
from autoddl.errors import AutoDDLError, shown

ONEFLOW, SCRIPT = "oneflow", "script"
_HOMES: Mapping[str, str] = {
    ONEFLOW: "autoddl.engine.oneflow.adapter:ENGINE",
    SCRIPT: "autoddl.engine.oneflow.adapter:SCRIPTS",
}


def load(name: str) -> Engine:
    """Return an engine.

    Raises:
        AutoDDLError: there is none of this name.
    """
    if not isinstance(name, str) or name not in _HOMES:
        raise AutoDDLError(f"engine: got {shown(name)}; allowed are {', '.join(_HOMES)} or None")
    module, _, attribute = _HOMES[name].partition(":")
    engine: Engine = getattr(import_module(module), attribute)
    return engine


def model(name: str | None) -> EngineModel:
    """Return an engine as planning sees it; None stands for none, which allows all that is right.

    Raises:
        AutoDDLError: there is none of this name.
    """
    return _whole_space() if name is None else load(name).model


@cache
def _whole_space() -> EngineModel:
    return load(ONEFLOW).model.whole_space()
