"""Say what cluster to make: nodes, ranks, and links as α–β as a token bucket can make them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autoddl.errors import AutoDDLError
from autoddl.units import BINARY_BYTES, BIT_RATES, quantity

MAX_NODES = 200  # the nodes share one /24 network
MTU_BYTES = 9000
_FRAME_BYTES = MTU_BYTES + 18
_RATES = (10**6, 40 * 10**9)
# A link that has been idle passes a burst at once, which an α–β link does not, so it should be small;
# but the kernel wakes a shaped queue some 50–100 µs late and makes up for it from the burst only.
# Found with two streams in opposite directions on two cores: 250 µs' worth reaches 98 % of
# 200 mbit to 1 gbit and 93 % of 2 gbit; half of it loses 10 % at 2 gbit.
_BURST_S = 250e-6
_MIN_BURST_BYTES = 10_000


class TestbedError(AutoDDLError):
    """Report a testbed that cannot be made as asked, or not on this machine."""

    __test__ = False  # not a test class, whatever pytest thinks of its name


@dataclass(frozen=True)
class TestbedSpec:
    """Describe a cluster of ``nodes`` × ``ranks``; every node has one full-duplex link to a switch.

    Raises:
        TestbedError: a count, the rate or the burst is out of range.
    """

    __test__ = False

    nodes: int
    ranks: int
    """Ranks on each node."""
    rate_bit_s: int
    """Of each link and direction, headers of Ethernet, IP and TCP (0.9 %) included."""
    burst_bytes: int
    """What a link passes at once after it has been idle."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise TestbedError(f"nodes: got {self.nodes}, allowed are 1 to {MAX_NODES}")
        if self.ranks < 1:
            raise TestbedError(f"ranks: got {self.ranks}, must be 1 or more on each node")
        if not _RATES[0] <= self.rate_bit_s <= _RATES[1]:
            raise TestbedError(f"rate: got {self.rate_bit_s:g} bit/s, allowed are 1mbit to 40gbit")
        if not _FRAME_BYTES <= self.burst_bytes <= 1 << 30:
            raise TestbedError(
                f"burst: got {self.burst_bytes} bytes, allowed are {_FRAME_BYTES} (one frame) to 1 GiB"
            )

    @classmethod
    def parse(
        cls, *, nodes: int, ranks: int, rate: str | float, burst: str | int | None = None
    ) -> TestbedSpec:
        """Make a description from ``tc``'s notation: rate "500mbit", burst "32kb" or None.

        Numbers are bit/s and bytes. Without a burst it is the least that reaches the rate.
        """
        rate_bit_s = _parse("rate", rate, BIT_RATES, "500mbit")
        if burst is None:
            burst_bytes = max(_MIN_BURST_BYTES, math.ceil(rate_bit_s / 8 * _BURST_S))
        else:
            burst_bytes = _parse("burst", burst, BINARY_BYTES, "32kb")
        return cls(nodes, ranks, rate_bit_s, burst_bytes)

    @property
    def world_size(self) -> int:
        """Count the ranks of all nodes."""
        return self.nodes * self.ranks

    def address(self, node: int) -> str:
        """Give a node's IP address."""
        return f"10.77.0.{node + 1}"

    def __str__(self) -> str:
        rate = f"{self.rate_bit_s / 1e6:g} Mbit/s"
        return (
            f"{self.nodes} nodes × {self.ranks} ranks, links of {rate}, burst {self.burst_bytes} B"
        )


def _parse(what: str, got: str | float, units: Mapping[str, int], example: str) -> int:
    value = quantity(got, units)
    if not math.isfinite(value):
        known = ", ".join(filter(None, units))
        raise TestbedError(
            f"{what}: got {got!r}, allowed is a finite number with one of {known}; such as {example}"
        )
    return round(value)
