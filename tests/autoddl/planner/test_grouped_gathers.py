"""Gathers that go grouped: found in a plan, kept in its file, told in its table and its script."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.engine.oneflow.model.script_model import SCRIPT
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.boxing_prices import GroupedGather
from autoddl.perfmodel.profile_entries import Link
from autoddl.plan import codec
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.state import NdSbp
from autoddl.search.baselines import BASELINES
from experiments.lib.oneflow_problems import build
from tests.autoddl.codegen.plans import generate, with_updates
from tests.support.clusters import cluster
from tests.support.programs import transformer


@cache
def plan(mesh: str = "2:3/1", beta: float = 1e-9) -> Plan:
    """Return a plan of ZeRO over links of 1 ns per byte, with broadcasts of 10 µs and so many per byte.

    Launches are free. A gather of n bytes takes 0.1 ms + ¾ n ns padded, 20 µs + n·beta grouped: with 1 ns
    that is sooner below 320 kB, with 0.5 ns always.
    """
    gather, told = Link("all_gather", "gpu", 2, 1e-4, 1e-9), Link("broadcast", "gpu", 2, 1e-5, beta)
    links = [x for x in cluster().links if x.collective != "all_gather"]
    profile = cluster(overhead_s=0.0, links=(*links, gather, told))
    program = with_updates(transformer(layers=1, batch=16, length=8, width=160))
    problem = build(program, Mesh.parse(mesh), profile, engine=SCRIPT)
    found = BASELINES["ZeRO 2"](problem)
    assert found is not None
    return Plan.of(make_plan(problem, problem.result("ZeRO 2", found)))


def gathered(of: Plan) -> dict[str, int]:
    """Return the tensors of the forward pass that are gathered, with their bytes."""
    tensors, parameters = of.program.tensor, {p.tensor for p in of.program.parameters}
    cut, whole = NdSbp.parse("S0"), NdSbp.parse("B")
    return {
        move.tensor: tensors[move.tensor].size_bytes
        for move in of.redistributions
        for pair in pairwise((of.layout.made[move.tensor], *move.path))
        if pair == (cut, whole) and move.tensor in parameters
    }


def test_a_plan_groups_what_is_cheaper_so() -> None:
    some, every = plan(), plan(beta=0.5e-9)
    sizes = set(gathered(some).values())
    assert min(sizes) < 320_000 < max(sizes)
    assert {each.size_bytes for each in some.parts[0].grouped} == {n for n in sizes if n < 320_000}
    assert {each.size_bytes for each in every.parts[0].grouped} == sizes


def test_scripts_write_them() -> None:
    lines = generate(plan()).splitlines()
    pairs = [(a, b) for a, b in pairwise(lines) if ": all-gather" in a]
    padded = {b.split()[0] for _, b in pairs if "grouped=True" not in b}
    assert padded == {"fc1_weight", "fc2_weight"} and len(pairs) > 10
    assert all(("all-gather, grouped" in a) == ("grouped=True" in b) for a, b in pairs)


def test_the_table_tells_their_sizes() -> None:
    table = " ".join(str(plan()).split())
    assert "over [gpu 2:3/1] gathers of 300.0 KiB, 100.0 KiB," in table
    assert "are grouped, a broadcast from each place" in table
    assert "grouped" not in str(plan("2"))


def test_files_hold_them_and_those_of_even_cuts_nothing_new() -> None:
    found = plan()
    again = codec.decode(codec.encode(found), "again", engines.model)
    assert again.parts[0].grouped == found.parts[0].grouped != ()
    assert generate(again) == generate(found)
    assert "grouped" not in json.loads(codec.encode(plan("2")))["parts"][0]


def test_a_file_with_a_gather_over_no_shares_is_refused() -> None:
    part = replace(plan("2").parts[0], grouped=(GroupedGather(0, 64),))
    text = codec.encode(replace(plan("2"), parts=(part,)))
    with pytest.raises(
        AutoDDLError, match=r"parts\[0\]\.grouped: axis 0, which has no shares on mesh 2"
    ):
        codec.decode(text, "a.json", engines.model)
