"""The campaign of fit-network: the cases of its settings, and the device of a rank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from autoddl.calibrate.campaign import Campaign
from autoddl.calibrate.network.link_cases import (
    CollectiveCase,
    LinkPart,
    LinkSettings,
    LinkTask,
    OverlapCase,
    OverlapTiming,
    RankDevice,
    Timing,
)
from autoddl.calibrate.probe_launches import one_of
from autoddl.perfmodel.calibration.measurements import device_of
from autoddl.perfmodel.profile_entries import Device

DEVICE = RankDevice()


class LinkCampaign(Campaign[LinkPart]):
    """Time every case, then the device and overlaps; the budget counts from the making of this."""

    kind = "fit_network"

    def __init__(
        self, settings: LinkSettings, partial: Path | None = None, *, fresh: bool = False
    ) -> None:
        self.settings = settings
        self._end_s = time.monotonic() + settings.seconds
        device = (DEVICE,) if settings.device else ()
        parts: tuple[LinkPart, ...] = (*settings.cases(), *device, *settings.overlap_cases())
        super().__init__(parts, settings.fingerprint(), partial, fresh=fresh)

    @property
    def timings(self) -> list[Timing]:
        return [t for c in self.parts if isinstance(t := self.found.get(c), Timing)]

    @property
    def overlaps(self) -> list[OverlapTiming]:
        """Return what ops and boxings took beside each other."""
        return [t for c in self.parts if isinstance(t := self.found.get(c), OverlapTiming)]

    @property
    def device(self) -> Device:
        """Return what one of the ranks is, as they timed it.

        Raises:
            AutoDDLError: noise hid an operation altogether.
        """
        return device_of([self.found[DEVICE]], **one_of(self.settings.nproc_per_node))

    def read(self, line: Any) -> tuple[LinkPart, Any]:
        if "device" in line:
            return DEVICE, dict(line["device"])
        timing: Timing | OverlapTiming
        if "overlap" in line:
            timing = msgspec.convert(line["overlap"], OverlapTiming)
        else:
            timing = msgspec.convert(line["row"], Timing)
        return timing.case, timing

    def task(self, batch: Sequence[LinkPart], left: Sequence[LinkPart]) -> LinkTask:
        """Give a batch its share of the time that is left."""
        here, ahead = ([p for p in of if isinstance(p, CollectiveCase)] for of in (batch, left))
        share = sum(c.weight for c in here) / (sum(c.weight for c in ahead) or 1.0)
        return LinkTask(
            self.settings,
            tuple(here),
            budget_s=max(0.0, self._end_s - time.monotonic()) * share,
            device=DEVICE in batch,
            more=len(batch) < len(left),
            overlaps=tuple(p for p in batch if isinstance(p, OverlapCase)),
        )

    def lines(self, part: LinkPart) -> int:
        """Return how often the ranks report a part: a case in every pass."""
        return self.settings.passes if isinstance(part, CollectiveCase) else 1
