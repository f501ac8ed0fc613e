"""SRMP message passing: min-marginals of factors, reparametrised unaries; the compiled loops of dual.py.

A node is a variable, a term a factor or a part of one (factor_graph.py). `messages` move cost from
terms to nodes (a reparametrisation), `lent` is the part of a node's reparametrised unary that each of
its terms gets, and what a term can give an end are its min-marginals (`_seen`).

    prices [[0, 3], [3, 0]], the other end has been lent (0, 2): min-marginals (0, 2) for this one.

What a tensor costs whose readers share: in state s it costs Σ prices[s, w] over the different states w
that its readers want. With prices on what each of them does, the least sum is over all ways to part the
readers into groups that want the same; a set of readers is a number whose bits they are.

Source: Kolmogorov 2015 (SRMP).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.search.network.evaluator import Floats, Ints

SEEN, MEAN = 3, 4  # where what one term, and all terms, can give is found in `room`
Records = npt.NDArray[Any]

_INT, _FLOAT = np.int64, np.float64
NODE = np.dtype(
    [("slot", _INT), ("choice", _INT), ("copies", _FLOAT), ("part", _FLOAT), ("kept", _FLOAT, 2)]
)
SLOT = np.dtype([("end", _INT), ("state", _INT), ("once", _FLOAT), ("lends", _INT, 2)])
END = np.dtype([("use", _INT)])
USE = np.dtype([("term", _INT), ("weight", _FLOAT)])
TERM = np.dtype([("place", _INT), ("table", _INT), ("count", _FLOAT)])
TABLE = np.dtype([("price", _INT), ("size", _INT)])


class FactorGraph(NamedTuple):
    """All nodes and terms of a relaxation, numbered, as arrays.

    What belongs to one of the `nodes`, `ends`, `terms` and `tables` stands from its own position in
    another array to that of the next one; after the last there is one more, which has nothing.

    nodes   `slot` the first of its ends in `slots`, `choice` the first of its choices among all nodes',
            `copies` how often it occurs, `part` of what it costs each tensor that it lends to gets,
            and, by direction, `kept` the rest
    slots   where a node touches a term: the `end`, `state` where its states by choice begin in
            `states`, `once` one over how many ends of the node are in the same term, and, by direction,
            whether the node `lends` to that tensor
    ends    `use` the first of the terms that it is in
    uses    one of these: the `term`, and by what `weight` what it can give counts
    terms   `place` the first of its ends in `members` (the producer's, then the readers'), the `table`
            of its prices, `count` how often it occurs
    tables  `price` where its prices begin in `prices` [s, w] and in `turned` [w, s], `size` its states
    """

    nodes: Records
    slots: Records
    ends: Records
    uses: Records
    terms: Records
    tables: Records
    members: Ints
    states: Ints
    prices: Floats
    turned: Floats


@compiled
def sweep(net: FactorGraph, cost: Floats, messages: Floats, lent: Floats, forward: int) -> None:
    """Update the `messages` [ends, states] of node after node, and what they have `lent` [ends, states].

    `cost` has the choices of all nodes. A node takes over what tensors can give that it shares with
    nodes before it (in this direction), then lends to those that it shares with nodes behind it.
    """
    room = _room(net, messages.shape[1])
    nodes = len(net.nodes) - 1
    for turn in range(nodes):
        node = turn if forward else nodes - 1 - turn
        choices = cost[net.nodes[node].choice : net.nodes[node + 1].choice]
        moves = (choices < np.inf).sum() > 1  # with one choice only a constant would move
        for slot in range(net.nodes[node].slot, net.nodes[node + 1].slot):
            if moves and net.slots[slot].lends[1 - forward]:
                end = net.slots[slot].end
                for s in range(_pulled(net, end, lent, messages, room)):
                    messages[end, s] = room[MEAN, 0, s]
        _lend(net, node, cost, messages, lent, room[SEEN, 0], forward)


@compiled
def lend(net: FactorGraph, cost: Floats, messages: Floats, lent: Floats, forward: int) -> None:
    """Lend what all nodes cost to the tensors that they share with nodes behind them."""
    total = np.empty(len(cost))
    for node in range(len(net.nodes) - 1):
        _lend(net, node, cost, messages, lent, total, forward)


@compiled
def bound(net: FactorGraph, cost: Floats, messages: Floats, lent: Floats, forward: int) -> float:
    """Return what all nodes keep and all terms cost at least."""
    found, total, room = 0.0, np.empty(len(cost)), _room(net, messages.shape[1])
    for node in range(len(net.nodes) - 1):
        least = np.inf
        for choice in range(_total(net, node, cost, messages, total)):
            least = min(least, total[choice])
        found += net.nodes[node].copies * net.nodes[node].kept[forward] * least
    for term in range(len(net.terms) - 1):
        end, least = net.members[net.terms[term].place], np.inf
        for s in range(_seen(net, end, term, lent, messages, room)):
            least = min(least, room[SEEN, 0, s] + (lent[end, s] - messages[end, s]))
        found += net.terms[term].count * least
    return found


@compiled
def rounded(net: FactorGraph, cost: Floats, messages: Floats, lent: Floats) -> Ints:
    """Return the choice of each node that is cheapest given those before it."""
    room, total = _room(net, messages.shape[1]), np.empty(len(cost))
    free, told, nothing = lent - messages, messages.copy(), np.zeros(messages.shape)
    found = np.empty(len(net.nodes) - 1, dtype=np.int64)
    for node in range(len(net.nodes) - 1):
        slots = range(net.nodes[node].slot, net.nodes[node + 1].slot)
        for slot in slots:
            if net.slots[slot].lends[0]:
                end = net.slots[slot].end
                for s in range(_pulled(net, end, free, nothing, room)):
                    told[end, s] = room[MEAN, 0, s]
        best = 0
        for choice in range(_total(net, node, cost, told, total)):
            best = choice if total[choice] < total[best] else best
        found[node] = best
        for slot in slots:
            for s in range(messages.shape[1]):
                free[net.slots[slot].end, s] = np.inf
        for slot in slots:
            free[net.slots[slot].end, net.states[net.slots[slot].state + best]] = 0.0
    return found


@compiled
def excess(net: FactorGraph, cost: Floats, messages: Floats, lent: Floats) -> Floats:
    """Return the reduced cost of every choice: what a plan with it costs at least beyond the bound."""
    found, room = _own(net, cost, messages, lent), _room(net, messages.shape[1])
    # by how much the cheapest term of an end costs more by its state
    slack = np.empty(messages.shape)
    for end in range(len(messages)):
        for s in range(messages.shape[1]):
            slack[end, s] = np.inf
    for term in range(len(net.terms) - 1):
        for place in range(net.terms[term].place, net.terms[term + 1].place):
            end, least = net.members[place], np.inf
            states = _seen(net, end, term, lent, messages, room)
            for s in range(states):
                room[SEEN, 0, s] += lent[end, s] - messages[end, s]
                least = min(least, room[SEEN, 0, s])
            for s in range(states):
                slack[end, s] = min(slack[end, s], room[SEEN, 0, s] - least)
    for node in range(len(net.nodes) - 1):
        first, last = net.nodes[node].choice, net.nodes[node + 1].choice
        for slot in range(net.nodes[node].slot, net.nodes[node + 1].slot):
            end, at = net.slots[slot].end, net.slots[slot].state
            for choice in range(last - first):
                found[first + choice] += slack[end, net.states[at + choice]] * net.slots[slot].once
    return found


@compiled
def _own(net: FactorGraph, cost: Floats, messages: Floats, lent: Floats) -> Floats:
    """Return what all choices cost their nodes beyond the least and what is lent; infinite if dropped."""
    found, total = np.empty(len(cost)), np.empty(len(cost))
    for node in range(len(net.nodes) - 1):
        choices, least = _total(net, node, cost, messages, total), np.inf
        for slot in range(net.nodes[node].slot, net.nodes[node + 1].slot):
            end, at = net.slots[slot].end, net.slots[slot].state
            for choice in range(choices):
                if total[choice] < np.inf:
                    total[choice] -= lent[end, net.states[at + choice]]
        for choice in range(choices):
            least = min(least, total[choice])
        for choice in range(choices):
            found[net.nodes[node].choice + choice] = total[choice] - least
    return found


@compiled
def _room(net: FactorGraph, states: int) -> Floats:
    """Return space for what is found for each set of a term's readers."""
    most = 1
    for term in range(len(net.terms) - 1):
        most = max(most, net.terms[term + 1].place - net.terms[term].place - 1)
    return np.empty((5, 1 << most, states))


