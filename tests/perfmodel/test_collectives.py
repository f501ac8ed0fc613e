"""Table II by hand: how many messages and bytes each collective costs, and what its n is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.perfmodel.collectives import COLLECTIVES
from autoddl.sbp import boxing as boxings
from autoddl.sbp.boxing import boxing
from autoddl.sbp.state import NdSbp

P = 4
TENSOR = 32 * 16 * 4  # bytes of a float32 tensor (32, 16): 2048; a quarter of it is 512

# The same logical tensor on 4 ranks through every collective: n, messages, bytes that a rank sends.
BY_HAND: dict[str, tuple[str, str | None, int, int, int]] = {
    # Every rank holds a partial sum of all 2048 bytes; twice 3 rounds of 512 bytes.
    "all_reduce": ("P", "B", 2048, 6, 3072),
    # Every rank ends up with all 2048 bytes; 3 rounds of 512 bytes.
    "all_gather": ("S0", "B", 2048, 3, 1536),
    # Every rank starts with a partial sum of all 2048 bytes; 3 rounds of 512 bytes.
    "reduce_scatter": ("P", "S0", 2048, 3, 1536),
    # Every rank starts with its 512 bytes and keeps a quarter: 3 messages of 128 bytes.
    "all_to_all": ("S0", "S1", 512, 3, 384),
    # One rank passes its 512 bytes on to the next.
    "send_receive": ("S0", None, 512, 1, 512),
}


def test_all_collectives_are_covered() -> None:
    assert set(BY_HAND) == set(COLLECTIVES)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_messages_and_bytes(collective: str) -> None:
    _, _, n, messages, sent = BY_HAND[collective]
    assert collectives.coefficients(collective, P, n) == (messages, sent)


@pytest.mark.parametrize("collective", boxings.COLLECTIVES)
def test_boxing_counts_the_n_of_the_formula(collective: str) -> None:
    src, dst, n, _, _ = BY_HAND[collective]
    assert dst is not None
    step = boxing(NdSbp.parse(src), NdSbp.parse(dst), (32, 16), (P,))
    assert step is not None
    assert (step.primitive, step.elements * 4) == (collective, n)


# --- message by message -----------------------------------------------------------------------


Array = npt.NDArray[np.float32]


class Wire:
    """Exchange arrays between ranks in rounds; count rounds and the bytes that each rank sends."""

    def __init__(self, ranks: int) -> None:
        self.rounds, self.sent = 0, [0] * ranks

    def exchange(self, messages: list[tuple[int, int, Array]]) -> dict[int, Array]:
        """Deliver (from, to, data), at most one from and to each rank; return data by receiver."""
        assert len({m[0] for m in messages}) == len({m[1] for m in messages}) == len(messages)
        self.rounds += 1
        for source, _, data in messages:
            self.sent[source] += data.nbytes
        return {target: data.copy() for _, target, data in messages}


def ring_reduce_scatter(wire: Wire, parts: list[Array]) -> list[Array]:
    """Add up all arrays; rank r ends up with piece r of the sum."""
    p = len(parts)
    pieces = [np.split(part.copy(), p) for part in parts]
    for step in range(p - 1):
        moving = [(r, (r + 1) % p, pieces[r][(r - step - 1) % p]) for r in range(p)]
        for target, data in wire.exchange(moving).items():
            pieces[target][(target - step - 2) % p] += data
    return [pieces[r][r] for r in range(p)]


def ring_all_gather(wire: Wire, parts: list[Array]) -> list[Array]:
    """Pass every rank's array on to all."""
    p = len(parts)
    have: list[dict[int, Array]] = [{r: part} for r, part in enumerate(parts)]
    for step in range(p - 1):
        moving = [(r, (r + 1) % p, have[r][(r - step) % p]) for r in range(p)]
        for target, data in wire.exchange(moving).items():
            have[target][(target - step - 1) % p] = data
    return [np.concatenate([h[i] for i in range(p)]) for h in have]


