"""What assignments cost, and local search over single variables: the compiled loops over a cost network.

One factor costs the seconds from the state that its producer makes to every other state that some
reader wants, each once. Iterated conditional modes give each variable in turn its best choice, given
all others:

    costs (x, y): (0, 0) 5, (0, 1) 3, (1, 1) 2    from (0, 0): y takes 1, cost 3; x takes 1, cost 2;
    done.

Source: Besag 1986 (iterated conditional modes).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

OUT, IDLE, WAITING = 0, 1, 2


class Arrays(NamedTuple):
    """A cost network as arrays alone.

    Variable v has `choices[v]` choices; its seconds begin at `compute[compute_at[v]]`, bytes likewise.
    The ends of factor f are numbered from `begin[f]` on, its producer first: `variable` is who, and the
    state under choice c is `states[states_at[end] + c]`. From state s to t the factor costs
    `cost[table_at[f] + s * size[f] + t]`.
    """

    choices: Ints
    compute: Floats
    compute_at: Ints
    memory: Ints
    memory_at: Ints
    begin: Ints
    variable: Ints
    states: Ints
    states_at: Ints
    cost: Floats
    table_at: Ints
    size: Ints


class Incidence(NamedTuple):
    """The factors of variables: those of variable v are `factor[begin[v] : begin[v + 1]]`."""

    begin: Ints
    factor: Ints


class Queue(NamedTuple):
    """The variables that are to be looked at, and of each whether it is OUT of them all, IDLE or WAITING.

    `variables` is a ring; `counts` has where it begins, how many are waiting, the bytes of the point,
    and how many choices were priced.
    """

    variables: Ints
    kind: Ints
    counts: Ints


class BlockMove(NamedTuple):
    """A move of a block: alternatives for its variables, of which it takes one.

    The k-th gives `variables[i]` the choice `columns[i, k]`.

    `factors` are those that any of them is in.
    """

    variables: Ints
    columns: Ints
    factors: Ints


def states_of(net: Arrays, point: Ints) -> Ints:
    """Return the state of the tensor at each end of each factor: as it is made, or wanted."""
    found: Ints = net.states[net.states_at + point[net.variable]]
    return found


def unary_of(net: Arrays, point: Ints) -> tuple[Floats, Ints]:
    """Return the compute seconds and the bytes of every variable."""
    return net.compute[net.compute_at + point], net.memory[net.memory_at + point]


class Paid(NamedTuple):
    """The readers that want another state than is made: their ends, factors, that state and theirs."""

    end: Ints
    factor: Ints
    made: Ints
    wanted: Ints

    def first(self, net: Arrays) -> tuple[Paid, Floats]:
        """Return the first reader of each state that a factor pays for, and the seconds of that."""
        most = int(net.size.max(initial=1))
        which = np.sort(np.unique(self.factor * most + self.wanted, return_index=True)[1])
        found = Paid(*[column[which] for column in self])
        at = net.table_at[found.factor] + found.made * net.size[found.factor] + found.wanted
        return found, net.cost[at]


def paid_of(net: Arrays, point: Ints) -> Paid:
    """Return the readers that want another state than the producer makes, factor by factor."""
    states = states_of(net, point)
    factor = np.repeat(np.arange(len(net.size)), np.diff(net.begin))
    made = states[net.begin[:-1]][factor]
    end = np.flatnonzero(states != made)
    return Paid(end, factor[end], made[end], states[end])


def factor_s(net: Arrays, point: Ints) -> Floats:
    """Return the redistribution seconds of every factor: once per wanted state."""
    paid, seconds = paid_of(net, point).first(net)
    found = np.bincount(paid.factor, weights=seconds, minlength=len(net.size))
    return np.asarray(found, dtype=float)


@compiled
def one_factor(net: Arrays, factor: int, point: Ints) -> float:
    """Return the redistribution seconds of one factor."""
    return _factor(net, factor, point, np.empty(net.size[factor]))


@compiled
def costs_of(net: Arrays, point: Ints) -> tuple[float, float, int]:
    """Return the seconds of compute and of redistributions, and the bytes, of all variables together."""
    compute_s, communication_s, held, most = 0.0, 0.0, 0, 1
    for variable in range(len(net.choices)):
        compute_s += net.compute[net.compute_at[variable] + point[variable]]
        held += net.memory[net.memory_at[variable] + point[variable]]
    for size in net.size:
        most = max(most, size)
    row = np.empty(most)
    for factor in range(len(net.size)):
        communication_s += _factor(net, factor, point, row)
    return compute_s, communication_s, held


@compiled
def block_of(net: Arrays, block: BlockMove, point: Ints) -> tuple[Floats, Ints]:
    """Return the seconds and bytes of all that a block touches, by alternative.

    `point` is as it was afterwards.

    The rest of the cost does not depend on the block, so differences between entries are exact.
    """
    count, most = block.columns.shape[1], 1
    for factor in block.factors:
        most = max(most, net.size[factor])
    row, before = np.empty(most), point[block.variables]
    seconds, held = np.zeros(count), np.zeros(count, dtype=np.int64)
    for alternative in range(count):
        for place in range(len(block.variables)):
            variable, choice = block.variables[place], block.columns[place, alternative]
            point[variable] = choice
            seconds[alternative] += net.compute[net.compute_at[variable] + choice]
            held[alternative] += net.memory[net.memory_at[variable] + choice]
        for factor in block.factors:
            seconds[alternative] += _factor(net, factor, point, row)
    for place in range(len(block.variables)):
        point[block.variables[place]] = before[place]
    return seconds, held


@compiled
def descend(
    net: Arrays, incidence: Incidence, point: Ints, queue: Queue, limit: int, relative: float,
    turns: int,
) -> None:  # fmt: skip
    """Give the variables of a queue their best choices; neighbours of those that change come again.

    Bytes over the limit come first, then seconds, which have to be less by a `relative` part. It goes
    on for so many `turns`.
    """
    variables, kind, counts = queue
    most, tables = 1, 1
    for size in net.choices:
        most = max(most, size)
    for size in net.size:
        tables = max(tables, size)
    seconds, row, by_state = np.empty(most), np.empty(tables), np.empty(tables)
    for _ in range(turns):
        if counts[1] == 0:
            return
        variable = variables[counts[0]]
        counts[0] = (counts[0] + 1) % len(variables)
        counts[1] -= 1
        kind[variable] = IDLE
        size, now, held = net.choices[variable], point[variable], net.memory_at[variable]
        counts[3] += size
        for choice in range(size):
            seconds[choice] = net.compute[net.compute_at[variable] + choice]
        for place in range(incidence.begin[variable], incidence.begin[variable + 1]):
            factor = incidence.factor[place]
            end = _only_end(net, factor, variable)
            by_state[:] = np.nan
            for choice in range(size):
                state = 0 if end < 0 else net.states[net.states_at[end] + choice]
                if end < 0 or np.isnan(by_state[state]):
                    point[variable] = choice
                    by_state[state] = _factor(net, factor, point, row)
                seconds[choice] += by_state[state]
        point[variable] = now
        base = counts[2] - net.memory[held + now]
        best, excess = 0, max(0, base + net.memory[held] - limit)  # of equal ones the first
        for choice in range(1, size):
            over = max(0, base + net.memory[held + choice] - limit)
            if over < excess or (over == excess and seconds[choice] < seconds[best]):
                best, excess = choice, over
        before = max(0, counts[2] - limit)
        if excess == before and not seconds[best] < seconds[now] * (1 - relative) - 1e-15:
            continue
        counts[2] = base + net.memory[held + best]
        point[variable] = best
        for place in range(incidence.begin[variable], incidence.begin[variable + 1]):
            factor = incidence.factor[place]
            for end in range(net.begin[factor], net.begin[factor + 1]):
                other = net.variable[end]
                if other != variable and kind[other] == IDLE:
                    kind[other] = WAITING
                    variables[(counts[0] + counts[1]) % len(variables)] = other
                    counts[1] += 1


@compiled
def _only_end(net: Arrays, factor: int, variable: int) -> int:
    """Return the end at which a variable is in a factor; -1 where there are several."""
    found = -1
    for end in range(net.begin[factor], net.begin[factor + 1]):
        if net.variable[end] == variable:
            if found >= 0:
                return -1
            found = end
    return found


@compiled
def _factor(net: Arrays, factor: int, point: Ints, row: Floats) -> float:
    """Return what a factor costs: once for every state that is wanted, in the order of the states."""
    first, last, size = net.begin[factor], net.begin[factor + 1], net.size[factor]
    source = net.states[net.states_at[first] + point[net.variable[first]]]
    at, others = net.table_at[factor] + source * size, 0
    for end in range(first + 1, last):
        state = net.states[net.states_at[end] + point[net.variable[end]]]
        if state != source:
            if others == 0:
                row[:size] = 0.0
            row[state] = net.cost[at + state]
            others += 1
    total = 0.0
    if others:
        for state in range(size):
            total += row[state]
    return total