@compiled
def _total(net: FactorGraph, node: int, cost: Floats, messages: Floats, total: Floats) -> int:
    """Put in `total` what each choice of a node costs with all messages; return their number."""
    first = net.nodes[node].choice
    choices: int = net.nodes[node + 1].choice - first
    for choice in range(choices):
        total[choice] = cost[first + choice]
    for slot in range(net.nodes[node].slot, net.nodes[node + 1].slot):
        at, told = net.slots[slot].state, messages[net.slots[slot].end]
        states = net.states[at : at + choices]
        for choice in range(choices):
            total[choice] += told[states[choice]]
    return choices


@compiled
def _lend(
    net: FactorGraph, node: int, cost: Floats, messages: Floats, lent: Floats, total: Floats,
    forward: int,
) -> None:  # fmt: skip
    """Lend parts of a reparametrised unary to terms shared with nodes behind; else states are free."""
    choices, part = _total(net, node, cost, messages, total), net.nodes[node].part
    for slot in range(net.nodes[node].slot, net.nodes[node + 1].slot):
        at, given = net.slots[slot].state, lent[net.slots[slot].end]
        states = net.states[at : at + choices]
        for choice in range(choices):
            given[states[choice]] = np.inf
        if net.slots[slot].lends[forward]:
            for choice in range(choices):
                value, state = part * total[choice], states[choice]
                given[state] = value if value < given[state] else given[state]
        else:
            for choice in range(choices):
                if total[choice] < np.inf:
                    given[states[choice]] = 0.0


