"""Run the launcher on one node of a testbed and leave its result in a file."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.launch.launcher import LaunchResult, launch

_ROOT = Path(__file__).parent.parent.parent
# The user's folder, not ours, is where the ranks look for modules; so no `-m` and no PYTHONPATH.
_CODE = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r}); "
    "from experiments.testbed.node import main; sys.exit(main(sys.argv[1:]))"
)


def command_line(options: dict[str, Any], result_file: Path, command: Sequence[str]) -> list[str]:
    """Give the command that runs ``launch(command, **options)`` on a node; options are JSON values."""
    return [sys.executable, "-c", _CODE, json.dumps(options), str(result_file), *command]


def main(argv: list[str]) -> int:
    """Launch as told by ``command_line``; return the launcher's exit code."""
    options, file = json.loads(argv[0]), Path(argv[1])
    try:
        result = launch(argv[2:], **{**options, "log_dir": Path(options["log_dir"])})
    except AutoDDLError as error:
        print(error, file=sys.stderr)
        return 2
    fields = dataclasses.asdict(result) | {"logs": [], "log_dir": None}
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(fields))
    os.replace(unfinished, file)
    return result.exit_code


def read(result_file: Path) -> LaunchResult | None:
    """Read a node's result, without its logs, and remove the file; None if the launcher left none."""
    try:
        fields = json.loads(result_file.read_text())
    except FileNotFoundError:
        return None
    result_file.unlink()
    tuples = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return LaunchResult(**{**fields, **tuples})
