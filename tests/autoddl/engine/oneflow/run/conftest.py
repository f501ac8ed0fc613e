"""Plans on real ranks: what a test asks for runs once, and only if a test asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.on_ranks import Launched, RankGroups

SCRIPTS = Path(__file__).parent / "rank_scripts"


@pytest.fixture(scope="session")
def launched(on_ranks: RankGroups) -> Launched:
    """Return what gives the folder that a script of that name wrote to, run with arguments on ranks."""
    return lambda name, *words, ranks: on_ranks.written(SCRIPTS / f"{name}.py", *words, ranks=ranks)