@compiled
def _pulled(net: FactorGraph, end: int, lent: Floats, messages: Floats, room: Floats) -> int:
    """Average the min-marginals of all terms of an end, least 0; return the number of states."""
    states = 0
    for s in range(messages.shape[1]):
        room[MEAN, 0, s] = 0.0
    for at in range(net.ends[end].use, net.ends[end + 1].use):
        states, least = _seen(net, end, net.uses[at].term, lent, messages, room), np.inf
        for s in range(states):
            least = min(least, room[SEEN, 0, s])
        for s in range(states):
            room[MEAN, 0, s] += net.uses[at].weight * (room[SEEN, 0, s] - least)
    return states


@compiled
def _seen(
    net: FactorGraph, end: int, term: int, lent: Floats, messages: Floats, room: Floats
) -> int:
    """Find the min-marginals of a term by the state of one end; return their number.

    Its other ends cost what they have lent less the messages.
    """
    first, table = net.terms[term].place, net.terms[term].table
    at, producer = net.tables[table].price, net.members[first]
    states: int = net.tables[table].size
    turned = net.turned[at : at + states * states].reshape(states, states)
    prices = net.prices[at : at + states * states].reshape(states, states)
    sums, alone, served, seen = room[0], room[1], room[2], room[SEEN, 0]
    sets = 1
    for s in range(states):
        sums[0, s] = served[0, s] = 0.0
    for place in range(first + 1, net.terms[term + 1].place):
        reader = net.members[place]
        if reader != end:
            for g in range(sets):
                for w in range(states):
                    sums[sets + g, w] = sums[g, w] + (lent[reader, w] - messages[reader, w])
            sets *= 2
    if sets > 1:
        _min_plus(sums, turned, alone, sets)  # all of a set want the same
    for g in range(1, sets):
        for s in range(states):
            served[g, s] = alone[g, s]
        group = (g - 1) & g
        while group:  # or the first of them with some others does, and the rest is served alone
            if group & g & -g:
                for s in range(states):
                    value = alone[group, s] + served[g - group, s]
                    served[g, s] = value if value < served[g, s] else served[g, s]
            group = (group - 1) & g
    if end == producer:
        for s in range(states):
            seen[s] = served[sets - 1, s]
        return states
    for g in range(sets):  # they want the same as the reader; the rest is served for its own sake
        for s in range(states):
            alone[g, s] = lent[producer, s] - messages[producer, s] + served[sets - 1 - g, s]
    _min_plus(alone, prices, served, sets)
    for w in range(states):
        seen[w] = np.inf
    for g in range(sets):
        for w in range(states):
            total = served[g, w] + sums[g, w]
            seen[w] = total if total < seen[w] else seen[w]
    return states


@compiled
def _min_plus(vectors: Floats, matrix: Floats, out: Floats, sets: int) -> None:
    """Put the min-plus products of vectors, one for each set, and a square matrix in `out`.

    Two vectors meet four rows at once: numbers are loaded less often, which takes half of the time.
    Where the last row is read twice the least is the same; a vector that has no second one is joined
    by one of which nothing is read.
    """
    last = len(matrix) - 1
    for g in range(0, sets, 2):
        h = g + 1
        if sets == 1:
            vectors[h, : last + 1] = np.inf
        for s in range(last + 1):
            out[g, s] = out[h, s] = np.inf
        for i in range(0, last + 1, 4):
            j, k, n = min(i + 1, last), min(i + 2, last), min(i + 3, last)
            a, b, c, d = vectors[g, i], vectors[g, j], vectors[g, k], vectors[g, n]
            e, f, u, v = vectors[h, i], vectors[h, j], vectors[h, k], vectors[h, n]
            if min(min(a, b, c, d), min(e, f, u, v)) < np.inf:
                for s in range(last + 1):
                    p, q, r, t = matrix[i, s], matrix[j, s], matrix[k, s], matrix[n, s]
                    out[g, s] = min(min(min(p + a, q + b), min(r + c, t + d)), out[g, s])
                    out[h, s] = min(min(min(p + e, q + f), min(r + u, t + v)), out[h, s])
