"""What a lower bound suggests: as far as the bound rises, and what its gap means."""

from __future__ import annotations

import math

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search import builder, ilp, suggest
from autoddl.search.descent import cheapest
from autoddl.search.shorten import shorten
from autoddl.search.suggest import suggested
from tests.clusters import cluster
from tests.programs import transformer
from tests.search import random_problems


def never() -> bool:
    return False


def test_an_ascent_goes_on_while_its_bound_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """This bound needs some more turns than the first two, and then is the cost."""
    monkeypatch.setattr(suggest, "FIRST", 2)
    p = builder.build(transformer(2, 16, 256, 512, 4, 8192), Mesh.parse("4x4"), cluster())
    assert shorten(p).problem is p
    known_s = p.cost_s(cheapest(p))
    whole = suggested(p, known_s, never)
    assert whole.gap == pytest.approx(0.0, abs=1e-8)  # so the first start is an optimum
    monkeypatch.setattr(suggest, "MOST", suggest.FIRST)
    early = suggested(p, known_s, never)
    assert early.gap > 0.1
    assert p.cost_s(early.starts[0]) > 1.1 * p.cost_s(whole.starts[0])
    assert early.starts == whole.starts[1:]


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_is_that_of_a_lower_bound_where_no_layer_is_left_out(seed: int) -> None:
    p = random_problems.hub(seed, size=12)
    assert shorten(p).problem is p
    found = suggested(p, math.inf, never)
    least_s = p.cost_s(found.starts[0]) * (1 - found.gap)
    assert 0.8 * ilp.search(p).cost_s <= least_s <= ilp.search(p).cost_s * (1 + 1e-9)


def test_nothing_is_suggested_when_the_time_is_up() -> None:
    p = random_problems.hub(0, size=12)
    assert suggested(p, math.inf, lambda: True) == suggest.Suggested((), 1.0)
