"""Prices over shares: ops wait for the slowest place, gathers pad or not; against what each rank does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from autoddl.perfmodel.boxing_prices import BoxingPrices, Way, ways_of
from autoddl.perfmodel.places import places_of, slowest
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.boxing import ALL_TO_ALL, REDUCE_SCATTER, boxing, gathers
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
    members = mesh.size
    split, other, whole = (NdSbp.parse(s) for s in ("S0", "S1", "B"))
    for src, dst in itertools.permutations((split, other, whole), 2):
        step = boxing(src, dst, shape, mesh.cuts)
        assert step is not None
        told = 0 if step.primitive == "local" else ways_of(step, item, mesh.cuts[0])[0].size_bytes
        counted = sent_elements(src, dst, shape, mesh)
        if step.primitive == "all_gather":
            assert told * (members - 1) / members == pytest.approx(
                (members - 1) * counted["largest"] * item, rel=0.01
            )
        if step.primitive == "all_to_all":
            assert told * (members - 1) / members == pytest.approx(counted["most"] * item, rel=0.01)
    reduced = boxing(NdSbp.parse("P"), whole, shape, mesh.cuts)
    assert reduced is not None
    assert ways_of(reduced, item, mesh.cuts[0]) == (Way("all_reduce", (0,), (48 * 24 * item,)),)


def test_even_cuts_have_their_own_bytes() -> None:
    mesh, shape = Mesh.parse("2x2"), (8, 8)
    prices = BoxingPrices(mesh, PROFILE)
    states = list(all_states(shape, mesh.cuts))
    steps = [boxing(a, b, shape, mesh.cuts) for a, b in itertools.permutations(states, 2)]
    ways = [(s, prices.way(s, 4)) for s in steps if s is not None and s.primitive != "local"]
    assert ways and all(way is not None and way.sizes == (4 * s.elements,) for s, way in ways)


ALL_OTHERS = ("all_reduce", REDUCE_SCATTER, ALL_TO_ALL)
LINES = ("all_gather", "node", 2e-6, 1e-9), ("all_gather", "gpu", 1e-6, 1e-10)


def of_links(*lines: tuple[str, str, float, float]) -> Profile:
    links = tuple(Link(name, level, 4, alpha_s, beta) for name, level, alpha_s, beta in lines)
    return cluster(overhead_s=3e-6, links=links)


@pytest.mark.parametrize(
    ("shares", "rows", "grouped"),
    [
        (
            "[node 4:2/2/1/1]",
            6,
            False,
        ),  # moves 3 · ⅓ n padded, as much as grouped, in fewer messages
        ("[node 4:3/1/1/1]", 6, False),  # moves 3 · ½ n padded, which is more, though short
        ("[node 4:3/1/1/1]", 600, True),
        ("[node 4:5/1/1/1]", 800, True),
    ],
)
def test_a_gather_takes_the_cheaper_way(shares: str, rows: int, grouped: bool) -> None:
    """By hand, over nodes: α = 2 µs, β = 1 ns per byte, 3 µs to launch; broadcasts are chains."""
    mesh, shape = Mesh.parse(shares), (rows, 100)
    prices = BoxingPrices(mesh, of_links(*LINES))
    step = boxing(NdSbp.parse("S0"), NdSbp.parse("B"), shape, mesh.cuts)
    assert step is not None
    units, n = mesh.axes[0].shares, 400 * rows
    padded_s = 3e-6 + 3 * (2e-6 + max(units) / sum(units) * n * 1e-9)
    grouped_s = 4 * (3e-6 + 3 * 2e-6) + n * 1e-9
    way = prices.way(step, 4)
    assert way is not None and way.grouped == grouped == (grouped_s < padded_s)
    assert prices.step_s(step, 4) == pytest.approx(min(padded_s, grouped_s), rel=1e-6)
    if grouped:
        assert way.sizes == tuple(n * unit // sum(units) for unit in units)


def test_fitted_broadcasts_count_in_their_level() -> None:
    mesh, shape = Mesh.parse("[node 4:5/1/1/1]"), (800, 100)
    step = boxing(NdSbp.parse("S0"), NdSbp.parse("B"), shape, mesh.cuts)
    assert step is not None
    for level, grouped in (("node", False), ("gpu", True)):  # of the inner level: not of these
        found = BoxingPrices(mesh, of_links(*LINES, ("broadcast", level, 1e-3, 1e-9))).way(step, 4)
        assert found is not None and found.grouped == grouped


def test_only_gathers_are_grouped() -> None:
    mesh, shape = Mesh.parse("[node 4:5/1/1/1]"), (800, 160)
    prices = BoxingPrices(mesh, of_links(*LINES, *((c, "node", 2e-6, 1e-9) for c in ALL_OTHERS)))
    states = [NdSbp.parse(text) for text in ("S0", "S1", "B", "P")]
    for src, dst in itertools.permutations(states, 2):
        step = boxing(src, dst, shape, mesh.cuts)
        way = None if step is None else prices.way(step, 4)
        assert (way is not None and way.grouped) == (src in states[:2] and dst == states[2])


@pytest.mark.parametrize(
    ("src", "dst", "count"),
    [
        ("S0", "B", 1),
        ("B", "S1", 1),
        ("P", "S0", 1),
        ("S0", "S1", 0),
        ("P", "B", 0),
        ("S0", "P", 0),
    ],
)
def test_gradients_come_back_by_gathers_too(src: str, dst: str, count: int) -> None:
    found = gathers(*map(NdSbp.parse, (src, dst)), (800, 160), Mesh.parse("4:5/1/1/1").cuts)
    assert [step.elements for step in found] == [800 * 160] * count
