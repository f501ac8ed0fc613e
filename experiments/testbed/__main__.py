"""Run a script on a cluster of network namespaces: `python -m experiments.testbed --help`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from experiments.lib import cli
from experiments.testbed import network
from experiments.testbed.bed import Testbed
from experiments.testbed.spec import TestbedError

USAGE = (
    "python -m experiments.testbed --nodes N --ranks N --rate 500mbit [options] -- "
    "(script.py | -m module) [args ...]"
)
_CHECK_RATE = "500mbit"
_CHECK_S = 1.5


@click.command(context_settings={"allow_interspersed_args": False}, help=__doc__)
@click.option("--nodes", type=int, help="nodes, each a network namespace")
@click.option("--ranks", type=int, help="ranks on each node")
@click.option(
    "--rate", help="of each node's link in each direction, as 500mbit or 2gbit; or 2gbit,500mbit"
)
@click.option("--burst", help="what an idle link passes at once, as 32kb")
@click.option("--cpu", help="of each node the share of a core for each of its ranks, as 0.6,0.3")
@click.option("--timeout", type=float, help="end all ranks after so many seconds")
@click.option("--log-dir", type=click.Path(path_type=Path), help="keep each rank's output here")
@click.option(
    "--check", "only_check", is_flag=True, help="make two nodes, measure their link, print the rate"
)
@click.option("--clean", is_flag=True, help="remove what killed testbeds left behind")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(
    timeout: float | None, log_dir: Path | None, only_check: bool, clean: bool,
    words: Sequence[str], **shape: Any,
) -> int:  # fmt: skip
    """Run the ranks; the exit code is 0, or what the ranks' launcher says."""
    if clean:
        network.require()
        names = network.clean()
        print(f"testbed: removed {len(names)} network namespaces of dead processes")
        return 0
    if only_check:
        return check()
    for name in ("nodes", "ranks", "rate"):
        if shape[name] is None:
            raise TestbedError(f"--{name} is missing; usage: {USAGE}")
    if not words:
        raise TestbedError(f"nothing to run after `--`; usage: {USAGE}")
    with Testbed(**shape) as bed:
        result = bed.run(_without_interpreter(words), timeout_s=timeout, log_dir=log_dir)
    if not result.ok:
        print(f"testbed: {result.told(shown_rank=0)}", end="", file=sys.stderr)
    return result.exit_code


def check() -> int:
    """Make two nodes, stream both ways at once and print the rate; return 1 if it is off by 15 %."""
    with Testbed(nodes=2, ranks=1, rate=_CHECK_RATE) as bed:
        rate = payload_bit_s(bed, _CHECK_S)
        (wanted, _) = bed.spec.rates_bit_s
    print(
        f"testbed: 2 network namespaces, links of {_CHECK_RATE}: "
        f"measured {rate / 1e6:.0f} Mbit/s both ways at once"
    )
    return 0 if abs(rate / wanted - 1) <= 0.15 else 1


def payload_bit_s(bed: Testbed, seconds: float) -> float:
    """Measure the slowest link, in bit/s, while every node (of one rank) sends to the next."""
    addresses = [bed.spec.address(node) for node in range(bed.spec.nodes)]
    script = str(Path(__file__).with_name("transfer.py"))
    result = bed.run(
        [script, str(seconds), *addresses], timeout_s=seconds + 30, stream_rank0=False, check=True
    )
    return float(result.logs[0].split("payload_bit_s")[1].split()[0])


def _without_interpreter(command: Sequence[str]) -> list[str]:
    """Leave out a leading ``python``; the ranks run in this interpreter."""
    names = ("python", "python3", f"python3.{sys.version_info.minor}")
    skip = bool(command) and (command[0] in names or command[0] == sys.executable)
    return list(command[1:] if skip else command)


if __name__ == "__main__":
    sys.exit(cli.run(command, "testbed"))
