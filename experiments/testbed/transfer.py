"""Measure a testbed's links with plain sockets; every node runs it as one rank, stdlib only.

Every node streams to the next and receives from the one before, all at once; rank 0 prints the
slowest payload rate as `payload_bit_s NUMBER`. Arguments: seconds, then the nodes' addresses.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time

_PORT = 15_000
_CHUNK = bytes(1 << 18)
_CONNECT_S = 20.0


def main(argv: list[str]) -> None:
    """Stream for ``argv[0]`` seconds from node to node around ``argv[1:]``."""
    seconds, addresses = float(argv[0]), argv[1:]
    rank, count = int(os.environ["RANK"]), len(addresses)
    # Rank 0's launcher waits for the master port, other nodes' launchers too.
    with (
        socket.create_server(("", int(os.environ["MASTER_PORT"]) if rank == 0 else _PORT)) as door,
        socket.create_server(("", _PORT + 1)) as server,
    ):
        thread = threading.Thread(target=_send, args=(addresses[(rank + 1) % count], seconds))
        thread.start()
        rate = _receive(server.accept()[0])
        thread.join()
        if rank:
            _connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])).sendall(
                struct.pack("!d", rate)
            )
        else:
            rates = [rate]
            while len(rates) < count:
                data = door.accept()[0].recv(8, socket.MSG_WAITALL)
                if data:  # a launcher that looks whether we listen says nothing
                    rates.extend(struct.unpack("!d", data))
            print("payload_bit_s", round(min(rates)))


def _connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_S
    while True:
        try:
            return socket.create_connection((host, port), 1.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _send(host: str, seconds: float) -> None:
    with _connect(host, _PORT + 1) as link:
        link.settimeout(None)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            link.sendall(_CHUNK)


def _receive(link: socket.socket) -> float:
    """Give the payload rate in bit/s, without the first chunk, which the burst carries."""
    received, begin = 0, 0.0
    buffer = bytearray(1 << 18)
    while count := link.recv_into(buffer):
        last = time.monotonic()
        if begin:
            received += count
        elif (received := received + count) >= len(_CHUNK):
            received, begin = 0, last
    return received * 8 / (last - begin)


if __name__ == "__main__":
    main(sys.argv[1:])
