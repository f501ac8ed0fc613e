"""Exact search: a lower bound that rises, choices that it removes, and what is left solved.

Of equal layers three are looked at first: dual ascent over them suggests plans and settles messages.
The quotient by repeated layers (reductions/quotient.py) then bounds all plans of the whole network with
these messages, and reduced-cost fixing mostly closes the gap; its size does not depend on the depth of
the model. Otherwise all layers are looked at with the choices that are left, and where few are left in
the end an integer linear program proves which is the best (milp_finisher.py). A memory limit that binds
becomes a Lagrangian multiplier first (relaxation/lagrangian.py), on the quotient as well; with layers a
small gap ends the search then.

    incumbent 12, bound 10 → fix choices with reduced costs above 2 → bound 11.5, incumbent 12 → … → 12
    = 12.

Why a quotient bounds the whole network: any messages do (relaxation/dual.py), also such as are the same
for many layers. Then a term of the whole network is one of few, and the sum over all terms and
variables is that of the few times their multiplicities. No layer is left out of it, and no plan either:
that layers have equal messages does not make their choices equal.
"""

from __future__ import annotations

from typing import Any

from autoddl.search.exact.milp_finisher import finish
from autoddl.search.exact.reduced_cost_fixing import Ascent
from autoddl.search.heuristics.descent import cheapest, least_memory, replicated
from autoddl.search.incumbent import PROVEN, Incumbent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.quotient import Quotient, quotient
from autoddl.search.reductions.restriction import Restriction, everything
from autoddl.search.relaxation.dual import Dual
from autoddl.search.relaxation.lagrangian import ENOUGH, Lagrangian
from autoddl.search.result import DEFAULTS, Assignment, SearchOptions, SearchResult


def search(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> SearchResult:
    """Return the cheapest assignment and a bound that proves it, or the best within the budget.

    Nothing in it is random, any seed gives the same result unless the budget ends the search.

    Raises:
        InfeasibleError: no assignment fits into the memory.
    """
    run = Incumbent(problem, options)
    for start in (least_memory(problem), replicated(problem), cheapest(problem), *options.starts):
        run.offer(start)
    if (problem.variables.sizes == 1).all():
        run.bound_s = run.best_s
    else:
        _Driver(run).solve()
    if run.best_s - run.bound_s <= PROVEN * run.best_s:
        run.bound_s = run.best_s
    return run.result("exact")


class _Driver:
    """From few layers, and the quotient by repeated ones, to all of them."""

    def __init__(self, run: Incumbent) -> None:
        self.run, self.network = run, run.network
        self.whole = Quotient.identity(run.network)
        self.some = quotient(run.network)
        self.layered = self.some.network is not run.network
        self.last: Ascent | None = None  # over all layers

    def solve(self) -> None:
        """Raise the bound and look for plans until the best one is proven, or nothing moves."""
        self._ascents()
        if self.last is not None:
            finish(self.run, self.last, self._go_on)

    def _ascents(self) -> None:
        dual = Dual(self.some.network, most_s=self.run.most_s())
        found = self._first(dual)
        if found.binding:
            if self.layered:
                self.run.stop_gap = max(self.run.stop_gap, ENOUGH)
            multipliers = self._multipliers(dual)
            multipliers.search(self.run)
            if self._over():
                return
            dual.price_memory(multipliers.best(self.run.limit or 0))
            found = self._first(dual, priced=True)
        if self.layered:
            self._layers(found.dual)

    def _layers(self, few: Dual) -> None:
        """Go on with all layers, from the messages of a few: by the quotient first, if it is exact."""
        some, left, dual = self.some, everything(self.network), few
        if some.exact and not self._over():
            found = self._ascend(some, self._dual(some.network, few, copies=some.multiplicities))
            dual, left = found.dual, some.lifted(found.choices())
        if not self._over():
            space = Restriction.apply(self.network, left)
            most = self._dual(space.network, dual, scopes=some.scopes)
            self._ascend(self.whole, most, space)

    def _dual(self, network: CostNetwork, before: Dual, **options: Any) -> Dual:
        """Return the relaxation of a network that begins with the messages of another one."""
        most_s = self.run.most_s()
        return Dual(network, prices=before.prices, most_s=most_s, before=before, **options)

    def _over(self) -> bool:
        return self.run.late() or self.run.closed()

    def _multipliers(self, before: Dual) -> Lagrangian:
        """Return the search for the multiplier of memory, without a trial so far."""
        some = self.some if self.some.exact else self.whole
        copies = some.multiplicities if some is not self.whole else None
        scopes = None if some is self.some else self.some.scopes
        return Lagrangian(
            self.network, some, self._dual(some.network, before, copies=copies, scopes=scopes)
        )

    def _first(self, dual: Dual, *, priced: bool = False) -> Ascent:
        """Solve the network that lacks layers, or all of it where none can be left out."""
        some = self.some
        if not self.layered:
            return self._ascend(self.whole, dual, priced=priced)

        def offer(assignment: Assignment) -> tuple[float, int, bool]:
            _, _, fits = self.run.offer(some.invert(assignment))
            return *some.network.costs(assignment), fits

        every = Restriction.identity(some.network)
        found = Ascent(dual, every, offer, self.run, part=True, priced=priced)
        found.run()
        return found

    def _ascend(
        self, some: Quotient, dual: Dual, space: Restriction | None = None, *,
        priced: bool = True,
    ) -> Ascent:  # fmt: skip
        """Raise the bound of the whole network."""

        def offer(assignment: Assignment) -> tuple[float, int, bool]:
            return self.run.offer(some.invert(assignment))

        space = space or Restriction.identity(some.network)
        found = Ascent(dual, space, offer, self.run, priced=priced)
        if some is self.whole:
            self.last = found
        self._go_on(found)
        return found

    def _go_on(self, ascent: Ascent) -> None:
        """Raise the bound, with the best plan that is known meanwhile."""
        if not self.run.closed():
            ascent.best_s = self.run.best_s
            ascent.run()
            self.run.raise_to(ascent.bound_s)
