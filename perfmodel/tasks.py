"""What one rank of OneFlow executes and keeps: the tasks of a planned program, and their buffers.

A task is an op, a variable, an input, an identity that a redistribution adds, or a part of a boxing.
Boxings have the tasks and buffers that OneFlow 0.9 makes of them on CUDA devices (NCCL collectives
that OneFlow issues on a stream of their own, slices that travel through the host from S to S); on
request most of them are ops of the compute stream instead (compute_stream.py).

Source: OneFlow 0.9, core/graph/boxing and core/graph/task_graph.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoddl.perfmodel.added import Added, Link, Wanted, added, chain_of
from autoddl.perfmodel.assembly import Chosen, assembled, order_of
from autoddl.perfmodel.by_name import ByName
from autoddl.perfmodel.moves import Moves, Path, Redistributed, moves_of
from autoddl.perfmodel.rank import NONE, Flags, Ints, RankTasks, Table
from autoddl.perfmodel.sizes import LocalSizes
from autoddl.perfmodel.wiring import BITS, MASK, SUM
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp


@dataclass(frozen=True)
class Layout:
    """The states of a planned program, as a plan has them.

    `signatures` maps ops to the states of their operands, `variables` parameters, buffers and
    optimizer states to theirs, `inputs` the graph's inputs. `after` maps ops to others that they wait
    for without reading from them.
    """

    signatures: Mapping[str, NdSignature]
    variables: Mapping[str, NdSbp]
    inputs: Mapping[str, NdSbp]
    redistributions: Sequence[Redistributed] = ()
    after: Mapping[str, str] = field(default_factory=dict)

    def made(self, program: Program) -> dict[str, NdSbp]:
        """Return the state in which each tensor of a program is made or kept."""
        results = {t: self.signatures[op.name][o] for op in program.ops for o, t in op.outputs}
        return {**results, **self.variables, **self.inputs}

    def kept(self, program: Program, tensors: Ints) -> Ints:
        """Return equal numbers for tensors that are kept in one state, NONE for those that are not."""
        place = program.columns.number
        inputs, variables = (ByName.of(place, held) for held in (self.inputs, self.variables))
        first, second = inputs.every[tensors], variables.every[tensors]
        second = np.where(second == NONE, NONE, len(inputs.distinct) + second)
        return np.where(first == NONE, second, first)

    def state(self, program: Program, tensor: str) -> NdSbp | None:
        """Return the state in which one tensor of a program is made or kept; None if it has none."""
        for held in (self.inputs, self.variables):
            if tensor in held:
                return held[tensor]
        columns = program.columns
        number = columns.number.get(tensor)
        if number is None or columns.maker[number] < 0:
            return None
        op = program.ops[columns.maker[number]]
        return self.signatures[op.name][op.outputs[columns.output[number]][0]]


def rank_tasks(
    program: Program,
    mesh: Sequence[int],
    layout: Layout,
    coords: Sequence[int] | None = None,
    *,
    sizes: LocalSizes | None = None,
    compute_stream: bool = False,
) -> RankTasks:
    """Return the tasks of the rank at mesh coordinates `coords` (all 1 at most, by default).

    Ranks differ only where B becomes P: the first device of an axis keeps the value, others make
    zeros. So the coordinates count as 0 or not 0. `sizes` are those of another layout of the program.
    With `compute_stream` boxings are ops of the compute stream, as far as OneFlow can do that.
    """
    place = _away(mesh) if coords is None else tuple(coords)
    known = sizes or LocalSizes(program, mesh)
    return _Maker(program, layout, known, place, compute_stream=compute_stream).make()


def never_reused_bytes(
    program: Program, mesh: Sequence[int], layout: Layout, sizes: LocalSizes
) -> int:
    """Return the bytes on one device that no other buffer ever uses; in less time than `rank_tasks`.

    Those are parameters, their states, inputs, and what collectives on streams of their own return.
    """
    return _Maker(program, layout, sizes, _away(mesh), compute_stream=False).never_reused_bytes()


def _away(mesh: Sequence[int]) -> tuple[int, ...]:
    """Return coordinates that are not 0 where there are others."""
    return tuple(min(1, size - 1) for size in mesh)


class _Maker:
    """Choose the parts of a rank in the order of the program; a boxing when its first reader comes.

    Parts are numbered: variables and inputs, then ops, then what is added as it comes. A result is one
    number, `part << BITS` and which of the part's buffers it is.
    """

    def __init__(
        self, program: Program, layout: Layout, sizes: LocalSizes, coords: tuple[int, ...],
        *, compute_stream: bool,
    ) -> None:  # fmt: skip
        self.program, self.layout, self.compute_stream = program, layout, compute_stream
        self.sizes, self.wiring = sizes, sizes.wiring
        self.parts = sizes.parts(coords, compute_stream=compute_stream)
        columns = program.columns
        self.signatures = ByName.of(columns.place, layout.signatures)
        held = [ByName.of(columns.number, states) for states in (layout.inputs, layout.variables)]
        self.inputs = len(held[0])  # the first of what is kept
        self.kept = np.concatenate([states.numbers for states in held])
        self.states: list[NdSbp] = [state for states in held for state in states.distinct]
        self.state = np.concatenate((held[0].which, len(held[0].distinct) + held[1].which))
        self.source, like = self._kept()
        signature = self.signatures.complete()
        self.where, self.which = _distinct(signature, self.wiring.kind)
        self.signature = [self.signatures.distinct[n] for n in signature[self.where].tolist()]
        # equal for equal states, not bytes only
        self.like = np.concatenate((like, self.which + len(like)))

    def make(self) -> RankTasks:
        number, kept = self.program.columns.place, len(self.kept)
        waits = [(kept + number[o], number[t]) for o, t in self.layout.after.items() if o in number]
        results, found = self._results()
        parts = [self._op(kind) for kind in range(len(self.where))]
        chosen = Chosen(
            self.kept,
            np.concatenate((self.source, np.array(parts, dtype=np.int64)[self.which])),
            results,
            found.parts,
            np.concatenate((np.array(waits, dtype=np.int64).reshape(-1, 2).T, found.after), axis=1),
            compute_stream=self.compute_stream,
        )
        return assembled(self.wiring, self.parts.columns(), chosen)

    def never_reused_bytes(self) -> int:
        """Return the bytes of the buffers whose memory nothing reuses; those of ops are sums."""
        _, found = self._results()
        sums = [kind for kind, number in enumerate(self.where) if self._is_sum(number)]
        counts = np.bincount(self.which, minlength=len(self.where))[sums]
        parts = np.array([self._op(kind) for kind in sums], dtype=np.int64).repeat(counts)
        used = np.concatenate((self.source, found.parts[0], parts))
        return int(self.parts.never_reused_bytes()[used].sum())

    def _kept(self) -> tuple[Ints, Ints]:
        """Return the parts of all variables and inputs, and equal numbers for equal ones."""
        form, inputs = self.wiring.form[self.kept], np.arange(len(self.kept)) < self.inputs
        where, which = _distinct(self.state, form, inputs)
        found = [
            self.parts.source(int(form[n]), self.states[self.state[n]], merged=bool(inputs[n]))
            for n in where
        ]
        return np.array(found, dtype=np.int64)[which], which

    def _op(self, kind: int) -> int:
        """Return the part of ops of one kind and signature."""
        number, signature = self.where[kind], self.signature[kind]
        op, sizes = self.program.ops[number], self.sizes.op(number, signature)
        return self.parts.op(
            sizes, tuple([o for o, _ in op.inputs]), reused=not self._is_sum(number)
        )

    def _is_sum(self, number: int) -> bool:
        return self.program.ops[number].type == SUM

    def _results(self) -> tuple[Ints, Added]:
        """Return which result each op input reads, NONE where the engine's scheduler makes it.

        Besides, what is added for this.
        """
        wiring, first_op = self.wiring, len(self.kept) << BITS
        kept = np.full(len(wiring.tensor), NONE)
        kept[self.kept] = np.arange(len(self.kept)) << BITS
        found = np.where(wiring.made == NONE, kept[wiring.read], wiring.made + first_op)
        given = np.where(wiring.result == NONE, kept, wiring.result + first_op)
        moves = moves_of(wiring, self.layout.redistributions)
        into = moves.slot != NONE
        wanted = np.full(len(found), NONE)
        wanted[moves.slot[into]] = moves.item[into]
        slots = np.flatnonzero((wanted != NONE) & (found != NONE))
        item, first = np.unique(wanted[slots], return_index=True)
        turn = first.argsort()
        item, slot = item[turn], slots[first[turn]]
        none = np.full(len(item), NONE)
        columns = np.stack((item, moves.tensor[item], found[slot], wiring.reader[slot], none))
        more = self._outputs(moves, item.tolist(), given)
        made = self._added(moves, np.concatenate((columns, more), axis=1))
        place = np.empty(len(moves.tensor), dtype=np.int64)
        place[item] = np.arange(len(item))
        found[slots] = made.result[place[wanted[slots]]]
        return found, made

    def _outputs(self, moves: Moves, items: Sequence[int], given: Ints) -> Table:
        """Return what is added for the graph's outputs, behind what is for `items` already.

        Those are redistributions, and, with number NONE, what gives a tensor back.
        """
        wiring, end = self.wiring, len(self.program.ops)
        out = moves.item[moves.slot == NONE]
        returned = dict(zip(moves.tensor[out].tolist(), out.tolist(), strict=True))
        places = {item: place for place, item in enumerate(items)}
        found: list[tuple[int, ...]] = []
        for tensor in dict.fromkeys([wiring.tensor[name] for name in self.program.outputs]):
            item, source = returned.get(tensor, NONE), int(given[tensor])
            if source == NONE:
                continue
            if item != NONE and item not in places:
                places[item] = len(items) + len(found)
                found.append((item, tensor, source, end, NONE))
            found.append((NONE, tensor, source, end, places.get(item, NONE)))
        return np.array(found, dtype=np.int64).reshape(-1, 5).T

    def _added(self, moves: Moves, columns: Table) -> Added:
        """Return the parts of redistributions, and of what gives tensors back (number NONE)."""
        item, tensor, source, op, behind = columns
        alone, path, after, early = (
            np.append(column, NONE)[item]
            for column in (moves.alone, moves.path, moves.after, moves.early)
        )
        variable = np.zeros(len(self.wiring.tensor), dtype=np.bool_)
        variable[self.kept[self.inputs :]] = True
        own = variable[tensor] | (alone == 1)  # begins with an identity of its own
        where, chain = _distinct(self.like[source >> BITS], source & MASK, path, own)
        chains = [
            self._chain(int(tensor[n]), int(source[n]), moves.paths[path[n]], own=bool(own[n]))
            if path[n] != NONE
            else [Link(self.parts.output(self.program.tensors[tensor[n]].size_bytes), 0, False)]
            for n in where
        ]
        group = np.where(item == NONE, order_of(1, 0), order_of(2, 0))
        order = group + (np.where(item == NONE, op, item) << BITS)
        late = np.where(early == 0, 0, own + early)
        wanted = Wanted(chain, tensor, op, order, source, behind, after, late)
        first = len(self.like)
        return added(chains, wanted, np.array(self.parts.result, dtype=np.int64), first)

    def _chain(self, tensor: int, source: int, path: Path, *, own: bool) -> Sequence[Link]:
        state, form = self._state(source), int(self.wiring.form[tensor])
        return chain_of(self.parts, form, state, (state, *path) if own else path)

    def _state(self, source: int) -> NdSbp:
        """Return the state of a variable, an input or a result of an op."""
        part = source >> BITS
        if part < len(self.kept):
            return self.states[int(self.state[part])]
        op = self.program.ops[part - len(self.kept)]
        return self.signatures[op.name][op.outputs[source & MASK][0]]


def _distinct(*columns: Ints | Flags) -> tuple[list[int], Ints]:
    """Return the first of the rows that are equal, and for each row which of those it equals."""
    keys = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        keys = keys * (int(column.max(initial=0)) + 2) + column + 1
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first.tolist(), which
