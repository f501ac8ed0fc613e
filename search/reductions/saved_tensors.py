"""Saved tensors: a variable for each large tensor of the forward pass that the backward pass reads.

A tensor may wait as it was made, and then be redistributed for either pass, or as some reader wanted
it, so that the backward pass need not pay again; or as a smaller part of it. Which is best depends on
what memory is worth. So each such tensor gets a variable, which reads it in the forward pass, holds it,
and is what the backward pass reads from.

x → (loss), x → dw   becomes   x → saved x, x → (loss);  saved x → dw: the state of "saved x" is chosen.

Of the memory then counts what is there between the two passes, whatever else a plan does: parameters
with their optimizer's states, and the tensors that wait. What a plan takes is more than that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoddl.ragged import distinct
from autoddl.sbp.program.columns import Flags
from autoddl.sbp.program.waiting_for_loss import waiting_for_loss
from autoddl.sbp.shards import local_bytes
from autoddl.search.network.cost_network import (
    SAVED,
    TENSOR,
    CostNetwork,
    Domain,
    Factors,
    Ints,
    Variables,
    as_ints,
    ints,
)
from autoddl.search.result import Assignment, Point

SMALL = 1e-3  # of the largest tensor that waits; smaller ones come once for both passes


class SavedTensors:
    """`network` has variables for tensors that wait; what assignments of the rest are in it.

    By saved tensor `variables` are these variables, `makers` the ends (see Factors) of who makes it,
    `readers` those of who is the first to read it later. `choice[row, s]` is the choice of state s, with
    the tensor's entry of `rows`.
    """

    def __init__(self, network: CostNetwork) -> None:
        self.network, factors = network, network.factors
        self.saved = network.variables.of_kind(SAVED)
        factor = np.flatnonzero(self.saved[factors.producer])  # behind each that from its maker
        begin = factors.begin[factor]
        self.variables, self.makers = factors.variable[begin], factors.begin[factor - 1]
        self.readers = begin + 1
        used, self.rows = np.unique(factors.states[begin], return_inverse=True)
        size = 1 + max([int(array.max()) for array in factors.arrays], default=0)
        self.choice = np.full((len(used), size), -1)
        for row, number in enumerate(used.tolist()):
            self.choice[row, factors.arrays[number]] = np.arange(len(factors.arrays[number]))

    @classmethod
    def apply(cls, network: CostNetwork) -> SavedTensors:
        """Give each large tensor that waits for the backward pass a variable."""
        return cls(_WithSaved(network).make())

    def invert(self, assignment: Point) -> Assignment:
        """Return the assignment of the network without these variables."""
        return Assignment(as_ints(assignment)[~self.saved])

    def as_read(self, others: Point) -> Assignment:
        """Return the assignment whose tensors wait as their first late reader wants them."""
        return self._waiting(others, self.readers)

    def as_made(self, others: Point) -> Assignment:
        """Return the assignment whose tensors wait in the states in which they were made."""
        return self._waiting(others, self.makers)

    def _waiting(self, others: Point, ends: Ints) -> Assignment:
        """Return the assignment in which tensors wait in their states at some ends."""
        found, arrays = np.zeros(len(self.saved), dtype=np.int64), self.network.arrays
        found[~self.saved] = as_ints(others)
        states = arrays.states[arrays.states_at[ends] + found[arrays.variable[ends]]]
        found[self.variables] = self.choice[self.rows, states]
        return Assignment(found)


class _WithSaved:
    """Variables and factors of a network, with new ones in between; equal ones share their arrays."""

    def __init__(self, network: CostNetwork) -> None:
        self.network, self.program = network, network.program
        self.nodes, columns = network.variables, self.program.columns
        self.op, self.edges = network.variables.op, network.factors
        edges = self.edges
        before = (self.op < 0) | ~waiting_for_loss(self.program)[self.op]
        self.tensor = edges.tensor

        count, producer = len(edges.table), edges.producer
        self.edge, reads = edges.factor, edges.reads
        later, sooner = reads & ~before[edges.variable], reads & before[edges.variable]
        waits = before[producer] & (np.bincount(self.edge[later], minlength=count) > 0)
        there_anyway = (self.op[producer] < 0) & (
            np.bincount(self.edge[sooner], minlength=count) == 0
        )
        waits &= ~there_anyway
        sizes = columns.size_bytes[self.tensor]
        large = waits & (sizes >= SMALL * sizes[waits].max(initial=0))
        self.waiting = np.flatnonzero(large)
        self.later = later & large[self.edge]  # the ends that will read from the new nodes
        self.small, self.large = (self._flags(self.tensor[of]) for of in (waits & ~large, large))
        makers = columns.maker[self.tensor[large]]
        makers = makers[makers >= 0]
        views = network.setting.engine.views
        is_view = np.array([name in views for name in columns.types], dtype=np.bool_)
        makers = makers[is_view[columns.type[makers]]]
        self.seen = self._flags(columns.inputs.tensor[columns.inputs.begin[makers]])  # one memory

    def _flags(self, tensors: Ints) -> Flags:
        found = np.zeros(len(self.program.tensors), dtype=np.bool_)
        found[tensors] = True
        return found

    def make(self) -> CostNetwork:
        """Return the problem with the new nodes, each behind the one that makes its tensor."""
        nodes, maker = self.nodes, self.edges.variable[self.edges.begin[self.waiting]]
        order = maker.argsort(kind="stable")
        places = np.arange(len(nodes.domain)) + np.searchsorted(
            maker[order], np.arange(len(nodes.domain))
        )
        new = np.empty_like(maker)
        new[order] = maker[order] + 1 + np.arange(len(maker))
        turn = np.concatenate([places, new]).argsort()

        held, held_forms = self._held()
        kept, kept_forms, states = self._forms()
        tensors = self.program.tensors
        names = [*nodes.name, *[tensors[t].name for t in self.tensor[self.waiting].tolist()]]
        kind = np.concatenate([nodes.kind, np.full(len(new), len(nodes.kinds))])
        made = Variables(
            (*nodes.kinds, SAVED),
            kind[turn],
            [names[i] for i in turn.tolist()],
            [*held_forms, *kept_forms],
            np.concatenate([held, len(held_forms) + kept])[turn],
            np.concatenate([self.op, np.full(len(new), -1)])[turn],
        )
        factors = self._parted(places, new, kept, states)
        return replace(self.network, variables=made, factors=factors)

    def _parted(self, places: Ints, new: Ints, kept: Ints, states: list[Ints]) -> Factors:
        """Return the factors; of a tensor that waits that to its node, and, behind it, that from there.

        By waiting tensor `new` is its node, and `states[kept]` are the states from which it chooses.
        """
        edges, old = self.edges, np.arange(len(self.edge))
        first, last = edges.begin[self.waiting], edges.begin[self.waiting + 1]
        half = np.repeat([0, 1], len(new))  # the new nodes read from one half, and make the other
        edge = np.concatenate([self.edge, self.waiting, self.waiting]) * 2
        edge += np.concatenate([self.later.astype(np.int64), half])
        order = np.lexsort((np.concatenate([2 * old, 2 * last - 1, 2 * first - 1]), edge))
        starts = np.flatnonzero(np.diff(edge[order], prepend=-1))
        whole = edge[order][starts] // 2
        operands = (*edges.operands, TENSOR)
        mine = np.concatenate([kept, kept]) + len(edges.arrays)
        return Factors(
            self.tensor[whole], edges.tables, edges.table[whole],
            np.append(starts, len(order)),
            np.concatenate([places[edges.variable], new, new])[order],
            [*edges.arrays, *states], np.concatenate([edges.states, mine])[order],
            operands, np.concatenate([edges.operand, np.full_like(mine, len(operands) - 1)])[order],
        )  # fmt: skip

    def _forms(self) -> tuple[Ints, list[Domain], list[Ints]]:
        """Return which form each new node has, the forms, and the states from which they choose."""
        edges, mesh = self.edges, self.network.mesh.cuts
        tables, begin, numbers = edges.table.tolist(), edges.begin.tolist(), edges.states.tolist()
        known: dict[object, int] = {}
        found, forms, arrays = [], list[Domain](), list[Ints]()
        free = self.seen[self.tensor].tolist()
        for edge in self.waiting.tolist():
            ends = tuple(numbers[begin[edge] : begin[edge + 1]])
            key = tables[edge], ends, free[edge]
            if key not in known:
                known[key] = len(forms)
                states = np.unique(np.concatenate([edges.arrays[n] for n in ends]))
                table, tensor = edges.tables[tables[edge]], self.program.tensors[self.tensor[edge]]
                choices = tuple([{TENSOR: table.states[i]} for i in states.tolist()])
                sizes = [0 if free[edge] else local_bytes(tensor, c[TENSOR], mesh) for c in choices]
                forms.append(Domain(choices, np.zeros(len(choices)), ints(sizes)))
                arrays.append(states)
            found.append(known[key])
        return ints(found), forms, arrays

    def _held(self) -> tuple[Ints, list[Domain]]:
        """Return the forms of nodes with those of their bytes that are there between the passes.

        What waits in a node of its own does not count here.
        """
        first, found = distinct(self.nodes.domain, self._looks())
        return found, [self._between(index) for index in first.tolist()]

    def _looks(self) -> Ints:
        """Return equal numbers for nodes of which, if their forms are equal, the same is there.

        Of an op that depends on its kind, on which results are small and wait, and on variables that it
        updates; of others on the form of the tensor, if that waits in a node of its own.
        """
        columns, names = self.program.columns, self.nodes.name
        outputs = columns.outputs
        small, begin = self.small[outputs.tensor], outputs.begin
        written: dict[int, tuple[str, ...]] = {}
        for name, operand in self.network.written.values():
            op = columns.place[name]
            written[op] = (*written.get(op, ()), operand)
        known: dict[object, int] = {}
        special = np.zeros(len(columns.kind), dtype=np.int64)
        for op in {*outputs.op[small].tolist(), *written}:
            key = small[begin[op] : begin[op + 1]].tobytes(), written.get(op)
            special[op] = known.setdefault(key, 1 + len(known))
        looks: Ints = columns.kind[self.op] * (1 + len(known)) + special[self.op]
        others = np.flatnonzero(self.op < 0)
        tensors = ints([columns.number[names[i]] for i in others.tolist()])
        looks[others] = np.where(self.large[tensors], 1 + columns.form[tensors], 0)
        return looks

    def _between(self, index: int) -> Domain:
        """Return the form of a node with those of its bytes that are there between the passes."""
        program, name = self.program, self.nodes.name[index]
        form: Domain = self.nodes.domains[self.nodes.domain[index]]
        number = program.columns.number
        if self.op[index] >= 0:
            op = program.op[name]
            parts = [(o, t) for o, t in op.outputs if self.small[number[t]]]
            parts += [(o, t) for o, t in op.inputs if self.network.written.get(t) == (name, o)]
        elif self.large[number[name]]:
            parts = [(TENSOR, name)]
        else:
            return form
        mesh, tensor = self.network.mesh.cuts, program.tensor
        sums = ints(
            [sum(local_bytes(tensor[t], c[o], mesh) for o, t in parts) for c in form.choices]
        )
        return form._replace(memory_bytes=sums if self.op[index] >= 0 else form.memory_bytes - sums)