def pairwise_all_to_all(wire: Wire, parts: list[Array]) -> list[Array]:
    """Send piece j of every rank to rank j, one partner per round."""
    p = len(parts)
    pieces = [np.split(part, p) for part in parts]
    result = [[pieces[r][r]] * p for r in range(p)]
    for step in range(1, p):
        moving = [(r, (r + step) % p, pieces[r][(r + step) % p]) for r in range(p)]
        for target, data in wire.exchange(moving).items():
            result[target][(target - step) % p] = data
    return [np.concatenate(rows) for rows in result]


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_table_two_message_by_message(collective: str, p: int) -> None:
    """Run the algorithm on arrays: the result is right, and a and b are the rounds and bytes counted.

    n is, per collective: the array that each rank starts with and ends up with (all-reduce), ends up
    with (all-gather), starts with (reduce-scatter, all-to-all), or sends (send/receive).
    """
    wire, rng = Wire(p), np.random.default_rng(p)
    start = [rng.integers(0, 9, 24 * p).astype(np.float32) for _ in range(p)]
    total = np.sum(start, axis=0)
    n = start[0].nbytes
    if collective == "send_receive":
        np.testing.assert_array_equal(wire.exchange([(0, 1, start[0])])[1], start[0])
    elif collective == "all_gather":
        n = p * start[0].nbytes
        for got in ring_all_gather(wire, start):
            np.testing.assert_array_equal(got, np.concatenate(start))
            assert got.nbytes == n
    elif collective == "all_to_all":
        for r, got in enumerate(pairwise_all_to_all(wire, start)):
            wanted = np.concatenate([np.split(part, p)[r] for part in start])
            np.testing.assert_array_equal(got, wanted)
    else:
        pieces = ring_reduce_scatter(wire, start)
        for r, piece in enumerate(pieces):
            np.testing.assert_array_equal(piece, np.split(total, p)[r])
        if collective == "all_reduce":
            for got in ring_all_gather(wire, pieces):
                np.testing.assert_array_equal(got, total)
    assert collectives.coefficients(collective, p, n) == (wire.rounds, max(wire.sent))


def test_all_reduce_is_reduce_scatter_then_all_gather() -> None:
    parts = [collectives.coefficients(c, P, TENSOR) for c in ("reduce_scatter", "all_gather")]
    whole = collectives.coefficients("all_reduce", P, TENSOR)
    assert whole == tuple(map(sum, zip(*parts, strict=True)))


def test_one_device_sends_nothing() -> None:
    for collective in COLLECTIVES:
        assert collectives.coefficients(collective, 1, TENSOR) == (0, 0)


def test_seconds() -> None:
    taken = collectives.seconds("all_reduce", P, 2048, alpha_s=1e-3, beta_s_per_byte=1e-6)
    assert taken == pytest.approx(6e-3 + 3072e-6)


@pytest.mark.parametrize("nodes", [2, 4, 8, 1024])
@pytest.mark.parametrize("inner", [1, 8])
def test_a_tree_grows_with_the_logarithm_of_its_units(nodes: int, inner: int) -> None:
    p = nodes * inner
    messages, sent = collectives.coefficients(
        "all_reduce", p, TENSOR, algorithm="tree", inner=inner
    )
    assert messages == 2 * (nodes.bit_length() - 1)
    assert sent == collectives.coefficients("all_reduce", p, TENSOR)[1]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_switch_takes_one_message(collective: str) -> None:
    for p in (2, 8):
        messages, sent = collectives.coefficients(collective, p, TENSOR, algorithm="nvls")
        assert (messages, sent) == (1, collectives.coefficients(collective, p, TENSOR)[1])
    assert collectives.coefficients(collective, 1, TENSOR, algorithm="nvls") == (0, 0)


def test_unknown_collective() -> None:
    with pytest.raises(AutoDDLError, match="got 'gossip'; allowed are all_reduce"):
        collectives.coefficients("gossip", 2, 1.0)
