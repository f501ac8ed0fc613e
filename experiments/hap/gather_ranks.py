"""Time a padded and a grouped gather between nodes by turns; the rank program of shaped_gathers.

Arguments: a folder for rank 0's seconds.json, the shares as 3/1/1/1, and how many bytes are gathered.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow

from autoddl.calibrate.network.link_cases import BETWEEN, CollectiveCase
from autoddl.engine.oneflow.probes import boxing_chains
from autoddl.engine.oneflow.probes.rank_groups import RankGrid
from autoddl.engine.oneflow.probes.stopwatch import Effort, turns
from autoddl.perfmodel.collectives import BROADCAST
from autoddl.sbp.boxing import ALL_GATHER

CALL_BYTES = 4 << 20  # that the gathers of one call make together, of long ones two
EFFORT = Effort(iterations=12, warm_up=2, limit_s=40.0)


def main(folder: Path, shares: tuple[int, ...], size_bytes: int) -> None:
    grid = RankGrid(flow.env.get_world_size(), 1)
    programs, steps = [], max(2, min(16, CALL_BYTES // size_bytes))
    for way in (ALL_GATHER, BROADCAST):
        case = CollectiveCase("eager", way, BETWEEN, grid.nodes, size_bytes, 1, 1, steps, shares)
        chain = boxing_chains.chain(case, grid)
        programs.append((chain.body, chain.inputs))
    seconds = np.median(turns(programs, EFFORT), axis=0) / steps
    if flow.env.get_rank() == 0:
        (folder / "seconds.json").write_text(json.dumps(seconds.tolist()))
    flow.comm.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(map(int, sys.argv[2].split("/"))), int(sys.argv[3]))
