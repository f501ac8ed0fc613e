"""Candidates with strides: the few that products of matrices meet where nothing is communicated.

Each dim can be cut in as many strides as it has divisors, and nearly all of these are no better than the
plain cut. So plain cuts of contractions are spread along the tensors that they read and make, from op to
op, as long as no op in between needs anything but its own part; what is met on the way are candidates:

    scores = matmul(q, k) cut by heads, q read from (tokens, 3, heads, size), which is a reshape of
    (tokens, 3 · heads · size), which matmul(x, w) makes: S2 there is S(1, heads / n · size) here, so also
    S(1, heads / n · size) of w, of its gradient, and of what the optimizer keeps

Source: Rhino (seed 004), §4.3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from autoddl.engine.model import Limits
from autoddl.perfmodel.redistribution import Strided
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.registry import OpView, Signature, find, signatures
from autoddl.sbp.rules.strided_cuts import with_cut
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import Sbp
from autoddl.search.network.evaluator import Ints

CONTRACTIONS = frozenset({"matmul", "conv"})  # families of rules


class StridedCuts(NamedTuple):
    """What ops and tensors have beside plain cuts, by axis; equal ones share a number, 0 is nothing.

    Op i has `signatures[of_op[i]]`, tensor t the cuts `cuts[of_tensor[t]]`.
    """

    of_op: Ints
    signatures: Sequence[Sequence[tuple[Signature, ...]]]
    of_tensor: Ints
    cuts: Sequence[Strided]


def no_strides(program: Program) -> StridedCuts:
    """Return that nothing is cut in strides."""
    columns = program.columns
    ops, tensors = (np.zeros(len(of), dtype=np.int64) for of in (columns.type, columns.form))
    return StridedCuts(ops, ((),), tensors, ((),))


def strided_cuts(
    program: Program, mesh: Mesh, limits: Limits, pinned: Sequence[tuple[str, Sequence[Sbp]]] = ()
) -> StridedCuts:
    """Return the candidates with strides of a program on a mesh, for an engine of these limits.

    Cuts along each axis that tensors are `pinned` to are spread, too.
    """
    found = no_strides(program)
    if not limits.strides:
        return found
    sizes = [cut if isinstance(cut, int) else 1 for cut in mesh.cuts]
    number = program.columns.number
    given = [
        (size, number[name], cut)
        for name, cuts in pinned
        for size, cut in zip(sizes, cuts, strict=True)
        if cut.is_split
    ]
    met = {
        size: _Spread(program, size, limits).run([(t, cut) for n, t, cut in given if n == size])
        for size in {*sizes} - {1}
    }
    alike: dict[object, int] = {(): 0}
    every_signature: list[Sequence[tuple[Signature, ...]]] = [()]
    cuts: dict[Strided, int] = {(): 0}
    for op in {op for one in met.values() for op in one.of_op}:
        every = [
            sorted(met[n].of_op.get(op, {}).items(), key=_first) if n > 1 else [] for n in sizes
        ]
        names = tuple([operand for operand, _ in program.ops[op].operands])
        key = names, tuple(tuple([key for key, _ in some]) for some in every)
        if key not in alike:
            every_signature.append([tuple([signature for _, signature in some]) for some in every])
        found.of_op[op] = alike.setdefault(key, len(alike))
    for tensor in {tensor for one in met.values() for tensor in one.of_tensor}:
        by_axis = tuple(
            tuple(sorted(met[n].of_tensor.get(tensor, ()))) if n > 1 else () for n in sizes
        )
        found.of_tensor[tensor] = cuts.setdefault(by_axis, len(cuts))
    return found._replace(signatures=every_signature, cuts=tuple(cuts))


class _Spread:
    """What is met over `count` devices: by op signatures with strides, by tensor the cuts in them."""

    def __init__(self, program: Program, count: int, limits: Limits) -> None:
        self.program, self.count, self.limits = program, count, limits
        self.kind = program.columns.kind.tolist()
        self.of_op: dict[int, dict[_Key, Signature]] = {}
        self.of_tensor: dict[int, set[Sbp]] = {}
        self.known: dict[tuple[int, str, Sbp], tuple[_Key, Signature] | None] = {}
        self.ends: list[list[tuple[int, str]]] = [[] for _ in program.tensors]
        number = program.columns.number
        self.operands = [
            [(operand, number[tensor]) for operand, tensor in op.operands] for op in program.ops
        ]
        for op, operands in enumerate(self.operands):
            for operand, tensor in operands:
                self.ends[tensor].append((op, operand))

    def run(self, given: Sequence[tuple[int, Sbp]] = ()) -> _Spread:
        """Spread the cuts of all contractions, and those of tensors that are given."""
        waiting = list(dict.fromkeys((*given, *self._begins())))
        seen = set(waiting)
        while waiting:
            tensor, cut = waiting.pop()
            for op, operand in self.ends[tensor]:
                met = self._with_cut(op, operand, cut)
                if met is None:
                    continue
                key, signature = met
                strided = any(sbp.stride is not None for sbp in key)
                if strided:
                    self.of_op.setdefault(op, {})[key] = signature
                for name, other in self.operands[op]:
                    state = signature[name]
                    if state.stride is not None:
                        self.of_tensor.setdefault(other, set()).add(state)
                    if state.is_split and (other, state) not in seen:
                        seen.add((other, state))
                        waiting.append((other, state))
        return self

    def _begins(self) -> Iterator[tuple[int, Sbp]]:
        """Yield the plain cuts of what contractions read and make."""
        known: dict[int, tuple[Signature, ...]] = {}
        for number, op in enumerate(self.program.ops):
            rule = find(op.type)
            if rule is None or rule.family not in CONTRACTIONS:
                continue
            if self.kind[number] not in known:
                known[self.kind[number]] = signatures(
                    self._view(number), refused=self.limits.refused.get(op.type, frozenset())
                )
            for signature in known[self.kind[number]]:
                for operand, tensor in self.operands[number]:
                    cut, shape = signature[operand], self.program.tensors[tensor].shape
                    if cut.is_split and local_shape(shape, (cut,), (self.count,)) is not None:
                        yield tensor, cut

    def _view(self, op: int) -> OpView:
        return OpView.of(self.program.ops[op], self.program.shapes(self.program.ops[op]))

    def _with_cut(self, op: int, operand: str, cut: Sbp) -> tuple[_Key, Signature] | None:
        """Return the signature of an op with a cut of an operand, if all are even; equal ops alike."""
        key = self.kind[op], operand, cut
        if key not in self.known:
            view = self._view(op)
            refused = self.limits.refused.get(view.type, frozenset())
            found = with_cut(view, operand, cut, self.count, refused=refused)
            if found is not None and all(
                local_shape(view.shape[name], (sbp,), (self.count,)) for name, sbp in found.items()
            ):
                self.known[key] = tuple(found[name] for name in view.inputs + view.outputs), found
            else:
                self.known[key] = None
        return self.known[key]


_Key = tuple[Sbp, ...]
_first = itemgetter(0)
