"""What works run on: the device, which runs ops, and the levels of the cluster, by name."""

from __future__ import annotations

from autoddl.json_files import Seconds

DEVICE = "device"  # the others are levels of the cluster
QUEUE = "queue"  # all levels together, where collectives go one after the other
SHARED = "shared"  # seconds of a collective that are saved where it shares a launch
SERIAL = "serial"  # in place of a resource: seconds wherever they are spent

ResourceParts = tuple[tuple[str, Seconds], ...]
"""What a work consists of, in turn: a resource, and the seconds on it."""
