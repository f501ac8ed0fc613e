"""A mesh that cuts an axis of another one in two can do all that the other can, at no higher price."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

FLAT, SPLIT = Mesh.parse("[gpu 4]"), Mesh.parse("[gpu 2][gpu 2]")


def on_both(state: NdSbp) -> NdSbp:
    return NdSbp((*state, *state))


@pytest.mark.parametrize("program", [mlp(16, (32, 64)), transformer(1)], ids=["mlp", "transformer"])
def test_a_finer_mesh_can_do_the_same_no_dearer(program: Program) -> None:
    flat, split = (build(program, mesh, cluster()) for mesh in (FLAT, SPLIT))
    assert flat.variables.name == split.variables.name
    for variable in range(len(flat)):
        coarse, fine = flat.variables.of(variable), split.variables.of(variable)
        for choice, seconds, held in zip(*coarse, strict=True):
            same: NdSignature = {operand: on_both(state) for operand, state in choice.items()}
            index = fine.choices.index(same)
            assert fine.compute_s[index] == pytest.approx(seconds)
            assert fine.memory_bytes[index] == held
    assert (flat.factors.tensor == split.factors.tensor).all()
    for factor in range(len(flat.factors.table)):
        coarse_table = flat.factors.tables[flat.factors.table[factor]]
        fine_table = split.factors.tables[split.factors.table[factor]]
        at = [fine_table.index[on_both(state)] for state in coarse_table.states]
        assert (fine_table.cost[np.ix_(at, at)] <= coarse_table.cost * (1 + 1e-9)).all()
