"""What the tests of the launcher and of its command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rank_scripts import PRELUDE, Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a rank's script and return its path."""

    def write_script(body: str, name: str = "script.py", prelude: str = PRELUDE) -> str:
        path = tmp_path / name
        path.write_text(prelude + body)
        return str(path)

    return write_script
