"""By what a program is known: a digest of its ops and tensors, whatever the order of the ops.

Ops are sorted by name, tensors are as these make them; those that no op makes come first, by name. A JSON
text has their names, a line each, and all types, operands, shapes with dtypes, and attributes that occur,
sorted. Which of these each op and tensor has follows as numbers of 8 bytes, the lowest first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from autoddl.sbp.program.columns import Ints, Operands, ProgramColumns
from autoddl.sbp.program.ops_and_tensors import SEED


def digest(device: str, columns: ProgramColumns, *ends: Sequence[str], attributes: bool) -> str:
    """Return 16 hex digits for a device, ops, tensors and what else follows.

    Ops count by name, type, inputs, outputs and, if asked for, `attributes`, without seeds, which are
    others in each trace; tensors by name, shape and dtype.
    """
    op_names, tensor_names = list(columns.place), list(columns.number)
    by_name = sorted(range(len(op_names)), key=op_names.__getitem__)
    ops = np.array(by_name, dtype=np.int64)
    read, made = (_rows(operands, ops) for operands in (columns.inputs, columns.outputs))
    tensors = _tensors(columns, columns.outputs.tensor[made])
    place = np.empty_like(tensors)
    place[tensors] = np.arange(len(tensors))
    told = [
        _told(list(map(json.dumps, columns.forms)), columns.form[tensors]),
        _told(columns.types, columns.type[ops]),
        _told(columns.operands, columns.inputs.name[read]),
        _told(columns.operands, columns.outputs.name[made]),
    ]
    if attributes:
        own = [repr(tuple([each for each in a if each[0] != SEED])) for a in columns.attributes]
        told.append(_told(own, columns.attribute[ops]))
    ordered = (op_names, by_name), (tensor_names, tensors.tolist())
    lines = ["\n".join(map(names.__getitem__, order)) for names, order in ordered]
    text = json.dumps([device, *lines, *ends, *(texts for texts, _ in told)])
    found = hashlib.sha256(text.encode())
    for operands, rows in ((columns.inputs, read), (columns.outputs, made)):
        found.update(_bytes(np.diff(operands.begin)[ops]) + _bytes(place[operands.tensor[rows]]))
    for _, numbers in told:
        found.update(_bytes(numbers))
    return found.hexdigest()[:16]


def _rows(operands: Operands, ops: Ints) -> Ints:
    """Return where the operands of some ops are, one op behind the other."""
    counts = np.diff(operands.begin)[ops]
    before = counts.cumsum() - counts
    return np.asarray(np.repeat(operands.begin[ops] - before, counts) + np.arange(counts.sum()))


def _tensors(columns: ProgramColumns, made: Ints) -> Ints:
    """Return all tensors: those that are not made by name, then those that are, once each."""
    turn = np.full(len(columns.form), -1)
    turn[made[::-1]] = np.arange(len(made))[::-1]
    names = list(columns.number)
    given = sorted(np.flatnonzero(turn < 0).tolist(), key=names.__getitem__)
    order = turn.argsort(kind="stable")
    order[: len(given)] = given
    return order


def _told(texts: Sequence[str], numbers: Ints) -> tuple[Sequence[str], Ints]:
    """Return the texts that occur, sorted, and which of these each one of some numbers means."""
    found = sorted({texts[number] for number in np.flatnonzero(np.bincount(numbers)).tolist()})
    place = {text: number for number, text in enumerate(found)}
    which = np.array([place.get(text, -1) for text in texts], dtype=np.int64)
    return found, which[numbers]


def _bytes(numbers: Ints) -> bytes:
    return numbers.astype("<i8").tobytes()
