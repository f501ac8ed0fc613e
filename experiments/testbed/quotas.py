"""Shares of the CPU: control groups whose processes get so much of a core and no more.

A group of half a core may run 5 ms of every 10 ms. Versions 1 and 2 of the kernel's interface differ in
files only:

    v1  /sys/fs/cgroup/cpu/NAME: cpu.cfs_period_us, cpu.cfs_quota_us, cgroup.procs
    v2  /sys/fs/cgroup/NAME: cpu.max ("5000 10000"), cgroup.procs

Groups have the names of the testbed's network namespaces (network.py), so that those of a dead process
are known.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.testbed import network
from experiments.testbed.spec import TestbedError

ROOT = Path("/sys/fs/cgroup")
# The kernel counts in slices of some 5 ms; in its own period of 100 ms, micro-batches would be shorter.
PERIOD_US = 10_000
_REMOVE_S = 5.0  # processes that were killed may take some time to go


def _folder(root: Path) -> tuple[Path, bool]:
    """Return where groups are made, and whether the interface is version 2."""
    if (root / "cpu" / "cpu.cfs_period_us").exists() or (root / "cpu" / "cgroup.procs").exists():
        return root / "cpu", False
    controllers = root / "cgroup.controllers"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        return root, True
    raise TestbedError(
        f"cpu: no cgroup controller for CPU shares below {root}; leave --cpu out, or mount it "
        "(v1: cpu with cpu.cfs_quota_us; v2: cpu in cgroup.controllers)"
    )


@dataclass(frozen=True)
class Quotas:
    """Control groups by name, made in `create`."""

    folder: Path
    names: tuple[str, ...]

    def entering(self, name: str, command: Sequence[str]) -> list[str]:
        """Give the command that runs ``command`` in a group."""
        file = self.folder / name / "cgroup.procs"  # not seen in a namespace: enter that afterwards
        return ["sh", "-c", f'echo $$ > {file} && exec "$@"', "sh", *command]

    def delete(self) -> None:
        """Remove the groups; their processes have ended or been killed."""
        remove(self.folder / name for name in self.names)


def create(shares: Mapping[str, float], root: Path = ROOT) -> Quotas:
    """Make a group for each name, whose processes get that share of a core together.

    Raises:
        TestbedError: there is no controller, or the system refuses.
    """
    folder, second = _folder(root)
    made = Quotas(folder, tuple(shares))
    try:
        if second:
            (folder / "cgroup.subtree_control").write_text("+cpu")
        for name, share in shares.items():
            group = folder / name
            group.mkdir()
            quota = round(share * PERIOD_US)
            if second:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
    except OSError as error:
        made.delete()
        raise TestbedError(
            f"cpu: the system refuses a control group below {folder}: {error.strerror}; that needs "
            "root, and a controller that may be written"
        ) from None
    return made


def clean(root: Path = ROOT) -> None:
    """Remove the groups of testbeds whose owner is dead, after the namespaces with what ran there."""
    try:
        folder, _ = _folder(root)
    except TestbedError:
        return
    remove(folder / name for name in network.orphans(folder))


def remove(groups: Iterable[Path]) -> None:
    """Remove groups that are there, as soon as no process is left in them."""
    deadline = time.monotonic() + _REMOVE_S
    for group in groups:
        while group.exists():
            try:
                group.rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TestbedError(f"cannot remove control group {group}: {error}") from None
                time.sleep(0.02)
