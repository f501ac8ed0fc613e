"""AMP's strategies: micro-batches, and Megatron's placement."""

from __future__ import annotations

from autoddl.search.rivals.amp.strategies import Strategy, megatron_stages


def test_megatron_places_ranks_in_their_order() -> None:
    stages = megatron_stages(2, 4, 2, 2)
    assert stages == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert Strategy(2, 2, 1, stages).micro_batches(32) == 16
