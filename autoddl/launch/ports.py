"""Find and watch the TCP port at which OneFlow's ranks meet; stdlib only."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from autoddl.errors import AutoDDLError

# Below the range from which Linux takes ports for other connections, the engine's own among them.
_PICK_FROM = range(20000, 30000)
_LISTEN = "0A"


def pick_port() -> int:
    """Give a TCP port that nobody uses on this machine.

    Raises:
        AutoDDLError: no port is free among a hundred tried.
    """
    candidates = random.SystemRandom().sample(_PICK_FROM, 100)
    for port in candidates:
        if is_free(port):
            return port
    raise AutoDDLError(
        f"no free TCP port among 100 tried in {_PICK_FROM.start}–{_PICK_FROM.stop - 1}: "
        "give one that is free as the master port"
    )


def is_free(port: int) -> bool:
    """Say whether a server can be started on ``port`` of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def listens(port: int, pid: int) -> bool:
    """Say whether something listens on ``port`` where a process runs, its network namespace; Linux only.

    Nothing connects: that could disturb who listens.
    """
    for name in ("tcp", "tcp6"):
        try:
            rows = Path("/proc", str(pid), "net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            local_address, _, state = row.split()[1:4]
            if state == _LISTEN and int(local_address.rpartition(":")[2], 16) == port:
                return True
    return False


def accepts(host: str, port: int, timeout_s: float = 0.5) -> bool:
    """Say whether ``host`` accepts a connection on ``port``; the connection is closed at once."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError:
        return False
    return True
