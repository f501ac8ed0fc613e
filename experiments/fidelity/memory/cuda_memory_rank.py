"""What the processes of cuda_memory.py run: rank 0 compiles, the others are there.

Only rank 0 compiles a plan in OneFlow, for all ranks; but the ranks have to exist. The others do not even
import what compiles.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import oneflow as flow

from experiments.lib.without_gpu import PLAN

_POLL_S = 0.02


def main(folder: Path) -> None:
    """Compile the plan of `folder` (rank 0) or wait until OneFlow's is there; never return."""
    if flow.env.get_rank() == 0:
        from experiments.fidelity.memory import cuda_compilation

        cuda_compilation.main(folder)
    while not (folder / PLAN).exists():
        time.sleep(_POLL_S)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
