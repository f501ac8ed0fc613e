"""Lowering: the tasks and buffers of one rank of OneFlow, from a program and its layout.

Every variable, input, op, boxing and identity behind a boxing becomes an instance of a task template
(task_templates.py); instances stand in the order of the program, a boxing before its first reader. With
a (S0) → matmul (B) on a mesh of 2 those are: input a, all-gather, identity, matmul: four tasks, whose
reads are the buffers of the one before.

Source: OneFlow 0.9, core/graph/boxing and core/graph/task_graph.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoddl.engine.oneflow.model.memory.instances import Instances, order_of
from autoddl.engine.oneflow.model.memory.sizes import LocalSizes
from autoddl.engine.oneflow.model.memory.task_graph import BITS, MASK, NONE, Ints, RankTasks, Table
from autoddl.engine.oneflow.model.memory.task_templates import INPUT
from autoddl.engine.oneflow.model.rewrites.gradient_accumulation import SUM
from autoddl.ragged import Ragged, distinct
from autoddl.sbp.layout import Layout, Moves, Path
from autoddl.sbp.rewrites.stage_program import ARRIVAL, DEPARTURE
from autoddl.sbp.state import NdSbp


def rank_tasks(
    mesh: Sequence[int],
    layout: Layout,
    coords: Sequence[int] | None = None,
    *,
    sizes: LocalSizes | None = None,
    compute_stream: bool = False,
    logical_chains: bool = False,
    gathers: Ints | None = None,
) -> RankTasks:
    """Return the tasks of the rank at mesh coordinates `coords` (all 1 at most, by default).

    Ranks differ only where B becomes P: the first device of an axis keeps the value, others make
    zeros. So the coordinates count as 0 or not 0. `sizes` are those of another layout of the program.
    With `compute_stream` boxings are ops of the compute stream, as far as OneFlow can do that; only
    then ops may be joined to `logical_chains` before (see liveness.py). `gathers` are by redistribution
    of a parameter the one whose end it waits for, or NONE (job/parameter_gathers.py): what is in memory
    is the same without.
    """
    place = _away(mesh) if coords is None else tuple(coords)
    known = sizes or LocalSizes(layout.program, mesh)
    lowering = _Lowering(layout, known, place, compute_stream=compute_stream, gathers=gathers)
    return lowering.tasks(logical_chains=logical_chains)


def never_reused_bytes(mesh: Sequence[int], layout: Layout, sizes: LocalSizes) -> int:
    """Return the bytes on one device that no other buffer ever uses; in less time than `rank_tasks`.

    Those are parameters, their states, inputs, and what collectives on streams of their own return.
    """
    lowering = _Lowering(layout, sizes, _away(mesh), compute_stream=False)
    return lowering.never_reused_bytes()


def _away(mesh: Sequence[int]) -> tuple[int, ...]:
    """Return coordinates that are not 0 where there are others."""
    return tuple(min(1, size - 1) for size in mesh)


class _Added(NamedTuple):
    """The instances of chains: template, tensor, what each reads, the op behind it, the task's order.

    `waits` are pairs of instances and those that they wait for; `result` is what each chain makes.
    """

    instances: Table
    waits: Table
    result: Ints


class _Lowering:
    """The lowering of one layout. Instances are numbered: variables and inputs, ops, what is added.

    A result is one number, `instance << BITS` and which of the instance's buffers it is.
    """

    def __init__(
        self, layout: Layout, sizes: LocalSizes, coords: tuple[int, ...], *,
        compute_stream: bool, gathers: Ints | None = None,
    ) -> None:  # fmt: skip
        self.program, self.layout = layout.program, layout
        self.gathers = np.full(len(layout.moves.tensor), NONE) if gathers is None else gathers
        self.sizes, self.dataflow = sizes, sizes.dataflow
        self.templates = sizes.templates(coords, compute_stream=compute_stream)
        columns, held = layout.program.columns, (layout.inputs, layout.variables)
        self.inputs = len(held[0])  # the first of what is kept
        self.kept = np.concatenate([states.numbers for states in held])
        self.states: list[NdSbp] = [state for states in held for state in states.distinct]
        self.state = np.concatenate((held[0].which, len(held[0].distinct) + held[1].which))
        # what cuts an input into micro-batches stands between
        merged = np.arange(len(self.kept)) < (0 if self.dataflow.sums.any() else self.inputs)
        first, alike = distinct(self.state, columns.form[self.kept], merged)
        rows = zip(columns.form[self.kept[first]].tolist(), self.state[first], strict=True)
        sources = [
            self.templates.source(form, self.states[state], merged=bool(each))
            for (form, state), each in zip(rows, merged[first], strict=True)
        ]
        self.source = np.array(sources, dtype=np.int64)[alike]
        signature = layout.signatures.complete()
        first, self.which = distinct(signature, columns.kind)
        self.first = first.tolist()
        self.signature = [layout.signatures.distinct[n] for n in signature[first].tolist()]
        # equal for instances of equal states, not bytes only
        self.alike = np.concatenate((alike, self.which + len(alike)))

    def tasks(self, *, logical_chains: bool) -> RankTasks:
        """Return the tasks and buffers, numbered in the order of the program."""
        reads, added = self._reads()
        ops = np.array([self._op(kind) for kind in range(len(self.first))], dtype=np.int64)
        place, kept = self.program.columns.place, len(self.kept)
        after = self.layout.after.items()
        pairs = [(kept + place[o], kept + place[t]) for o, t in after if o in place]
        waits = np.concatenate((np.array(pairs, np.int64).reshape(-1, 2).T, added.waits), axis=1)
        templates = np.concatenate((self.source, ops[self.which]))
        return Instances(
            self.dataflow, self.templates, kept=self.kept, chosen=templates, reads=reads,
            added=added.instances, waits=waits, logical_chains=logical_chains,
        ).tasks()  # fmt: skip

    def never_reused_bytes(self) -> int:
        """Return the bytes of the buffers whose memory nothing reuses; those of ops are sums."""
        _, added = self._reads()
        ops = self.program.ops
        sums = [kind for kind, number in enumerate(self.first) if ops[number].type == SUM]
        counts = np.bincount(self.which, minlength=len(self.first))[sums]
        own = np.array([self._op(kind) for kind in sums], dtype=np.int64).repeat(counts)
        used = np.concatenate((self.source, added.instances[0], own))
        return int(self.templates.never_reused_bytes()[used].sum())

    def _op(self, kind: int) -> int:
        number, signature = self.first[kind], self.signature[kind]
        op, sizes = self.program.ops[number], self.sizes.op(number, signature)
        operands = tuple([operand for operand, _ in op.inputs])
        return self.templates.op(
            sizes, operands, reused=op.type != SUM, transfer=op.type in (ARRIVAL, DEPARTURE)
        )

    def _reads(self) -> tuple[Ints, _Added]:
        """Return which result each op input reads, NONE where the engine's scheduler makes it.

        Besides, what is added for this.
        """
        flow, read, first_op = self.dataflow, self.program.columns.inputs, len(self.kept) << BITS
        kept = np.full(len(self.program.tensors), NONE)
        kept[self.kept] = np.arange(len(self.kept)) << BITS
        found = np.where(flow.made == NONE, kept[read.tensor], flow.made + first_op)
        given = np.where(flow.result == NONE, kept, flow.result + first_op)
        moves = self.layout.moves
        into = moves.slot != NONE
        wanted = np.full(len(found), NONE)
        wanted[moves.slot[into]] = moves.item[into]
        slots = np.flatnonzero((wanted != NONE) & (found != NONE))
        item, first = np.unique(wanted[slots], return_index=True)
        turn = first.argsort()
        item, slot = item[turn], slots[first[turn]]
        none = np.full(len(item), NONE)
        columns = np.stack((item, moves.tensor[item], found[slot], read.op[slot], none))
        more = self._outputs(moves, item.tolist(), given)
        added = self._added(moves, np.concatenate((columns, more), axis=1))
        place = np.empty(len(moves.tensor), dtype=np.int64)
        place[item] = np.arange(len(item))
        found[slots] = added.result[place[wanted[slots]]]
        return found, added

    def _outputs(self, moves: Moves, items: Sequence[int], given: Ints) -> Table:
        """Return what is added for the graph's outputs, behind what is for `items` already.

        Those are redistributions, and, with number NONE, what gives a tensor back.
        """
        number, end = self.program.columns.number, len(self.program.ops)
        out = moves.item[moves.slot == NONE]
        returned = dict(zip(moves.tensor[out].tolist(), out.tolist(), strict=True))
        places = {item: place for place, item in enumerate(items)}
        found: list[tuple[int, ...]] = []
        for tensor in dict.fromkeys([number[name] for name in self.program.outputs]):
            item, source = returned.get(tensor, NONE), int(given[tensor])
            if source == NONE:
                continue
            if item != NONE and item not in places:
                places[item] = len(items) + len(found)
                found.append((item, tensor, source, end, NONE))
            found.append((NONE, tensor, source, end, places.get(item, NONE)))
        return np.array(found, dtype=np.int64).reshape(-1, 5).T

    def _added(self, moves: Moves, columns: Table) -> _Added:
        """Return the instances of redistributions, and of what gives tensors back (number NONE)."""
        item, tensor, source, op, behind = columns
        alone, path, after, early, other = (
            np.append(column, NONE)[item]
            for column in (moves.alone, moves.path, moves.after, moves.early, self.gathers)
        )
        row = np.full(len(moves.tensor) + 1, NONE)
        row[item] = np.where(item == NONE, NONE, np.arange(len(item)))
        variable = np.zeros(len(self.program.tensors), dtype=np.bool_)
        variable[self.kept[self.inputs :]] = True
        own = variable[tensor] | (alone == 1)  # begins with an identity of its own
        where, chain = distinct(self.alike[source >> BITS], source & MASK, path, own)
        chains = [
            self._chain(int(tensor[n]), int(source[n]), moves.paths[path[n]], own=bool(own[n]))
            if path[n] != NONE
            else [(self.templates.output(self.program.tensors[tensor[n]].size_bytes), 0, False)]
            for n in where.tolist()
        ]
        group = np.where(item == NONE, order_of(1, 0), order_of(2, 0))
        order = group + (np.where(item == NONE, op, item) << BITS)
        late = np.where(early == 0, 0, own + early)
        wanted = np.stack((chain, tensor, op, order, source, behind, after, late, row[other]))
        results = np.array(self.templates.result, np.int64)
        return _chained(chains, wanted, results, len(self.kept), len(self.alike))

    def _chain(
        self, tensor: int, source: int, path: Path, *, own: bool
    ) -> Sequence[tuple[int, int, bool]]:
        """Return the identities of a redistribution with the boxings between them.

        Those are templates, behind how many states each comes, and whether it is a boxing.
        """
        state, form = self._state(source), int(self.program.columns.form[tensor])
        found = []
        for step, goal in enumerate((state, *path) if own else path):
            boxing = self.templates.boxing(form, state, goal)
            if boxing != NONE:
                found.append((boxing, step, True))
            found.append((self.templates.identity(form, goal), step, False))
            state = goal
        return found

    def _state(self, source: int) -> NdSbp:
        """Return the state of a variable, an input or a result of an op."""
        instance = source >> BITS
        if instance < len(self.kept):
            return self.states[int(self.state[instance])]
        op = self.program.ops[instance - len(self.kept)]
        return self.layout.signatures[op.name][op.outputs[source & MASK][0]]


def _chained(
    chains: Sequence[Sequence[tuple[int, int, bool]]], wanted: Table, results: Ints,
    ops: int, first: int,
) -> _Added:  # fmt: skip
    """Return the instances of all chains that are wanted, numbered from `first`; ops are from `ops` on.

    Each is for a `tensor` and before an `op`, in ascending order. It reads the result `source`, or what
    the chain `behind` makes, where that is not NONE. `order` is that of an identity behind no state. The
    one behind `late` states waits for the op `after`, if that is not NONE, and the first link for the
    last one of the chain `gathered` before. `results` are those of all templates. What begins with a
    boxing of one kind of one result shares it.
    """
    chain, tensor, op, order, source, behind, after, late, gathered = wanted
    links = np.array([link for chain in chains for link in chain], dtype=np.int64).reshape(-1, 3)
    ends = np.cumsum([0, *map(len, chains)])
    start, items = Ragged(ends, np.arange(len(links))).take(chain)
    template, step, boxing = links[items].T
    counts = np.diff(start)
    row, place = np.arange(len(counts)).repeat(counts), np.arange(len(items))
    begin = start[:-1][counts > 0]
    boxed = begin[boxing[begin] != 0]
    keys = (source[row[boxed]] << BITS) + template[boxed]
    _, once, known = np.unique(keys, return_index=True, return_inverse=True)
    original = place.copy()
    original[boxed] = boxed[once[known]]
    number = first - 1 + (original == place).cumsum()[original]

    made = (number << BITS) + results[template]
    reads = _behind(made, begin, source[row[begin]])
    kept = results[template] == INPUT  # these devices keep what they have
    made[kept] = reads[kept]
    result = np.where(counts > 0, np.append(made, NONE)[start[1:] - 1], source)
    begun = np.where(behind == NONE, source, result[behind])
    reads = _behind(made, begin, begun[row[begin]])
    turn = np.where(boxing, 0, order[row] + step)
    instances = np.stack((template, tensor[row], reads, op[row], turn))
    waits = (boxing == 0) & (after[row] != NONE) & (step == late[row])
    late_ones = np.stack((number[waits], ops + after[row[waits]]))
    turn = np.flatnonzero(gathered != NONE)
    in_turn = np.stack((number[start[turn]], number[start[gathered[turn] + 1] - 1]))
    return _Added(
        instances[:, original == place], np.concatenate((late_ones, in_turn), axis=1), result
    )


def _behind(made: Ints, begin: Ints, source: Ints) -> Ints:
    """Return what links read: what the one before makes, or the source of their chain."""
    reads = np.roll(made, 1)
    reads[begin] = source
    return reads
