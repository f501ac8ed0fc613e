"""Plans on real ranks: what the tests here ask for runs in one launch for each number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.autoddl.engine.oneflow.run.pipeline_cases import ABSTRACT, CASES, HALVES
from tests.support.on_ranks import in_one_launch

SCRIPTS = Path(__file__).parent / "rank_scripts"
# By number of ranks the scripts, and the files or folders that they write to, each with more arguments.
RUNS: dict[int, list[tuple[str, ...]]] = {
    1: [
        ("exactness", "exactness"),
        ("pipeline_dropout", "dropout.json"),
        ("halves", "halves", json.dumps(HALVES[1])),
        ("evaluations", "evaluations"),
        ("other_shapes", "other_shapes.json"),
        ("small_models", "small_models"),
    ],
    2: [
        ("small_models", "small_models"),
        ("unknown_op", "unknown_op.json"),
        ("alone", "alone"),
        ("pipeline_dropout", "dropout.json"),
        ("halves", "halves", json.dumps(HALVES[2])),
    ],
    4: [
        *(("use_plan", setting, setting) for setting in ("2x2", "stages", "halves")),
        ("halves", "ten steps of halves", json.dumps(HALVES[4])),
        ("exactness", "exactness"),
        ("any_mesh", "any_mesh"),
        ("evaluations", "evaluations"),
        ("abstract_models", "abstract_models", json.dumps(ABSTRACT)),
        ("other_shapes", "other_shapes.json"),
    ],
    8: [],
}


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return what gives the folder that so many ranks have written to."""
    folders: dict[int, Path] = {}

    def folder_of(ranks: int) -> Path:
        if ranks not in folders:
            folder = folders[ranks] = tmp_path_factory.mktemp(f"on{ranks}")
            runs = list(RUNS.get(ranks, []))
            if ranks in CASES:
                runs.append(("pipelines", "pipelines", json.dumps(CASES[ranks])))
            for _, out, *_ in runs:
                if not out.endswith(".json"):
                    (folder / out).mkdir()
            commands = [(SCRIPTS / f"{name}.py", folder / out, *more) for name, out, *more in runs]
            in_one_launch(*commands, ranks=ranks)
        return folders[ranks]

    return folder_of
