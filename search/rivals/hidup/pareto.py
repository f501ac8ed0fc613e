"""The fastest assignment of a chain: dynamic programming over cuts that keeps all undominated ones.

Half 1 computes a stage while half 2 communicates for it; half 2 computes it while half 1 communicates for
the next. χ is when half 1 is done with a stage, ψ when half 2 is. An assignment up to a cut has the
communication c and, so far, the computation p of its last stage, and v, when half 1 begins to compute it:
χ = v + max(c, p), ψ = χ + p. It goes on with a signature of the next unit, which adds to p; or it ends
the stage, and a move of c' seconds begins the next one with v' = max(ψ, χ + c') = χ + max(p, c'). The
backward pass, the same stages in reverse, takes as long from either end: it is one more pass. Of several
passes c and p are vectors, and what depends on them is summed up over the passes.

One assignment dominates another one in the same form if it is not slower whatever follows. Where a stage
ends, and there is one pass, that is ψ₁ ≤ ψ₂ and χ₁ ≤ χ₂: of (ψ, χ) = (8, 7) and (9, 6) both are kept,
(8, 6) dominates both. (HiDup compares ψ and χ − ψ, which keeps more.)

A longer last stage only helps as far as some communication is left that it can hide. By itself the rule
keeps ever more of them, as many as there were cuts; so it is asked for c' up to the longest move that is
left, which is exact as well.

Source: HiDup §4.2, eq. 4 and 5, fig. 4; the comparison of χ, and for c' that are bounded, is derived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoddl.compiled import compiled
from autoddl.errors import InfeasibleError
from autoddl.ragged import Ragged
from autoddl.search.rivals.hidup.chain import Chain, ChainAssignment, Floats, Ints, Unit

ROUNDING = 1e-12  # relative; assignments that differ by less are equal
BEGUN, GOES_ON = -1, -2


@dataclass(frozen=True, eq=False)
class _Labels:
    """Assignments up to one cut: by number, the form they are in, v, c and p by pass, and how they came.

    `parent` is the number of the one before; `how` the signature that led here or, on a cut, whether a
    stage has BEGUN or GOES_ON.
    """

    form: Ints
    v: Floats
    c: Floats
    p: Floats
    parent: Ints
    how: Ints

    def take(self, rows: Ints) -> _Labels:
        return _Labels(*[column[rows] for column in vars(self).values()])

    def joined(self, other: _Labels) -> _Labels:
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Labels(*map(np.concatenate, both))

    @property
    def chi(self) -> Floats:
        return np.asarray(self.v + np.maximum(self.c, self.p).sum(axis=1))

    @property
    def psi(self) -> Floats:
        return np.asarray(self.chi + self.p.sum(axis=1))


def search(chain: Chain) -> ChainAssignment:
    """Return the fastest assignment.

    Raises:
        InfeasibleError: no assignment leads to the end.
    """
    forms = np.unique(chain.units[0].before)
    none = np.zeros((len(forms), chain.passes))
    way = np.full(len(forms), GOES_ON)  # no label comes before
    here = _Labels(forms, none[:, 0], none, none, way, way)
    opened, ran, kept = [here], [_run(here, chain.units[0])], 0
    most = _most_s(chain)
    for place, (unit, moves) in enumerate(zip(chain.units[1:], chain.moves, strict=True)):
        last = ran[-1]
        closed = _undominated(last, most[place], closed=True)
        kept += len(closed)
        every = np.arange(len(last.form))
        both = replace(last, parent=every, how=np.full_like(every, GOES_ON))
        both = both.joined(_begun(last, closed, moves))
        opened.append(both.take(_undominated(both, most[place], closed=False)))
        ran.append(_run(opened[-1], unit))
    last = ran[-1]
    at = np.flatnonzero(np.isin(last.form, chain.ends))
    if not len(at):
        raise InfeasibleError("chain: no assignment leads to its end")
    best = int(at[last.psi[at].argmin()])
    kept += len(_undominated(last, most[-1], closed=True))
    signatures, begins = _traced(opened, ran, best)
    return ChainAssignment(signatures, begins, float(last.psi[best]), kept)


def _traced(
    opened: Sequence[_Labels], ran: Sequence[_Labels], number: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the signatures that led to a label behind the last unit, and where stages began."""
    signatures, begins = list[int](), list[int]()
    for place in range(len(ran) - 1, -1, -1):
        signatures.append(int(ran[place].how[number]))
        number = int(ran[place].parent[number])
        if opened[place].how[number] == BEGUN:
            begins.append(place)
        number = int(opened[place].parent[number])
    return tuple(reversed(signatures)), tuple(reversed(begins))


