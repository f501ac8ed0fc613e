"""Say what cluster to make: nodes, ranks, and links as α–β as a token bucket can make them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoddl.errors import AutoDDLError, shown
from autoddl.units import BINARY_BYTES, BIT_RATES, quantity

MAX_NODES = 200  # the nodes share one /24 network
MTU_BYTES = 9000
_FRAME_BYTES = MTU_BYTES + 18
_RATES = (10**6, 40 * 10**9)
# A link that has been idle passes a burst at once, which an α–β link does not, so it should be small;
# but the kernel wakes a shaped queue some 50–100 µs late and makes up for it from the burst only.
# This much reaches 98 % of 200 mbit to 1 gbit, 93 % of 2 gbit; half of it loses 10 % there.
_BURST_S = 250e-6
_MIN_BURST_BYTES = 10_000
LEAST_SHARE = 0.05  # of a core: 0.5 ms in each period of 10 ms
_ROUNDING = 1e-9


class TestbedError(AutoDDLError):
    """Report a testbed that cannot be made as asked, or not on this machine."""

    __test__ = False  # not a test class, whatever pytest thinks of its name


@dataclass(frozen=True)
class TestbedSpec:
    """Describe a cluster of ``nodes`` × ``ranks``; every node has one full-duplex link to a switch.

    Raises:
        TestbedError: a count, a rate, a burst or a share is out of range.
    """

    __test__ = False

    nodes: int
    ranks: int
    """Ranks on each node."""
    rates_bit_s: tuple[int, ...]
    """Of each node's link and direction, headers of Ethernet, IP and TCP (0.9 %) included."""
    bursts_bytes: tuple[int, ...]
    """What each link passes at once after it has been idle."""
    cpu: tuple[float, ...] = ()
    """Of each node the share of a core that each of its ranks has; none: as much as there is."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise TestbedError(f"nodes: got {self.nodes}, allowed are 1 to {MAX_NODES}")
        if self.ranks < 1:
            raise TestbedError(f"ranks: got {self.ranks}, must be 1 or more on each node")
        for rate in self.rates_bit_s:
            if not _RATES[0] <= rate <= _RATES[1]:
                raise TestbedError(f"rate: got {rate:g} bit/s, allowed are 1mbit to 40gbit")
        for burst in self.bursts_bytes:
            if not _FRAME_BYTES <= burst <= 1 << 30:
                raise TestbedError(
                    f"burst: got {burst} bytes, allowed are {_FRAME_BYTES} (one frame) to 1 GiB"
                )
        for share in self.cpu:
            if not LEAST_SHARE <= share <= 1:
                raise TestbedError(
                    f"cpu: got {share:g}, allowed are shares of a core from {LEAST_SHARE:g} to 1"
                )
        if self.cpu:
            self.packed(len(os.sched_getaffinity(0)))

    @classmethod
    def parse(
        cls,
        *,
        nodes: int,
        ranks: int,
        rate: str | float,
        burst: str | int | None = None,
        cpu: str | Sequence[float] | None = None,
    ) -> TestbedSpec:
        """Make a description from ``tc``'s notation: rate "500mbit", burst "32kb" or None.

        Numbers are bit/s and bytes; `rate` is that of each link in each direction, `burst` what it passes
        at once after it has been idle, by default the least that reaches the rate; `cpu` is the share of
        a core of each rank. For each node: "200mbit,200mbit,50mbit", "0.6,0.6,0.3".
        """
        rates = [
            _parse("rate", each, BIT_RATES, "500mbit") for each in _of_nodes("rate", rate, nodes)
        ]
        if burst is None:
            bursts = [max(_MIN_BURST_BYTES, math.ceil(r / 8 * _BURST_S)) for r in rates]
        else:
            bursts = [_parse("burst", burst, BINARY_BYTES, "32kb")] * len(rates)
        shares = [] if cpu is None else [_share(each) for each in _of_nodes("cpu", cpu, nodes)]
        return cls(nodes, ranks, tuple(rates), tuple(bursts), tuple(shares))

    @property
    def world_size(self) -> int:
        """Count the ranks of all nodes."""
        return self.nodes * self.ranks

    def address(self, node: int) -> str:
        """Give a node's IP address."""
        return f"10.77.0.{node + 1}"

    def packed(self, cores: int) -> tuple[int, ...]:
        """Give the core of each rank, so that no core has shares of more than itself.

        The largest shares come first, each on the core of which most is left: 0.6, 0.6, 0.3, 0.3 on
        two cores are on 0, 1, 0, 1. So no rank runs faster while another is idle.

        Raises:
            TestbedError: they don't fit.
        """
        shares = [self.cpu[rank // self.ranks] for rank in range(self.world_size)]
        left, found = [1.0] * cores, [0] * len(shares)
        for rank in sorted(range(len(shares)), key=lambda rank: -shares[rank]):
            core = max(range(cores), key=lambda core: (left[core], -core))
            if left[core] < shares[rank] - _ROUNDING:
                raise TestbedError(
                    f"cpu: got {', '.join(f'{share:g}' for share in self.cpu)} for each of {self.ranks} "
                    f"ranks, {sum(shares):g} cores together; this machine has {cores}, and no two "
                    "ranks' shares of one may be more than 1"
                )
            left[core] -= shares[rank]
            found[rank] = core
        return tuple(found)

    def __str__(self) -> str:
        rates = ", ".join(dict.fromkeys(f"{rate / 1e6:g}" for rate in self.rates_bit_s))
        bursts = ", ".join(dict.fromkeys(map(str, self.bursts_bytes)))
        text = f"{self.nodes} nodes × {self.ranks} ranks, links of {rates} Mbit/s, burst {bursts} B"
        return text + (f", CPU shares {', '.join(map(str, self.cpu))}" if self.cpu else "")


def _of_nodes(what: str, got: str | float | Sequence[float], nodes: int) -> list[str | float]:
    """Return a value for each node, of one for all or of one for each."""
    if isinstance(got, str):
        values: list[str | float] = [word.strip() for word in got.split(",")]
    else:
        values = [got] if isinstance(got, int | float) else list(got)
    if len(values) not in (1, nodes):
        raise TestbedError(
            f"{what}: got {len(values)} for {nodes} nodes ({shown(got, 100)}); give one for all or "
            "one for each"
        )
    return values * nodes if len(values) == 1 else values


def _share(got: str | float) -> float:
    try:
        return float(got)
    except ValueError:
        raise TestbedError(f"cpu: got {shown(got)}, allowed are shares of a core as 0.5") from None


def _parse(what: str, got: str | float, units: Mapping[str, int], example: str) -> int:
    value = quantity(got, units)
    if not math.isfinite(value):
        known = ", ".join(filter(None, units))
        raise TestbedError(
            f"{what}: got {got!r}, allowed is a finite number with one of {known}; such as {example}"
        )
    return round(value)
