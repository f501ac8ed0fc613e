"""Links of groups whose devices are of several kinds: a collective takes as long as its slowest link.

A link says which kinds of units it joins. Inside units a group takes the slowest of its kinds' links.
Between units those that join unlike kinds count, each with those of equal kinds if these are slower;
where only equal kinds meet, theirs. An algorithm counts where all of them have it. Of V100 nodes
(10 Gbit/s) and a T4 node (50), V100 to T4 at 10:

    part(("v100",))       links of v100
    part(("t4", "v100"))  links of t4 with v100, inside a node the slower of both
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from functools import reduce

from msgspec import structs

from autoddl.perfmodel.collectives import ALGORITHMS
from autoddl.perfmodel.profile_entries import Link, envelope


def links_of(links: Iterable[Link], kinds: Collection[str], outermost: str) -> tuple[Link, ...]:
    """Return the links that price groups with units of all these kinds; they name no kinds any more."""
    unlike = len(kinds) > 1
    groups: dict[tuple[object, ...], dict[tuple[str, ...], list[Link]]] = {}
    for link in links:
        if set(link.kinds) <= set(kinds):
            alike = structs.replace(link, kinds=())
            groups.setdefault(alike.key, {}).setdefault(link.kinds, []).append(alike)
    found: list[Link] = []
    for joined in groups.values():
        lines = list(joined.values())
        if unlike and lines[0][0].level == outermost and all(len(kinds) == 1 for kinds in joined):
            continue
        for name in ALGORITHMS:
            mine = [[link for link in each if link.algorithm == name] for each in lines]
            slowest: list[Link] = reduce(_slowest, mine)
            found += slowest
    return tuple(found)


def unjoined(
    links: Iterable[Link], kinds: Collection[str], outermost: str
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of unlike kinds between which no link is known."""
    known = {link.kinds for link in links if link.level == outermost}
    for pair in itertools.combinations(sorted(kinds), 2):
        if pair not in known and () not in known:
            yield pair


def _slowest(lines: list[Link], others: list[Link]) -> list[Link]:
    """Return lines with the longer latency and the lower rate of two, and the larger error."""
    return envelope(
        structs.replace(
            max(pair, key=lambda link: link.beta_s_per_byte),
            alpha_s=max(link.alpha_s for link in pair),
            mean_error=max((x.mean_error for x in pair if x.mean_error is not None), default=None),
        )
        for pair in itertools.product(lines, others)
    )
