"""By what a program is known: the digest of a JSON text of its ops and tensors, sorted by name.

The text is that of `json.dumps`, put together from columns: names and attributes occur in it several
times, and are encoded once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii

import numpy as np

from autoddl.sbp.columns import Columns

_encode = encode_basestring_ascii  # of one text, as json.dumps does
_BETWEEN = "], ["  # the inputs and the outputs of an op


def digest(device: str, columns: Columns, *ends: Sequence[str], attributes: bool) -> str:
    """Return 16 hex digits for a device, ops, tensors and what else follows.

    Ops stand there as name, type, inputs, outputs and, if they count, `attributes`; tensors as name,
    shape and dtype.
    """
    names = list(map(_encode, columns.number))
    parts = (
        _encode(device),
        f"[{_ops(columns, names, attributes=attributes)}]",
        f"[{_tensors(columns, names)}]",
        *map(json.dumps, ends),
    )
    return hashlib.sha256(f"[{', '.join(parts)}]".encode()).hexdigest()[:16]


def _tensors(columns: Columns, names: Sequence[str]) -> str:
    forms = [f"{json.dumps(shape)}, {_encode(dtype)}" for shape, dtype in columns.forms]
    number, form = columns.number, columns.form.tolist()
    order = [number[name] for name in sorted(number)]
    return ", ".join([f"[{names[n]}, {forms[form[n]]}]" for n in order])


def _ops(columns: Columns, names: Sequence[str], *, attributes: bool) -> str:
    """Return the ops: of each in turn its head, inputs, what is between, outputs and its end."""
    ops, ins, outs = columns.place, columns.inputs, columns.outputs
    types = list(map(_encode, columns.types))
    heads = [
        f", [{_encode(o)}, {types[t]}, [" for o, t in zip(ops, columns.type.tolist(), strict=True)
    ]
    tails = [f"], {_encode(repr(a))}]" for a in columns.attributes] if attributes else ["]]"]
    operands = list(map(_encode, columns.operands))
    tensors = [f"{name}]" for name in names]
    firsts, others = [f"[{o}, " for o in operands], [f", [{o}, " for o in operands]
    pieces = [*heads, *tails, _BETWEEN, *tensors, *firsts, *others]
    tail, between = len(heads), len(heads) + len(tails)
    tensor, first = between + 1, between + 1 + len(tensors)

    order = np.array([ops[name] for name in sorted(ops)], dtype=np.int64)
    middle = 1 + 2 * np.diff(ins.begin)  # where in its op's pieces it is
    last = middle + 1 + 2 * np.diff(outs.begin)
    begin = np.zeros(len(order), dtype=np.int64)
    begin[order] = np.concatenate(([0], np.cumsum(last[order] + 1)))[:-1]
    text = np.empty(int(np.sum(last + 1)), dtype=np.int64)
    text[begin] = np.arange(len(order))
    text[begin + middle] = between
    text[begin + last] = tail + (columns.attribute if attributes else 0)
    for found, where in ((ins, begin + 1), (outs, begin + middle + 1)):
        place = np.arange(len(found.tensor)) - found.begin[found.op]
        at = where[found.op] + 2 * place
        text[at] = first + found.name + len(operands) * (place > 0)
        text[at + 1] = tensor + found.tensor
    return "".join(map(pieces.__getitem__, text.tolist()))[2:]
