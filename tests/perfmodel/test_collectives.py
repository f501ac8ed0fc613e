"""Table II by hand: how many messages and bytes each collective costs, and what its n is."""

from __future__ import annotations

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.sbp.boxing import COLLECTIVES, boxing
from autoddl.sbp.state import NdSbp

P = 4
TENSOR = 32 * 16 * 4  # bytes of a float32 tensor (32, 16): 2048; a quarter of it is 512

# The same logical tensor on 4 ranks through every collective: n, messages, bytes that a rank sends.
BY_HAND = {
    # Every rank holds a partial sum of all 2048 bytes; twice 3 rounds of 512 bytes.
    "all_reduce": ("P", "B", 2048, 6, 3072),
    # Every rank ends up with all 2048 bytes; 3 rounds of 512 bytes.
    "all_gather": ("S0", "B", 2048, 3, 1536),
    # Every rank starts with a partial sum of all 2048 bytes; 3 rounds of 512 bytes.
    "reduce_scatter": ("P", "S0", 2048, 3, 1536),
    # Every rank starts with its 512 bytes and keeps a quarter: 3 messages of 128 bytes.
    "all_to_all": ("S0", "S1", 512, 3, 384),
}


def test_all_collectives_are_covered() -> None:
    assert set(BY_HAND) == set(COLLECTIVES)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_messages_and_bytes(collective: str) -> None:
    _, _, n, messages, sent = BY_HAND[collective]
    assert collectives.coefficients(collective, P, n) == (messages, sent)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_boxing_counts_the_n_of_the_formula(collective: str) -> None:
    src, dst, n, _, _ = BY_HAND[collective]
    step = boxing(NdSbp.parse(src), NdSbp.parse(dst), (32, 16), (P,))
    assert step is not None
    assert (step.primitive, step.elements * 4) == (collective, n)


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


def test_unknown_collective() -> None:
    with pytest.raises(AutoDDLError, match="got 'gossip'; allowed are all_reduce"):
        collectives.coefficients("gossip", 2, 1.0)
