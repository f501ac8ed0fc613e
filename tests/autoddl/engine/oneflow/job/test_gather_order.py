"""Parameters are gathered in the order in which they are read, not all at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.written_jobs import source, written

pytestmark = pytest.mark.oneflow


def test_gathers_wait_for_those_read_a_mebibyte_before() -> None:
    widths = (512, 512, 512, 512, 512, 8)  # four weights of 1 MiB, one of 16 KiB, biases of 2 KiB
    job, _ = written(widths=widths, mesh="4", search="ZeRO 2")
    waits = {
        _parameter(job, op.name): [_parameter(job, other) for other in op.ctrl_in_op_name]
        for op in job.net.op
        if op.name.startswith("autoddl-boxing-") and op.ctrl_in_op_name
    }
    first = {name: ["0.bias"] for name in ("2.bias", "4.weight")}
    second = {name: ["2.bias"] for name in ("4.bias", "6.weight")}
    third = {name: ["4.bias"] for name in ("6.bias", "8.weight", "8.bias")}
    assert waits == {**first, **second, **third}


@pytest.mark.parametrize(("search", "on_stream"), [("data parallel", False), ("ZeRO 2", True)])
def test_none_waits_without_gathers_or_on_the_compute_stream(search: str, on_stream: bool) -> None:
    job, _ = written(
        widths=(512, 512, 512, 512, 8), mesh="4", search=search, compute_stream=on_stream
    )
    assert not any(o.ctrl_in_op_name for o in job.net.op if o.name.startswith("autoddl-boxing-"))


def _parameter(job: Any, identity: str) -> str:
    return source(job, f"{identity}/out_0").removeprefix("model.").removesuffix("/out")
