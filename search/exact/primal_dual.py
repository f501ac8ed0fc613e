"""Exact search: a lower bound that rises, choices that it removes, and what is left solved.

Of equal layers three are looked at first: dual ascent over them suggests plans and settles messages.
The quotient by repeated layers (reductions/quotient.py) then bounds all plans of the whole network with
these messages, and reduced-cost fixing mostly closes the gap; its size does not depend on the depth of
the model. Otherwise all layers are looked at with the choices that are left, and where few are left in
the end an integer linear program proves which is the best (milp_finisher.py). Under a memory limit bytes
get a price (relaxation/lagrangian.py): the network is solved at one price after the other, by few layers
and the quotient, as if there were no limit; with layers a small gap ends the search then.

    incumbent 12, bound 10 → fix choices with reduced costs above 2 → bound 11.5, incumbent 12 → … → 12
    = 12.

Why a quotient bounds the whole network: any messages do (relaxation/dual.py), also such as are the same
for many layers. Then a term of the whole network is one of few, and the sum over all terms and
variables is that of the few times their multiplicities. No layer is left out of it, and no plan either:
that layers have equal messages does not make their choices equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoddl.search.exact.milp_finisher import finish
from autoddl.search.exact.reduced_cost_fixing import Ascent
from autoddl.search.heuristics.descent import cheapest, least_memory, replicated
from autoddl.search.incumbent import PROVEN, Incumbent
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.prices import Prices
from autoddl.search.reductions.quotient import Quotient, quotient
from autoddl.search.reductions.restriction import Restriction, everything
from autoddl.search.relaxation import lagrangian
from autoddl.search.relaxation.dual import Dual
from autoddl.search.relaxation.lagrangian import ENOUGH, SETTLED, AtPrice
from autoddl.search.result import DEFAULTS, Assignment, SearchOptions, SearchResult


def search(problem: CostNetwork, options: SearchOptions = DEFAULTS) -> SearchResult:
    """Return the cheapest assignment and a bound that proves it, or the best within the budget.

    Nothing in it is random, any seed gives the same result unless the budget ends the search.

    Raises:
        InfeasibleError: no assignment fits into the memory.
    """
    run = _begun(problem, options)
    if (problem.variables.sizes == 1).all():
        run.bound_s = run.best_s
    else:
        _Driver(run, quotient(problem)).solve()
    if run.best_s - run.bound_s <= PROVEN * run.best_s:
        run.bound_s = run.best_s
    return run.result("exact")


def _begun(problem: CostNetwork, options: SearchOptions) -> Incumbent:
    """Return a search that knows what it is given to begin with, and what can be told at once."""
    run = Incumbent(problem, options)
    for start in (least_memory(problem), replicated(problem), cheapest(problem), *options.starts):
        run.offer(start)
    return run


class _Driver:
    """From few layers, and the quotient by repeated ones, to all of them."""

    def __init__(self, run: Incumbent, some: Quotient) -> None:
        self.run, self.network, self.some = run, run.network, some
        self.layered = some.network is not run.network
        self.whole = Quotient.identity(run.network) if self.layered else some
        self.last: Ascent | None = None  # over all layers

    def solve(self) -> None:
        """Raise the bound and look for plans until the best one is proven, or nothing moves."""
        if self.run.limit is None:
            self._layers(self._few())
        else:
            self._within_memory()
        if self.last is not None:
            finish(self.run, self.last, self._go_on)

    def _within_memory(self) -> None:
        """Look for the price of a byte at which plans just fit, and go on with it."""
        best, run = lagrangian.search(self.run, self._priced), self.run
        if self.layered and best.byte_s > 0:
            run.stop_gap = max(run.stop_gap, ENOUGH)
        if not self._over():
            prices, few = Prices(byte_s=best.byte_s), self.some.network
            self._layers(Dual(few, prices=prices, most_s=run.most_s(), before=best.dual))

    def _priced(self, byte_s: float, before: Dual | None) -> AtPrice:
        """Return the cheapest plan that is found where each byte has a price, whatever it holds."""
        run, some, network = self.run, self.some, self.network
        options = replace(run.options, budget=run.left_s(), memory_bytes=None, progress=None)
        if byte_s > 0:
            prices = Prices(byte_s=byte_s)
            network = prices.apply(network)
            some = replace(some, network=prices.apply(some.network) if self.layered else network)
            options = replace(options, stop_gap=SETTLED)
        driver = _Driver(_begun(network, options), some)
        dual = driver._few(before)
        driver._layers(dual, every=not some.exact)
        found = driver.run.best
        assert found is not None  # whatever it holds
        cost_s, held, _ = run.offer(found)
        return AtPrice(byte_s, found, cost_s, held, driver.run.bound_s, dual)

    def _few(self, before: Dual | None = None) -> Dual:
        """Return the relaxation of the network that lacks layers, after an ascent that suggests plans."""
        run, some = self.run, self.some
        if not self.layered:
            return Dual(some.network, most_s=run.most_s())
        dual = Dual(some.network, most_s=run.most_s(), before=before)

        def offer(assignment: Assignment) -> tuple[float, int, bool]:
            _, _, fits = run.offer(some.invert(assignment))
            return *some.network.costs(assignment), fits

        Ascent(dual, Restriction.identity(some.network), offer, run, part=True).run()
        return dual

    def _layers(self, few: Dual, *, every: bool = True) -> None:
        """Go on from the messages of a few: by the quotient, if it is exact, then with `every` layer."""
        some, left, dual = self.some, everything(self.network), few
        if not self.layered:
            self._ascend(some, few)
            return
        if some.exact and not self._over():
            found = self._ascend(some, self._dual(some.network, few, copies=some.multiplicities))
            dual, left = found.dual, some.lifted(found.choices())
        if every and not self._over():
            space = Restriction.apply(self.network, left)
            most = self._dual(space.network, dual, scopes=some.scopes)
            self._ascend(self.whole, most, space)

    def _dual(self, network: CostNetwork, before: Dual, **options: Any) -> Dual:
        """Return the relaxation of a network that begins with the messages of another one."""
        most_s = self.run.most_s()
        return Dual(network, prices=before.prices, most_s=most_s, before=before, **options)

    def _over(self) -> bool:
        return self.run.late() or self.run.closed()

    def _ascend(self, some: Quotient, dual: Dual, space: Restriction | None = None) -> Ascent:
        """Raise the bound of the whole network."""

        def offer(assignment: Assignment) -> tuple[float, int, bool]:
            return self.run.offer(some.invert(assignment))

        found = Ascent(dual, space or Restriction.identity(some.network), offer, self.run)
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
