"""Which boxes of a tensor go from which device to which when it moves between two groups of devices.

A box is what a device has of a tensor, as (start, stop) for each dim. Equal boxes are copies; boxes that
are not equal don't overlap, and together they are the tensor. Of copies the one at the target's own
place is sent, so that groups of one shape send one to one; else the targets take turns:

    rows 0-3 and 4-7 on two devices, all rows on one: both send their half to it
    all rows on one device, rows 0-3 and 4-7 on two: it sends each its half
    all rows on two devices and on four: 0 sends to 0 and 2, 1 to 1 and 3

Generated scripts carry the source of `transfer_boxes`: it has to be plain Python.
"""

from __future__ import annotations


def transfer_boxes(
    sources: list[tuple[tuple[int, int], ...]], targets: list[tuple[tuple[int, int], ...]]
) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
    """Return (source, target, box) for all that has to be sent, by target.

    `sources` and `targets` are the boxes of all devices of each group; devices are places in these.
    """
    holders = {box: [n for n, each in enumerate(sources) if each == box] for box in sources}
    found = []
    for target, wanted in enumerate(targets):
        for box, places in holders.items():
            both = zip(box, wanted, strict=True)
            part = tuple([(max(a, c), min(b, d)) for (a, b), (c, d) in both])
            if all(start < stop for start, stop in part):
                source = target if target in places else places[target % len(places)]
                found.append((source, target, part))
    return found
