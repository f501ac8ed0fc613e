"""Engines by name: what is known of them before any is imported."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from inspect import signature
from pathlib import Path

import pytest

import autoddl
from autoddl.engine import engines
from autoddl.engine.interface import Engine
from autoddl.errors import AutoDDLError

ENGINES = ("oneflow",)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_what_its_name_says(name: str) -> None:
    engine = engines.load(name)
    assert engine.model is engines.model(name) and engine.model.name == name
    assert engine.installed() is (find_spec(name) is not None)
    assert all(find_spec(module) is not None for module in engine.probes)


@pytest.mark.oneflow
def test_oneflow_has_all_methods_of_an_engine_as_they_are_called() -> None:
    engine = engines.load("oneflow")
    for name, method in vars(Engine).items():
        if not name.startswith("_") and callable(method):
            asked = [p for p in signature(method).parameters if p != "self"]
            assert [*signature(getattr(engine, name)).parameters][: len(asked)] == asked, name


@pytest.mark.parametrize("name", ENGINES)
def test_loading_an_engine_imports_nothing_of_it(name: str) -> None:
    code = (
        "import sys; from autoddl.engine import engines\n"
        f"engines.load({name!r}).installed(); print({name!r} in sys.modules)"
    )
    root = Path(autoddl.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_others_are_refused() -> None:
    for find in (engines.load, engines.model):
        told = r"^engine: got 'jax'; allowed are oneflow, script or None$"
        with pytest.raises(AutoDDLError, match=told):
            find("jax")


def test_no_engine_is_the_whole_space() -> None:
    found = engines.model(None)
    assert (found.name, found.limits.any_order, found.limits.refused) == (None, True, {})
    assert engines.model(None) is found
