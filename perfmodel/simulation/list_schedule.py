"""The order in which a device runs its works: forward-backward improvement of a list schedule.

As works are ready is not always best. A schedule from the end (what waits for nothing is what nothing
waits for) in which goes first what ended last tells how late each work can start; a schedule from the
begin in which goes first what can't start late is mostly shorter. Both are orders of the device.

Works 0 (1 s) and 1 (2 s) need the device, a boxing of 4 s waits for 1, and work 2 (1 s) for the boxing.
As they are ready, 0 goes first and all ends after 8 s. From the end come 2, the boxing, 0 and 1: so 1
goes first, 0 runs beside the boxing, and all ends after 7 s.

Source: Li and Willis 1992 (An iterative scheduling technique for resource-constrained project
scheduling, EJOR 56); Valls, Ballestín and Quintanilla 2005 (Justification and RCPSP, EJOR 165).
"""

from __future__ import annotations

import numpy as np

from autoddl.perfmodel.simulation.event_simulation import Ints, Works

# Relative; less is left to the engine, since each work that waits for another one costs it a message.
WORTH = 2e-3


def ordered(works: Works, mine: Ints) -> Works | None:
    """Return works of which `mine`, those of one device, go one behind the other in a better order.

    None if they end no sooner than as they are ready.
    """
    back = works.mirrored().ranked(-works.plain.ended[::-1])
    latest = -back.ended[::-1]
    forth = works.ranked(latest)
    turns = [mine[when[mine].argsort(kind="stable")] for when in (forth.ended, latest)]
    if np.array_equal(*turns):  # as for most plans of equal layers
        del turns[1]
    best, least_s = None, (1 - WORTH) * works.end_s
    for turn in turns:
        chained = works.behind(turn)
        if chained.end_s < least_s:
            best, least_s = chained, chained.end_s
    return best
