"""`python -m autoddl`: the commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

_USAGE = """usage: python -m autoddl COMMAND …

commands:
  codegen       write a saved plan as a Python script that needs only OneFlow
  run           start the ranks of a training script on this node
  fit-network   measure the links and devices of this cluster (also python -m autoddl.fit_network)
  fit-device    time the ops of this machine's devices (also python -m autoddl.fit_device)
  trace         write the predicted timeline of a plan for Perfetto

`python -m autoddl COMMAND --help` tells the options of a command."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; 2 for bad input."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name = arguments[0].replace("_", "-")
    if name not in _COMMANDS:
        print(
            f"autoddl: got command {arguments[0]!r}; allowed are {', '.join(_COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    return _COMMANDS[name](arguments[1:])


def _run(argv: list[str]) -> int:
    from autoddl.engine import launch

    return launch.main(argv)


def _codegen(argv: list[str]) -> int:
    from autoddl.codegen import command

    return command.main(argv)


def _fit_network(argv: list[str]) -> int:
    from autoddl import fit_network

    return fit_network.main(argv)


def _fit_device(argv: list[str]) -> int:
    from autoddl import fit_device

    return fit_device.main(argv)


def _trace(argv: list[str]) -> int:
    from autoddl import trace

    return trace.main(argv)


_COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "codegen": _codegen,
    "run": _run,
    "fit-network": _fit_network,
    "fit-device": _fit_device,
    "trace": _trace,
}