def _run(labels: _Labels, unit: Unit) -> _Labels:
    """Return the labels behind a unit: each with every signature that begins in its form."""
    forms = max(labels.form.max(initial=0), unit.before.max(initial=0)) + 1
    rows = Ragged.sorted(labels.form, np.arange(len(labels.form)), int(forms)).take(unit.before)
    parent, how = rows.items, rows.row
    return _Labels(
        unit.after[how], labels.v[parent] + unit.once_s[how], labels.c[parent],
        labels.p[parent] + unit.seconds[how], parent, how,
    )  # fmt: skip


def _begun(labels: _Labels, closed: Ints, moves: Floats) -> _Labels:
    """Return labels that begin a stage behind those that end one."""
    ways = np.isfinite(moves).all(axis=0)[labels.form[closed]]
    which, form = np.nonzero(ways)
    parent = closed[which]
    c = moves[:, labels.form[parent], form].T
    v = labels.chi[parent] + np.maximum(labels.p[parent], c).sum(axis=1)
    return _Labels(form, v, c, np.zeros_like(c), parent, np.full(len(form), BEGUN))


def _most_s(chain: Chain) -> Floats:
    """Return by cut and pass the longest move that is left, 0 behind the last unit."""
    longest = [np.where(np.isfinite(m), m, 0.0).max(axis=(1, 2)) for m in chain.moves]
    none = np.zeros((1, chain.passes))
    return np.asarray(np.maximum.accumulate(np.array([*none, *longest[::-1]]))[::-1])


def _undominated(labels: _Labels, most: Floats, *, closed: bool) -> Ints:
    """Return the labels that no other one in their form dominates, whose stages end here or may go on."""
    order = np.lexsort((labels.chi, labels.psi, labels.form))
    some = labels.take(order)
    return np.asarray(order[_first(some.form, some.v, some.c, some.p, most, closed)])


@compiled
def _first(form: Ints, v: Floats, c: Floats, p: Floats, most: Floats, closed: bool) -> Ints:
    """Return those that none before them in their form dominates.

    What one has less, whatever q is added to p and whichever c' up to `most` follows, is v₂ − v₁ and by
    pass at least

        min(p₂ − p₁, max(most, p₂) − max(most, p₁)) + min(max(c₂, p₂) − max(c₁, p₁), p₂ − p₁)

    of which the first is attained where c' is 0 or `most`, the second where q is 0 or large; it is 0 if
    stages end.
    """
    kept, count, begin = np.empty(len(form), np.int64), 0, 0
    for new in range(len(form)):
        if new and form[new] != form[new - 1]:
            begin = count
        free = True
        for place in range(begin, count):
            old = kept[place]
            less = v[new] - v[old]
            for k in range(c.shape[1]):
                more = p[new, k] - p[old, k]
                busy = max(c[new, k], p[new, k]) - max(c[old, k], p[old, k])
                hidden = max(most[k], p[new, k]) - max(most[k], p[old, k]) if more > 0 else more
                less += hidden + (busy if closed else min(busy, more))
            if less >= -ROUNDING * v[new]:
                free = False
                break
        if free:
            kept[count] = new
            count += 1
    return kept[:count]
