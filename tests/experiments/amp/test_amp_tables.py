"""AMP's tables: what is printed, and figures of rows by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from autoddl.search.rivals.amp.estimate import AmpEstimate
from experiments.amp import __main__ as amp
from experiments.amp import setups
from experiments.amp.amp_studies import PAPER, TABLES, AmpStudy
from experiments.amp.unit_paces import unit_begins

# What AMP's public log of its homogeneous set-up has of strategies of tables 6 and 7.
LOGGED = {
    (1, 1, (0, 30)): 1.2443,
    (1, 1, (0, 15, 30)): 1.2665,
    (1, 1, (0, 9, 15, 21, 30)): 1.2841,
    (1, 1, (0, 6, 9, 12, 15, 18, 21, 24, 30)): 1.3804,
    (2, 1, (0, 15, 30)): 1.4714,
    (1, 1, TABLES["7"][4].cut): 1.4857,
    (4, 1, (0, 14, 30)): 1.8671,
}
HERE = Path()  # nothing is kept there
ROWS = pd.DataFrame(
    {
        "set-up": ["one"] * 4 + ["two"] * 2,
        "table": ["6", "6", "7", "7", "8", "9"],
        "paper s": [1.0, 2.0, 3.0, 3.0, 8.0, 10.0],
        "price": [10.0, 30.0, 20.0, 40.0, 1.0, 1.1],
    }
)


def test_printed_rows_use_all_devices_and_units() -> None:
    counts = {table: len(rows) for table, rows in TABLES.items()}
    assert counts == {"6": 5, "7": 5, "8": 5, "9": 5, "10": 4, "11": 5}
    for name, rows in TABLES.items():
        table = int(name)
        for row in rows:
            strategy = row.strategy
            assert strategy.tmp * strategy.dp * row.stages == 16
            assert sorted(rank for stage in strategy.stages for rank in stage) == list(range(16))
            assert (row.cut[0], row.cut[-1]) == (0, 30 if table < 10 else 56)
            assert list(row.cut) == sorted(set(row.cut))
            assert row.pp == row.stages or table in (10, 11)
            assert strategy.micro_batches(32 if table < 10 else 64) >= 1
    ran = [row.seconds for rows in TABLES.values() for row in rows if row.seconds is not None]
    assert sum(ran) == pytest.approx(
        7.43 + 6.64 + 11.33 + 7.33 + 3.88 + 5.97
    )  # fmt: skip


def test_eq_10_of_measured_layers_is_that_of_the_public_log() -> None:
    """Its code averages no blocks: those of a T4 that were timed first are up to 8 % faster."""
    layers = setups.gpt_chain({"t4": np.array(setups.gpt_s("t4"))})
    cluster = AmpStudy("homogeneous", HERE).cluster
    estimate = AmpEstimate(cluster, setups.INSIDE, setups.OUTSIDE, layers, setups.BATCH)
    rows = {(row.mbs, row.tmp, row.cut): row for table in "67" for row in TABLES[table]}
    for key, logged_s in LOGGED.items():
        found_s = estimate.step_s(rows[key].strategy, rows[key].cut)
        assert found_s == pytest.approx(logged_s, rel=0.08), key


def test_chains_have_the_models_parameters() -> None:
    assert setups.gpt_chain({}).parameters.sum() == pytest.approx(355.5e6, rel=1e-3)
    assert setups.transgan_chain({}).parameters.sum() == pytest.approx(199.3e6, rel=1e-3)


def test_measured_layers_take_a_whole_model() -> None:
    for kind, whole_s in setups.WHOLE_S.items():
        assert sum(setups.gpt_s(kind)) == pytest.approx(whole_s, abs=5e-4)
    block, head, loss = (setups.gpt_s("t4")[unit] for unit in (2, 28, 29))
    assert (head + loss) / block == pytest.approx(0.83, abs=0.01)
    assert sum(setups.transgan_s()) == pytest.approx(0.226, abs=5e-4)


def test_units_have_modules() -> None:
    for study in (AmpStudy(name, HERE) for name in PAPER["set-ups"]):
        assert set(study.modules) <= set(range({32: 30, 64: 56}[study.batch]))
        assert study.cluster.size == 16


@pytest.mark.oneflow
def test_units_of_the_zoos_transgan_are_amps() -> None:
    """Blocks are units 3 to 14 and 41 to 52, all wide ones of as many ops, and all narrow ones."""
    import autoddl
    from experiments.models import build

    with autoddl.abstract_parameters():
        graph, inputs = build("transgan", "transgan", batch=1)
    begins = unit_begins(autoddl.capture(graph, *inputs), AmpStudy("uneven", HERE).modules, 56)
    ops = [after - before for before, after in pairwise(begins)]
    assert len({*ops[3:14], *ops[41:52]}) == 1
    assert ops[3] > 20
    assert all(ops[unit] > 0 for unit in (0, *setups.POSITIONS, 54, 55))


def test_pairs_in_one_order() -> None:
    """Of five pairs of unlike seconds the second and third row are the other way round."""
    assert amp.same_order(ROWS[:4], "price") == (4, 5)
    assert amp.same_order(ROWS[4:], "price") == (1, 1)


def test_rank_correlations_by_hand() -> None:
    by_hand = ROWS[:3].assign(**{"paper s": [1.0, 2.0, 3.0]})
    assert amp.correlation(by_hand, "price") == pytest.approx(0.5)  # 1 − 6 · 2 / (3 · 8)
    ratios = pd.DataFrame({"paper s": [1, 2, 3, 3, 1, 1.25], "price": [1, 3, 2, 4, 1, 1.1]})
    expected = ratios["paper s"].corr(ratios["price"], method="spearman")
    assert amp.pooled(ROWS, "price") == pytest.approx(expected)


def test_figures_of_a_set_up() -> None:
    study = AmpStudy("homogeneous", HERE)
    rows = (
        ROWS[:4]
        .assign(**{"set-up": study.name, "paper s": [1.0, 2.0, 3.0, 3.5]})
        .rename(columns={"price": "1F1B s"})
    )
    rows = rows.assign(**{name: range(4) for name in amp.PRICES[1:]})
    first = amp.figures(rows, [study])[0]
    assert first["pairs alike"] == "5 of 6"
    assert first["across"] == "3 of 4"
    assert first["speed-up"] == pytest.approx(10 / 20)


def test_cuts_in_words() -> None:
    assert amp.shortened((0, 15, 30)) == "[0,15,30]"
    assert amp.shortened(TABLES["7"][4].cut) == "[0,4,6,8,…,22,23,25,30]"
