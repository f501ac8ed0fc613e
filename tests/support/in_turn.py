"""On ranks: run scripts one after the other, as if each had been started alone: `in_turn.py PORT`.

Through the port come commands, each a script or `-m` module and its arguments as a line of JSON; a line
goes back when it is done. The ranks end when nobody is there any more.
"""

import json
import os
import socket
import sys

import oneflow as flow

from autoddl.launch.main import run_command
from tests.support.budgets import count_cpu_seconds


def run(command: list[str]) -> None:
    """Run a command; what it sets for the whole process is as before when it is done."""
    print("running", *command, flush=True)  # the last that is seen where a rank fails
    variables = dict(os.environ)
    try:
        run_command(command)
    except SystemExit as error:
        if error.code:
            raise
    os.environ.clear()
    os.environ.update(variables)
    flow.boxing.nccl.enable_use_compute_stream(False)


count_cpu_seconds()
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
    for text in line.makefile():
        run(json.loads(text))
        line.sendall(b"done\n")
