"""The process that asks the engine: `python -m autoddl.engine.oneflow.signatures.signature_child FILE`.

For every query it makes the smallest job: one variable per input and the op itself, whose first input
has to be S77, which no list contains. The engine's refusal then names the list. Nothing is allocated
or executed, kernels are not looked up, and only the op's type, attributes and shapes matter.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import oneflow as flow
from google.protobuf import text_format
from oneflow.core.job import job_pb2, sbp_parallel_pb2

from autoddl.engine.oneflow.capture.reader import DTYPE_NUMBERS, read_sbp
from autoddl.engine.oneflow.job.attributes import attribute
from autoddl.errors import AutoDDLError

_NO_SUCH_DIM = 77
_OP = "op"
_ASKED = f"{_OP} has no maching sbp after flitering valid sbp list "  # (sic)
_HINT = " with sbp hint "
_UNREGISTERED = "must be a variable created in nn.Graph"


class _Host(flow.nn.Graph):
    """Lend its scope, session and job id to the jobs of the queries."""

    def build(self, x: flow.Tensor) -> flow.Tensor:
        return x + 1


class Asker:
    """Ask the engine of this process about one op at a time."""

    def __init__(self) -> None:
        self._host = _Host()
        self._host.build_graph(flow.zeros(1))
        job = self._host._full_job_proto
        self._conf = job.job_conf
        self._scope = next(op.scope_symbol_id for op in job.net.op if op.HasField("user_conf"))

    def answer(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return {"signatures": [{operand: text}]} or {"reason": why there is no list}."""
        try:
            job = self._job(query)
        except AutoDDLError as error:
            return {"reason": _reason(str(error))}
        host = self._host
        asked = flow._oneflow_internal.nn.graph.CNNGraph(
            host._name, job.SerializeToString(), host._job_id, host._session._session_ctx
        )
        try:
            asked.complie_and_init_runtime()
        except Exception as error:
            message = str(error)
        else:
            message = _UNREGISTERED
        if _ASKED not in message:
            return {"reason": _reason(message)}
        text = message.partition(_ASKED)[2].partition(_HINT)[0]
        found = text_format.Parse(text, sbp_parallel_pb2.SbpSignatureList())
        operands = [*(name for name, _, _ in query["inputs"]), *query["outputs"]]
        entries = [_texts(entry, operands) for entry in found.sbp_signature]
        return {"signatures": [e for i, e in enumerate(entries) if e not in entries[:i]]}

    def _job(self, query: Mapping[str, Any]) -> Any:
        job = job_pb2.Job()
        job.job_conf.CopyFrom(self._conf)
        for operand, shape, dtype in query["inputs"]:
            conf = self._op(job, operand).variable_conf
            conf.out = "out"
            conf.shape.SetInParent()
            conf.shape.dim.extend(shape)
            conf.data_type = _dtype_number(operand, dtype)
            conf.initializer.empty_conf.SetInParent()
            conf.nd_sbp.append("B")
        op = self._op(job, _OP).user_conf
        op.op_type_name = query["type"]
        for operand, _, _ in query["inputs"]:
            _add(op.input, op.input_order, operand, f"{operand}/out")
        for operand in query["outputs"]:
            _add(op.output, op.output_order, operand, f"{_OP}/{operand}")
        for name, value in query["attrs"]:
            op.attr[name].CopyFrom(attribute(query["type"], name, value))
        placement = job.placement.placement_group.add()
        placement.op_set.op_name.extend(op.name for op in job.net.op)
        devices = placement.parallel_conf
        devices.device_tag = "cpu"
        devices.device_name.extend(f"@{rank}:{rank}" for rank in range(query["ranks"]))
        devices.hierarchy.dim.append(query["ranks"])
        view, first = job.job_parallel_view_conf, query["inputs"][0][0]
        for name in placement.op_set.op_name:
            view.op_name2is_local_parallel_view[name] = False
        wanted = view.op_name2nd_sbp_signature_conf[_OP].bn_in_op2nd_sbp[first].sbp_parallel.add()
        wanted.split_parallel.axis = _NO_SUCH_DIM
        legacy = view.op_name2sbp_signature_conf[_OP].bn_in_op2sbp_parallel[first]
        legacy.CopyFrom(wanted)
        return job

    def _op(self, job: Any, name: str) -> Any:
        op = job.net.op.add()
        op.name, op.device_tag, op.scope_symbol_id = name, "cpu", self._scope
        return op


def _add(ports: Any, order: Any, operand: str, lbn: str) -> None:
    port = operand.rpartition("_")[0]
    if port not in order:
        order.append(port)
    ports[port].s.append(lbn)


def _dtype_number(operand: str, dtype: str) -> int:
    if dtype not in DTYPE_NUMBERS:
        raise AutoDDLError(f"operand {operand}: the engine has no dtype {dtype!r}")
    return DTYPE_NUMBERS[dtype]


def _texts(entry: Any, operands: Sequence[str]) -> dict[str, str]:
    """Return a signature in the order of the operands; some ops list one of them several times."""
    return {name: str(read_sbp(entry.bn_in_op2sbp_parallel[name])) for name in operands}


def _reason(message: str) -> str:
    """Return what the engine says in one line, without its call stack."""
    if _UNREGISTERED in message:
        return (
            "the engine has no list for it: it infers the signature by a function of the op's own"
        )
    text = message.partition('\n  File "')[0].partition("Error Type:")[0]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(plain.split())[:300] or "the engine gives no reason"


def main(argv: list[str]) -> None:
    """Answer the queries of a file on stdout, one JSON line each, after a line `true`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints is no answer
    queries = json.loads(Path(argv[0]).read_text())
    asker = Asker()
    answers.write("true\n")
    answers.flush()
    for query in queries:
        answers.write(json.dumps(asker.answer(query)) + "\n")
        answers.flush()
    os._exit(0)  # the engine's own end takes long and may hang


if __name__ == "__main__":
    main(sys.argv[1:])
