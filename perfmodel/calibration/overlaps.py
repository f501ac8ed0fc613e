"""How ops and boxings delay each other, from what chains of both take alone and together.

In the model a boxing of m seconds keeps the device from ops for (1 − ω)·m of them, the *overlap* ω says;
in the others an op takes 1 + κ times as long, the *interference* κ. A chain of boxings of M seconds
beside ops of C ≥ M seconds then takes

    together = C + (1 − ω)·M + ω·M·κ/(1 + κ), so that η = (C + M − together)/M = ω/(1 + κ) is *hidden*.

η is the ratio of HiDup's table 4. The three times tell no more than it: to ops, a device that is taken
and one that is slow are the same. But boxings have to wait for a device that ops hold, too. Where both
want it they get half each; then fewer ops, C' < M, which end after a time t in which the boxings
get on by p, have delayed these by t − p = (1 − ω)·p, with C' = (1 − ω)·p + ω·p/(1 + κ). So

    δ = (together' − M)/C' = (1 − ω)/(1 − ω + η)  and  1 − ω = η·δ/(1 − δ),  κ = ω/η − 1.

Besides, each message of a boxing keeps the device for a time that does not grow with its bytes, LogP's
overhead o: short messages beside more ops hardly hide, and o is how much longer these take for each one.
In a chain of long messages as much of M counts as ops.

Boxings of 10 ms beside ops of 20 ms take 22 ms together: η = 0.8. Beside ops of 5 ms they take 10 ms:
nobody waits, δ = 0, ω = 1, κ = 0.25. If they take 11 ms, δ = 0.2: ω = 0.8, κ = 0.
If they are eight messages of 0.5 ms overhead each, ops of 20 ms take 24 ms beside them.

Source: the ratio from HiDup, table 4; o from Culler et al., LogP (PPoPP 1993); δ is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

# Of boxings that hide less, noise would make the interference any number: it slows ops 20-fold at most.
_LEAST_HIDDEN = 0.05


class Delays(NamedTuple):
    """How far boxings hide behind more ops than they last, and which share of fewer ops delays them."""

    hidden: float
    delayed: float


class Attributed(NamedTuple):
    """The overlap and the interference of the model."""

    overlap: float
    interference: float


def delays(
    boxings_s: float, ops_s: float, together_s: float, few_ops_s: float, few_together_s: float
) -> Delays:
    """Return what a chain of boxings beside ops, and beside fewer ops, says, each from 0 to 1.

    The two times alone have to be positive.
    """
    hidden = (boxings_s + ops_s - together_s) / min(boxings_s, ops_s)
    delayed = (few_together_s - max(boxings_s, few_ops_s)) / min(boxings_s, few_ops_s)
    return Delays(min(max(hidden, 0.0), 1.0), min(max(delayed, 0.0), 1.0))


def overhead_s(boxings_s: float, ops_s: float, together_s: float, messages: float) -> float:
    """Return for how long each message of a chain of short ones keeps the device from ops.

    That is no longer than the message takes alone.
    """
    return min(max(together_s - ops_s, 0.0), boxings_s) / messages


def attributed(found: Iterable[Delays]) -> Attributed:
    """Return overlap and interference of the median of several primitives, of which there is one."""
    rows = list(found)
    hidden, delayed = (median(row[k] for row in rows) for k in (0, 1))
    taken = hidden * delayed / (1 - delayed) if delayed < 1 else 1.0
    overlap = max(hidden, 1 - taken)  # what hides has not taken the device
    if overlap == 0:
        return Attributed(0.0, 0.0)
    return Attributed(overlap, max(0.0, overlap / max(hidden, _LEAST_HIDDEN) - 1))
