"""Make and remove the network namespaces of a testbed, with iproute2; needs root.

Namespaces are called autoddl-PID-START-RANDOM-NODE after the process that made them and the time it
started (in ticks since boot, from /proc), so that those of a dead process can be told from those of
a living one. All devices, the bridge among them, lie in these namespaces: nothing is seen outside.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.testbed.spec import MTU_BYTES, TestbedError, TestbedSpec

_NAMES = Path("/run/netns")
_NAME = re.compile(r"autoddl-(\d+)-(\d+)-[0-9a-f]+-\w+")
_DEVICE = "eth0"  # in every node
# More than the windows of all connections, so that nothing is ever dropped: a loss costs a
# retransmission, which an α–β link does not know.
_QUEUE_BYTES = 64 << 20
# One algorithm, without pauses of its own (BBR stops for 200 ms every 10 s to find the least delay);
# and a connection that was idle may go on as fast as before.
_SYSCTLS = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}
_KILL_S = 5.0


@dataclass(frozen=True)
class Namespaces:
    """Name the namespaces of a cluster: one per node, and one for the switch between them."""

    nodes: tuple[str, ...]
    switch: str

    def inside(self, node: int, command: Sequence[str]) -> list[str]:
        """Give the command that runs ``command`` on a node."""
        return ["ip", "netns", "exec", self.nodes[node], *command]


def require() -> None:
    """Check that this process may make testbeds.

    Raises:
        TestbedError: it is not root or iproute2 is missing; says what to do.
    """
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise TestbedError(
            f"needs {' and '.join(missing)} of iproute2, not found on the PATH; run `make testbed`"
        )
    if os.geteuid() != 0:
        raise TestbedError(
            "needs root to make network namespaces; run it as root, such as with sudo"
        )


def create(spec: TestbedSpec) -> Namespaces:
    """Make the namespaces, links and shapers of a cluster.

    Raises:
        TestbedError: the system refuses; what had been made is removed.
    """
    prefix = f"autoddl-{os.getpid()}-{_start_time(os.getpid())}-{secrets.token_hex(4)}"
    network = Namespaces(
        tuple(f"{prefix}-n{node}" for node in range(spec.nodes)), f"{prefix}-switch"
    )
    try:
        for name in (network.switch, *network.nodes):
            _call("ip", "netns", "add", name)
        _batch(
            "ip",
            network.switch,
            ("link add name br0 type bridge", f"link set dev br0 mtu {MTU_BYTES} up"),
        )
        for node in range(spec.nodes):
            _connect(spec, network, node)
    except BaseException:
        delete(network)
        raise
    return network


def _connect(spec: TestbedSpec, network: Namespaces, node: int) -> None:
    """Join a node to the switch by a pair of devices, each of which shapes what it sends."""
    name, port = network.nodes[node], f"port{node}"
    ends = f"name {port} mtu {MTU_BYTES} type veth peer name {_DEVICE} mtu {MTU_BYTES}"
    _batch(
        "ip",
        network.switch,
        (f"link add {ends} netns {name}", f"link set dev {port} master br0 up"),
    )
    _batch(
        "ip",
        name,
        (
            "link set dev lo up",
            f"addr add {spec.address(node)}/24 dev {_DEVICE}",
            f"link set dev {_DEVICE} up",
        ),
    )
    rate, burst = spec.rates_bit_s[node], spec.bursts_bytes[node]
    shape = f"tbf rate {rate}bit burst {burst}b limit {_QUEUE_BYTES}b"
    _batch("tc", network.switch, (f"qdisc add dev {port} root {shape}",))
    _batch("tc", name, (f"qdisc add dev {_DEVICE} root {shape}",))
    settings = (f"echo {value} > /proc/sys/net/ipv4/{key}" for key, value in _SYSCTLS.items())
    _call(*network.inside(node, ["sh", "-c", " && ".join(settings)]))


def delete(network: Namespaces) -> None:
    """Kill what still runs on the nodes and remove all namespaces that are there."""
    _remove((*network.nodes, network.switch))


def clean() -> tuple[str, ...]:
    """Remove the namespaces, and kill the processes in them, whose owner is dead; return their names."""
    stale = orphans(_NAMES)
    _remove(stale)
    return stale


def orphans(folder: Path) -> tuple[str, ...]:
    """Return the names in a folder that are of testbeds whose owner is dead."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ()
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None and _start_time(int(match[1])) != int(match[2]):
            found.append(name)
    return tuple(found)


def _remove(names: Iterable[str]) -> None:
    present = [name for name in names if (_NAMES / name).exists()]
    deadline = time.monotonic() + _KILL_S
    left = present
    while left and time.monotonic() < deadline:
        left = [name for name in left if _kill(name)]
        if left:
            time.sleep(0.02)
    for name in present:
        _, problem = _try("ip", "netns", "del", name)
        if problem and (_NAMES / name).exists():
            raise TestbedError(f"cannot remove network namespace {name!r}: {problem}")


def _kill(name: str) -> bool:
    """Kill the processes of a namespace; say whether there were any."""
    text, _ = _try("ip", "netns", "pids", name)
    pids = [int(pid) for pid in text.split()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def _start_time(pid: int) -> int | None:
    """Give the time a process started, in ticks since boot, or None if there is no such process."""
    try:
        # pid (name, which may contain anything) state …; the start time is the 22nd field
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(") ")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _batch(tool: str, namespace: str, lines: Iterable[str]) -> None:
    """Run lines of ``ip`` or ``tc`` in a namespace."""
    _call(tool, "-n", namespace, "-batch", "-", stdin="".join(f"{line}\n" for line in lines))


def _call(*command: str, stdin: str = "") -> None:
    _, problem = _try(*command, stdin=stdin)
    if problem:
        raise TestbedError(
            f"`{' '.join(command)}` failed: {problem}; "
            "making network namespaces needs root with CAP_SYS_ADMIN and a kernel with veth, bridge, tbf"
        )


def _try(*command: str, stdin: str = "") -> tuple[str, str]:
    """Run a command; give its output and, in one line, what went wrong."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, start_new_session=True
    )
    if done.returncode == 0:
        return done.stdout, ""
    return done.stdout, " ".join(done.stderr.split()) or f"exit code {done.returncode}"
