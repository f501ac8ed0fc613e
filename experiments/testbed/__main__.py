"""Run a script on a cluster of network namespaces: `python -m experiments.testbed --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from autoddl.errors import AutoDDLError
from experiments.testbed import network
from experiments.testbed.bed import Testbed, TestbedResult
from experiments.testbed.spec import TestbedError

USAGE = (
    "python -m experiments.testbed --nodes N --ranks N --rate 500mbit [options] -- "
    "(script.py | -m module) [args ...]"
)
_CHECK_RATE = "500mbit"
_CHECK_S = 1.5


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code is 0, 2 for bad input, or what the ranks' launcher says."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except AutoDDLError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _main(argv: Sequence[str]) -> int:
    split = list(argv).index("--") if "--" in argv else len(argv)
    args = _parser().parse_args(argv[:split])
    command = _without_interpreter(argv[split + 1 :])
    if args.clean:
        network.require()
        names = network.clean()
        print(f"testbed: removed {len(names)} network namespaces of dead processes")
        return 0
    if args.check:
        return check()
    for name in ("nodes", "ranks", "rate"):
        if getattr(args, name) is None:
            raise TestbedError(f"--{name} is missing; usage: {USAGE}")
    if not command:
        raise TestbedError(f"nothing to run after `--`; usage: {USAGE}")
    bed = Testbed(nodes=args.nodes, ranks=args.ranks, rate=args.rate, burst=args.burst)
    with bed:
        result = bed.run(command, timeout_s=args.timeout, log_dir=args.log_dir)
    if not result.ok:
        _tell(result)
    return result.exit_code


def check() -> int:
    """Make two nodes, stream both ways at once and print the rate; return 1 if it is off by 15 %."""
    with Testbed(nodes=2, ranks=1, rate=_CHECK_RATE) as bed:
        rate = payload_bit_s(bed, _CHECK_S)
        wanted = bed.spec.rate_bit_s
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
        [script, str(seconds), *addresses],
        timeout_s=seconds + 30,
        stream_rank0=False,
        check=True,
    )
    return float(result.logs[0].split("payload_bit_s")[1].split()[0])


def _without_interpreter(command: Sequence[str]) -> list[str]:
    """Leave out a leading ``python``; the ranks run in this interpreter."""
    names = ("python", "python3", f"python3.{sys.version_info.minor}")
    skip = bool(command) and (command[0] in names or command[0] == sys.executable)
    return list(command[1:] if skip else command)


def _tell(result: TestbedResult) -> None:
    lines = [f"testbed: {result.message}"]
    if result.tail and result.failed_rank != 0:
        lines += ["---- its last lines ----", *result.tail, "----"]
    lines.append(f"logs of all ranks: {result.log_dir}")
    print("\n".join(lines), file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise TestbedError(f"{message}; usage: {USAGE}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="testbed", usage=USAGE, allow_abbrev=False, description="Run ranks on shaped links."
    )
    add = parser.add_argument
    add("--nodes", type=int, metavar="N", help="nodes, each a network namespace")
    add("--ranks", type=int, metavar="N", help="ranks on each node")
    add("--rate", metavar="RATE", help="of each node's link in each direction, as 500mbit or 2gbit")
    add("--burst", metavar="SIZE", help="what an idle link passes at once, as 32kb")
    add("--timeout", type=float, metavar="SECONDS", help="end all ranks after this time")
    add("--log-dir", type=Path, metavar="DIR", help="keep each rank's output here")
    add("--check", action="store_true", help="make two nodes, measure their link, print the rate")
    add("--clean", action="store_true", help="remove what killed testbeds left behind")
    return parser


if __name__ == "__main__":
    sys.exit(main())
