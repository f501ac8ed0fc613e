"""Exact search: a lower bound that rises, choices that drop out by it, and what is left solved.

Of equal layers three are looked at first (ascent.py). That gives a plan, and messages that bound all
plans of the whole problem when every layer in the middle has those of the second (a fold): with it
most choices drop out. A fold with more layers at both ends mostly closes the gap; its size does not
depend on the depth of the model. Otherwise all layers are looked at with the choices that are left.
What is not proven in the end is the start of a coordinate descent, and where few choices are left after
that an integer linear program finds the best of them (finish.py). A memory limit that binds becomes a
price of bytes first (priced.py), on a fold as well; with layers a small gap ends the search then.

Why a fold bounds the whole problem: any messages do (dual.py), also such as are the same for many
layers. Then a term of the whole problem is one of few, `Fold.edges` counts how often each occurs, and
the sum over all terms and nodes is that of the few times their counts. No layer is left out of it,
and no plan either: that layers have equal messages does not make their choices equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.search.ascent import PATIENCE, SOON, Ascent, everything
from autoddl.search.coordinate import search as descended
from autoddl.search.descent import cheapest, least_memory, replicated
from autoddl.search.dual import Dual
from autoddl.search.ends import Ends
from autoddl.search.finish import improved, prove
from autoddl.search.incumbent import PROVEN, Incumbent
from autoddl.search.prepare import prepare
from autoddl.search.priced import ENOUGH, KNOWN, Prices
from autoddl.search.problem import Ints, Problem
from autoddl.search.restrict import restricted
from autoddl.search.result import Assignment, Progress, SearchResult
from autoddl.search.shorten import Shortened, shorten, unchanged

# Rounds of a fold between two looks at its bound, and so often at most; a turn that brings it nearer to
# the best plan by less than CALM of its distance is the last one.
TURN, FOLDED, UNFOLDED, CALM = 2, 15, 6, 0.05
ENDS = 4, 3  # layers before and behind the gap of a longer fold
LESS = 0.8  # so small a part of the nodes is worth a fold of its own
STEADY = 4e-5  # relative; where few layers' bound moves less in a turn its messages serve for all
FIRST = 0.5  # so much of the time for ascents may go to few layers


def search(
    problem: Problem,
    *,
    budget: float = 20.0,
    seed: int = 0,
    memory_bytes: int | None = None,
    stop_gap: float = 0.0,
    starts: Iterable[Assignment] = (),
    progress: Progress | None = None,
) -> SearchResult:
    """Return the cheapest assignment and a bound that proves it, or the best within `budget` seconds.

    It stops earlier where (cost − bound) / cost is at most `stop_gap`. Nothing in it is random, any
    `seed` gives the same result unless the budget ends the search.

    Raises:
        InfeasibleError: no assignment fits into `memory_bytes`.
    """
    del seed
    problem.check_memory(memory_bytes)
    prepare()
    run = Incumbent(problem, budget, stop_gap, memory_bytes, progress)
    given = tuple(starts)
    for start in (least_memory(problem), replicated(problem), cheapest(problem), *given):
        run.offer(start)
    if (problem.flat.count == 1).all():
        run.bound_s = run.best_s
    else:
        stages = _Stages(run)
        stages.solve()
        if _descend(run, given):
            stages.go_on()
        if stages.last is not None:
            prove(run, stages.last)
            if improved(run, stages.last):
                stages.go_on()
                prove(run, stages.last)
    if not np.isfinite(run.best_s):
        raise InfeasibleError(
            f"search='exact' on mesh {problem.mesh}: no assignment that is possible was found in "
            f"{budget:g} s; give more memory or time"
        )
    proven = run.best_s - run.bound_s <= PROVEN * run.best_s
    return SearchResult(
        "exact", run.best, run.best_s, run.best_s if proven else run.bound_s,
        problem.memory_bytes(run.best), run.trace.ended(run.best_s), run.evaluations,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _View:
    """A relaxation of some layers, and which choices of its nodes may be part of a better plan."""

    some: Shortened
    dual: Dual
    left: Sequence[Ints]

    def domains(self, nodes: Iterable[int]) -> list[Ints]:
        """Return what is left of the choices of some nodes of the whole problem."""
        return [self.left[self.some.place[node]] for node in nodes]

    def ends(self, tensors: Sequence[int]) -> Ends:
        """Return which ends here stand for those of some edges of the whole problem."""
        return self.some.ends.of(tensors)


class _Stages:
    """From few layers to all of them."""

    def __init__(self, run: Incumbent) -> None:
        self.run, self.problem = run, run.problem
        self.last: Ascent | None = None  # over all layers

    def solve(self) -> None:
        """Raise the bound and look for plans until the best one is proven, or nothing moves."""
        some = shorten(self.problem)
        layered = some.problem is not self.problem
        ascend = self._few if layered else self._all
        known = self.run.limit is not None and KNOWN in self.problem.notes
        dual = None if known else Dual(some.problem, most_s=self.run.most_s())
        found = None if dual is None else ascend(some, dual)
        if found is None or found.binding:
            if layered:
                self.run.stop_gap = max(self.run.stop_gap, ENOUGH)
            if dual is not None:
                self.problem.notes[KNOWN] = self._prices(some, dual)
            byte_s = self._priced(self.problem.notes[KNOWN])
            if self._over():
                return
            dual = dual or Dual(some.problem, most_s=self.run.most_s())
            dual.price_memory(byte_s)
            found = ascend(some, dual, priced=True)
        if layered:
            self._layers(some, found)

    def _layers(self, some: Shortened, found: Ascent) -> None:
        """Go on with all layers, from what was found for a few."""
        few = _View(some, found.early, everything(some.problem))
        starts, wide = [few], found.dual.wide
        if some.folds:
            starts.insert(0, self._folded(few, wide=wide))
            if self._over():
                return
            starts[0] = self._unfolded(starts[0], wide=wide)
        domains = starts[0].domains(range(len(self.problem.nodes)))
        byte_s = few.dual.byte_s
        for before in starts:
            again = before is not starts[0]  # for what no figure shows it is not worth the time
            if self._over() or (again and self.run.fine()):
                return
            dual = Dual(
                restricted(self.problem, domains), byte_s=byte_s, most_s=self.run.most_s(),
                before=before.dual, ends=before.some.ends, wide=wide,
            )  # fmt: skip
            patience = PATIENCE if before is few else SOON
            ascent = Ascent(dual, domains, self.run.offer, self.run, patience=patience, priced=True)
            self._ascend(ascent)
            domains = ascent.choices()
            byte_s, wide = ascent.dual.byte_s, ascent.dual.wide

    def _over(self) -> bool:
        return self.run.late() or self.run.closed()

    def _all(self, some: Shortened, dual: Dual, *, priced: bool = False) -> Ascent:
        """Solve a problem that no layers can be left out of."""
        every = everything(some.problem)
        found = Ascent(dual, every, self.run.offer, self.run, priced=priced)
        self._ascend(found)
        return found

    def _prices(self, some: Shortened, before: Dual) -> Prices:
        """Return prices of memory, of which none is known; they are of use for other limits, too."""
        few = some if some.folds else unchanged(self.problem)
        dual = Dual(
            few.problem, most_s=self.run.most_s(), fold=few.fold(), before=before,
            ends=None if few is some else some.ends, wide=before.wide,
        )  # fmt: skip
        return Prices(self.problem, few, dual)

    def _priced(self, prices: Prices) -> float:
        """Bound plans under a memory limit, and look for some; return the best price of a byte."""
        prices.search(self.run)
        return prices.best(self.run.limit or 0)

    def _few(self, some: Shortened, dual: Dual, *, priced: bool = False) -> Ascent:
        """Solve the problem that lacks layers."""

        def offer(assignment: Sequence[int]) -> tuple[float, int, bool]:
            _, _, fits = self.run.offer(some.extended(assignment))
            return *some.problem.costs(assignment), fits

        found = Ascent(
            dual, everything(some.problem), offer, self.run,
            limited=False, steady=STEADY, share=FIRST, priced=priced,
        )  # fmt: skip
        found.run()
        return found

    def _folded(self, few: _View, *, wide: bool) -> _View:
        """Bound all layers by those of a fold, which begins with the messages of few layers."""
        dual = Dual(
            few.some.problem, byte_s=few.dual.byte_s, most_s=self.run.most_s(),
            fold=few.some.fold(), before=few.dual, wide=wide,
        )  # fmt: skip
        self._raise(dual, FOLDED)
        self.run.offer(few.some.extended(dual.rounded()))
        return _View(few.some, dual, dual.kept(self.run.slack_s(dual)))

    def _unfolded(self, before: _View, *, wide: bool) -> _View:
        """Bound all layers by a fold with more layers at either end, which have messages of their own.

        The ends of a model bend the messages of the layers next to them, those in the middle hardly
        differ: a few layers more bring the bound as near as all of them would.
        """
        some = shorten(self.problem, *ENDS)
        if not some.folds or len(some.nodes) > LESS * len(self.problem.nodes):
            return before
        domains = before.domains(some.nodes)
        dual = Dual(
            restricted(some.problem, domains), byte_s=before.dual.byte_s, most_s=self.run.most_s(),
            fold=some.fold(), before=before.dual, ends=before.ends(some.tensors), wide=wide,
        )  # fmt: skip
        self._raise(dual, UNFOLDED)
        if not self.run.closed():
            pairs = zip(domains, dual.rounded(), strict=True)
            self.run.offer(some.extended([int(domain[i]) for domain, i in pairs]))
        left = [d[k] for d, k in zip(domains, dual.kept(self.run.slack_s(dual)), strict=True)]
        return _View(some, dual, left)

    def _raise(self, dual: Dual, turns: int) -> None:
        """Ascend as long as the bound comes nearer to the best plan, and keep it."""
        for _ in range(turns):
            before = self.run.bound_s
            self.run.raise_to(dual.ascend(TURN) - dual.byte_s * (self.run.limit or 0))
            gap_s = self.run.best_s - before
            least = CALM * gap_s if np.isfinite(gap_s) else 0.0
            if self._over() or self.run.bound_s <= before + least:
                return

    def go_on(self) -> None:
        """Drop more by a better plan that was found meanwhile, until the time is up."""
        if self.last is not None and not self.run.closed():
            self.last.end_s = self.run.budget
            self._ascend(self.last)

    def _ascend(self, ascent: Ascent) -> None:
        self.last = ascent
        ascent.best_s = self.run.best_s
        ascent.run()
        self.run.raise_to(ascent.bound_s)


def _descend(run: Incumbent, starts: Sequence[Assignment]) -> bool:
    """Where none is proven look for a better plan near the best and what messages suggested last."""
    left, before_s = run.budget - run.trace.elapsed_s(), run.best_s
    if left <= 0 or not run.best or run.fine() or run.closed():
        return False
    found = descended(
        run.problem, budget=left, memory_bytes=run.limit,
        starts=[run.last, run.best, *starts], least_s=run.bound_s,
    )  # fmt: skip
    run.evaluations += found.evaluations
    run.offer(found.assignment)
    return run.best_s < before_s


__all__ = ["search"]
