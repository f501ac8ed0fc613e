"""Machine code is kept between processes, and made anew where what is kept is of no use."""

from __future__ import annotations

import importlib.util
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numba
import pytest

from autoddl import compiled
from autoddl.compiled import clock_s

BEFORE = """
from typing import NamedTuple
import numpy as np
from autoddl.compiled import compiled

class {name}(NamedTuple):
    numbers: np.ndarray

@compiled
def total(given):
    return given.numbers.sum()

print(total({name}(np.arange(4.0))), total._cache_hits[total.signatures[0]])
"""


def run(folder: Path, name: str) -> str:
    """Run the module as if for the first time, its tuple by that name; return what it prints."""
    file = folder / "loops.py"
    file.write_text(BEFORE.format(name=name))
    spec = importlib.util.spec_from_file_location("loops", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setitem(sys.modules, "loops", module)
        spec.loader.exec_module(module)
    return printed.getvalue()


def test_code_is_kept_and_an_index_with_types_that_are_gone_is_begun_anew(tmp_path: Path) -> None:
    assert run(tmp_path, "Before") == "6.0 0\n"
    assert run(tmp_path, "Before") == "6.0 1\n"  # from the cache
    assert run(tmp_path, "After") == "6.0 0\n"  # the index names Before, which is gone
    assert run(tmp_path, "After") == "6.0 1\n"


@pytest.mark.parametrize("damage", ["cut off", "emptied", "noise"])
def test_damaged_files_are_begun_anew(tmp_path: Path, damage: str) -> None:
    assert run(tmp_path, "Before") == "6.0 0\n"
    kept = [
        file for file in (tmp_path / "__pycache__").iterdir() if file.suffix in (".nbi", ".nbc")
    ]
    assert len(kept) == 2
    for file in kept:
        whole = file.read_bytes()
        damaged = {"cut off": whole[: len(whole) // 2], "emptied": b"", "noise": whole[::-1]}
        file.write_bytes(damaged[damage])
        assert run(tmp_path, "Before") == "6.0 0\n", file.suffix
        assert run(tmp_path, "Before") == "6.0 1\n", file.suffix


def test_what_is_compiled_from_a_string_has_no_module() -> None:
    named: dict[str, Any] = {}
    exec("def one():\n    return 1", named)
    named["one"].__module__ = None
    assert numba.njit(named["one"])() == 1


def test_searches_are_not_charged_for_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "time", time)  # the clock that users have

    @numba.njit
    def inner(x: float) -> float:
        return x + 1

    @numba.njit
    def outer(x: float) -> float:
        return inner(x) * 2

    begin, by_clock = time.perf_counter(), clock_s()
    assert outer(1.0) == 4.0
    whole, counted = time.perf_counter() - begin, clock_s() - by_clock
    assert counted < whole / 5
    by_clock = clock_s()
    time.sleep(0.01)
    assert clock_s() - by_clock >= 0.01
