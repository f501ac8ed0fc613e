"""Let all ranks meet at the beginning of a call that they have to make together.

OneFlow's collectives wait without a word for ranks that never come. Here a rank that waits says so
after some seconds, and where the others are; and calls that do not match are an error on all ranks.

    meet("optimize")  # on rank 0 alone, which people write by habit
    autoddl: rank 0 waits in optimize() for others: every rank has to call it (rank 1: last in step())
"""

from __future__ import annotations

import sys
import threading

import oneflow as flow

from autoddl.errors import AutoDDLError
from autoddl.launch import progress

CALLS = (
    "optimize", "apply", "step", "step.evaluate", "step.state_dict", "step.load_state_dict",
    "step.save", "step.load", "step.close",
)  # fmt: skip
PATIENCE_S = 10.0  # on a busy machine ranks begin some seconds one after the other


def meet(call: str) -> None:
    """Return when all ranks have entered a call, one of CALLS.

    Raises:
        AutoDDLError: on every rank, where some have entered another one.
    """
    progress.enter(f"{call}()")
    world = int(flow.env.get_world_size())
    if world == 1:
        return
    timer = threading.Timer(PATIENCE_S, _tell, [call])
    timer.daemon = True
    timer.start()
    try:
        counts = _counted(call)
    finally:
        timer.cancel()
    if counts[call] != world:
        found = ", ".join(f"{count} in {name}()" for name, count in counts.items() if count)
        raise AutoDDLError(
            f"{call}: ranks differ ({found}); every rank has to make the same calls in the same order"
        )


def _counted(call: str) -> dict[str, int]:
    """Count the ranks in each call; this waits for all of them."""
    own = flow.tensor([int(name == call) for name in CALLS], dtype=flow.int32)
    flow.comm.all_reduce(own)
    return dict(zip(CALLS, map(int, own.numpy()), strict=True))


def _tell(call: str) -> None:
    """Say on stderr that this rank waits, and where others of its node are."""
    absent = [f"rank {rank}: {place}" for rank, place in progress.elsewhere().items()]
    where = f" ({'; '.join(absent)})" if absent else ""
    sys.stderr.write(
        f"autoddl: rank {flow.env.get_rank()} waits in {call}() for others: every rank has to call it"
        f"{where}\n"
    )
    sys.stderr.flush()
