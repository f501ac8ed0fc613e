"""Machine code is kept between processes, and made anew where what is kept is of no use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    """Run the module in a process of its own, its tuple by that name; return what it prints."""
    (folder / "loops.py").write_text(BEFORE.format(name=name))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", "import loops"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(root)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_code_is_kept_and_an_index_with_types_that_are_gone_is_begun_anew(tmp_path: Path) -> None:
    assert run(tmp_path, "Before") == "6.0 0\n"
    assert run(tmp_path, "Before") == "6.0 1\n"  # from the cache
    assert run(tmp_path, "After") == "6.0 0\n"  # the index names Before, which is gone
    assert run(tmp_path, "After") == "6.0 1\n"
