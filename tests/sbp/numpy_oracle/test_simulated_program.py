"""Distributed programs on simulated ranks give the tensors of one device, forward to updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoddl.sbp.local_program.instructions import Communication, LocalTensor
from autoddl.sbp.numpy_oracle.simulated_program import run_program
from autoddl.sbp.numpy_oracle.simulated_tensors import close
from autoddl.sbp.state import NdSbp
from experiments.proofs.lowered_steps import unlike, whole_values
from tests.support.local_programs import MODELS, local_program, program_of

MESHES = ("2:3/1", "3:2/1/1", "2:3/1x2", "2x2:3/1")


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_have_the_tensors_of_one_device(name: str, mesh: str) -> None:
    values = whole_values(program_of(name), np.random.default_rng(0))
    for seed in range(2):
        assert unlike(local_program(name, mesh, seed), values) == []


def test_updates_change_what_is_kept() -> None:
    local = local_program("mlp", "2:3/1", 1)
    values = whole_values(local.program, np.random.default_rng(0))
    expected = run_program(local.program, values, updates=True)
    for parameter in local.program.parameters:
        for name in (parameter.tensor, *parameter.states):
            assert not close(values[name], expected[name])


def test_a_wrong_delivery_is_seen() -> None:
    """Parts of a gather in the wrong places, and cuts that are even where shares are meant."""
    local = local_program("mlp", "2:3/1", 0)
    values = whole_values(local.program, np.random.default_rng(0))
    number, each = next(
        (number, each)
        for number, each in enumerate(local.instructions)
        if isinstance(each, Communication)
    )
    wrong = replace(each, deliveries=each.deliveries[:-1])
    changed = (*local.instructions[:number], wrong, *local.instructions[number + 1 :])
    assert unlike(local, values) == []
    with pytest.raises(Exception, match="replicas differ"):
        unlike(replace(local, instructions=changed), values)


def test_what_ranks_send_by_hand() -> None:
    """Eight rows of two by 3/1: a gather sends 6 rows and 2; an exchange of cuts 6 elements each."""
    local = local_program("mlp", "2:3/1", 0)
    tensor = replace(local.program.tensors[0], shape=(8, 4))
    rows, columns, whole = (NdSbp.parse(text) for text in ("S0", "S1", "B"))
    gather = Communication.of(tensor, rows, whole, local.mesh)
    assert [gather.sent_bytes(rank) for rank in range(2)] == [96, 32]
    assert [gather.received_bytes(rank) for rank in range(2)] == [32, 96]
    exchange = Communication.of(tensor, rows, columns, local.mesh)
    assert [exchange.sent_bytes(rank) for rank in range(2)] == [24, 24]
    assert [LocalTensor.of(tensor, rows, local.mesh).start(rank) for rank in range(2)] == [
        (0, 0), (6, 0),
    ]  # fmt: skip
