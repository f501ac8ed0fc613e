"""The example at the end of a command's `--help`."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

from autoddl.cli.app import main


def example(command: str) -> list[str]:
    """Return the words of the example in a command's help, of which there is one."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert main([command, "--help"]) == 0
    (line,) = re.findall(r"Example:\n +python -m autoddl (.*)", told.getvalue())
    words = shlex.split(line)
    assert words[0] == command
    return words
