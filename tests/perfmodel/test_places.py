"""Prices over shares: ops wait for the slowest place, gathers pad; against what each rank does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from autoddl.perfmodel.boxing_prices import BoxingPrices
from autoddl.perfmodel.places import places_of, slowest
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.boxing import boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.candidates import NdSignature, nd_signatures
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.shards import all_states, shard_shape
from autoddl.sbp.state import NdSbp
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp

PROFILE = of_two_kinds(cluster(), 2.0)
KINDS = {"2:3/1": ("fast", "slow"), "2:3/1x2": ("fast", "fast", "slow", "slow"),
         "2x2:3/1": ("fast", "slow", "fast", "slow")}  # fmt: skip


def on_rank(program: Program, op: Op, signature: NdSignature, mesh: Mesh, rank: int) -> OpWork:
    """Return the work of one rank, from the shapes of its own shards."""
    tensors = {operand: program.tensor[name] for operand, name in op.operands}
    at = mesh.coords(rank)
    shapes = [shard_shape(t.shape, signature[o], mesh.cuts, at) for o, t in tensors.items()]
    return OpWork.local(op, tensors, shapes)


@pytest.mark.parametrize("text", KINDS)
def test_an_op_takes_as_long_as_on_the_rank_that_takes_longest(text: str) -> None:
    program, mesh, kinds = mlp(512, (512, 1024, 512)), Mesh.parse(text), KINDS[text]
    places, unlike = places_of(mesh, PROFILE, kinds), 0
    assert len(places) == 2 and all(len(place.devices) == 1 for place in places)
    for op in program.ops:
        for signature in nd_signatures(OpView.of(op, program.shapes(op)), mesh.cuts)[:40]:
            each = [
                device_s(PROFILE.devices[kind], on_rank(program, op, signature, mesh, rank))
                for rank, kind in enumerate(kinds)
            ]
            seconds, *_ = slowest(
                places, lambda cuts, op=op, s=signature: OpWork.of(program, op, s, cuts)
            )
            assert seconds == pytest.approx(max(each), rel=1e-12)
            unlike += each[0] > each[-1]
    assert unlike  # the slow one is not always the last


def test_without_shares_there_is_one_place() -> None:
    (place,) = places_of(Mesh.parse("2x2"), PROFILE, ())
    assert place.cuts == (2, 2) and place.devices == tuple(PROFILE.devices.values())


def test_kinds_that_are_not_told_may_be_any() -> None:
    places = places_of(Mesh.parse("2:3/1"), PROFILE)
    assert [len(place.devices) for place in places] == [2, 2]


def sent_elements(src: NdSbp, dst: NdSbp, shape: tuple[int, ...], mesh: Mesh) -> Mapping[str, int]:
    """Return what the busiest rank of one axis sends to others, by index sets."""
    held, wanted = (
        [
            np.stack(np.meshgrid(*[np.arange(s.start, s.stop) for s in slices(state, shape, mesh, rank)],
                                 indexing="ij"), -1).reshape(-1, len(shape))
            for rank in range(mesh.size)
        ]
        for state in (src, dst)
    )  # fmt: skip

    def overlap(a: np.ndarray, b: np.ndarray) -> int:
        return len(set(map(tuple, a.tolist())) & set(map(tuple, b.tolist())))

    sends = [
        sum(overlap(held[me], wanted[other]) for other in range(mesh.size) if other != me)
        for me in range(mesh.size)
    ]
    return {"most": max(sends), "largest": max(map(len, held))}


def slices(state: NdSbp, shape: tuple[int, ...], mesh: Mesh, rank: int) -> tuple[slice, ...]:
    from autoddl.sbp.shards import shard_slices

    return shard_slices(shape, state, mesh.cuts, mesh.coords(rank))


@pytest.mark.parametrize("shares", ["2:3/1", "3:2/1/1", "2:2/1", "4:5/1/1/1"])
def test_bytes_are_those_of_the_busiest_member(shares: str) -> None:
    """A gather pads: (m - 1) times the largest shard. An all-to-all sends what others are to hold."""
    mesh, shape, item = Mesh.parse(shares), (48, 24), 4
    prices, members = BoxingPrices(mesh, PROFILE), mesh.size
    split, other, whole = (NdSbp.parse(s) for s in ("S0", "S1", "B"))
    for src, dst in itertools.permutations((split, other, whole), 2):
        step = boxing(src, dst, shape, mesh.cuts)
        assert step is not None
        told = prices.size_bytes(step, item)
        counted = sent_elements(src, dst, shape, mesh)
        if step.primitive == "all_gather":
            assert told * (members - 1) / members == pytest.approx(
                (members - 1) * counted["largest"] * item, rel=0.01
            )
        if step.primitive == "all_to_all":
            assert told * (members - 1) / members == pytest.approx(counted["most"] * item, rel=0.01)
    reduced = boxing(NdSbp.parse("P"), whole, shape, mesh.cuts)
    assert reduced is not None and prices.size_bytes(reduced, item) == 48 * 24 * item


def test_even_cuts_have_their_own_bytes() -> None:
    mesh, shape = Mesh.parse("2x2"), (8, 8)
    prices = BoxingPrices(mesh, PROFILE)
    states = list(all_states(shape, mesh.cuts))
    steps = [boxing(a, b, shape, mesh.cuts) for a, b in itertools.permutations(states, 2)]
    assert all(prices.size_bytes(s, 4) == 4 * s.elements for s in steps if s is not None)
