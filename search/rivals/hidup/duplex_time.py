"""What the two halves of a batch take that run in turn: one computes while the other communicates.

A stage is communication, then computation; c and p are one half's seconds of them. Half 1 computes
stage i while half 2 communicates for it; half 2 computes it while half 1 communicates for stage i + 1.
χ is when half 1 is done with a stage, ψ when half 2 is:

    χ_i = max(ψ_{i−1}, χ_{i−1} + c_i) + max(c_i, p_i)        ψ_i = χ_i + p_i

    c = (0, 2), p = (3, 1): half 1 is done with its stages at 3 and 8, half 2 at 6 and 9. One half behind
    the other they would take 12.

The closed form reads the same from either end. So the backward pass, which goes through the stages in
reverse, is one more pass over the same stages, whose time is added.

Source: HiDup §4.2, eq. 4–5, in which φ = χ − ψ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise


def reached(comm_s: Sequence[float], comp_s: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield (ψ, χ) of every stage; the first one begins without communication."""
    psi = chi = 0.0
    for c, p in zip(comm_s, comp_s, strict=True):
        chi = max(psi, chi + c) + max(c, p)
        psi = chi + p
        yield psi, chi


def as_printed_s(comm_s: Sequence[float], comp_s: Sequence[float]) -> float:
    """Return ψ of the last stage by equations 4 and 5 as they are printed."""
    psi = phi = 0.0
    for comm, comp in zip(comm_s, comp_s, strict=True):
        psi = psi + phi + max(-phi, comm) + max(comm, comp) + comp
        phi = -comp
    return psi


def closed_form_s(comm_s: Sequence[float], comp_s: Sequence[float]) -> float:
    """Return p_1 + Σ [max(p_{i−1}, c_i) + max(c_i, p_i)] + p_m."""
    between = zip(pairwise(comp_s), comm_s[1:], strict=True)
    return comp_s[0] + sum(max(a, c) + max(c, b) for (a, b), c in between) + comp_s[-1]
