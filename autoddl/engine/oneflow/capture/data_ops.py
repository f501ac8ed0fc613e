"""Ops with which a graph reads its data itself: readers of records, decoders, what images go through.

They are those that make or read tensors which only the host has, of records or of images of unlike
sizes, and what these read that has no inputs (which images are flipped). What they make for all other ops
is an input of the program, "read.decoder-1/out_0". One rank reads: so steps have the batches of a job on
one device, where readers on several would each have files of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from oneflow.core.common import data_type_pb2

from autoddl.sbp.program.ops_and_tensors import READ

_ON_THE_HOST = tuple(map(data_type_pb2.DataType.Value, ("kOFRecord", "kTensorBuffer")))


def data_ops(job: Any) -> frozenset[str]:
    """Return the names of the ops of a job that read data."""
    ops = [op for op in job.net.op if op.WhichOneof("op_type") == "user_conf"]
    descs = job.helper.lbn2logical_blob_desc
    touched = {op.name: [*_blobs(op.user_conf.input), *_blobs(op.user_conf.output)] for op in ops}
    found = {
        name
        for name, blobs in touched.items()
        if any(lbn in descs and descs[lbn].data_type in _ON_THE_HOST for lbn in blobs)
    }
    readers: dict[str, set[str]] = {}
    for op in ops:
        for lbn in _blobs(op.user_conf.input):
            readers.setdefault(lbn.partition("/")[0], set()).add(op.name)
    sources = [op.name for op in ops if not op.user_conf.input]
    return frozenset(found | {name for name in sources if readers.get(name, set()) & found})


def data_tensors(job: Any, found: Collection[str]) -> dict[str, str]:
    """Return the blobs that data ops make for other ops, with their names as inputs of the program."""
    read: dict[str, str] = {}
    for op in job.net.op:
        kind, blobs = op.WhichOneof("op_type"), list[str]()
        if kind == "user_conf" and op.name not in found:
            blobs = _blobs(op.user_conf.input)
        elif kind == "output_conf":
            blobs = [getattr(op.output_conf, "in")]
        read |= {lbn: READ + lbn for lbn in blobs if lbn.partition("/")[0] in found}
    return dict(sorted(read.items()))


def _blobs(ports: Any) -> list[str]:
    return [lbn for port in sorted(ports) for lbn in ports[port].s]
