"""Scripts for ranks that need only the standard library."""

from __future__ import annotations

from collections.abc import Callable

Write = Callable[..., str]
"""Write a rank's script and return its path: the fixture `write`."""

# Rank 0 listens on the master port, as OneFlow's does, so that the others need not wait.
PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
rank = int(os.environ["RANK"])
if rank == 0:
    server = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
"""
