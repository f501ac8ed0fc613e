"""Links of groups whose devices are of several kinds: a collective takes as long as its slowest link.

A link says which kinds of units it joins. Inside units a group takes the slowest of its kinds' links.
Between units those that join unlike kinds count, each with those of equal kinds if these are slower;
where only equal kinds meet, theirs. Of V100 nodes (10 Gbit/s) and a T4 node (50), V100 to T4 at 10:

    part(("v100",))       links of v100
    part(("t4", "v100"))  links of t4 with v100, inside a node the slower of both
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator

from msgspec import structs

from autoddl.perfmodel.profile_entries import Link


def links_of(links: Iterable[Link], kinds: Collection[str], outermost: str) -> tuple[Link, ...]:
    """Return the links that price groups with units of all these kinds; they name no kinds any more."""
    unlike = len(kinds) > 1
    same: dict[tuple[object, ...], list[Link]] = {}
    for link in links:
        if set(link.kinds) <= set(kinds):
            key = link.collective, link.level, link.group_size, link.inner, link.groups
            same.setdefault(key, []).append(link)
    return tuple(
        _slowest(group)
        for group in same.values()
        if not (unlike and group[0].level == outermost) or any(len(a.kinds) != 1 for a in group)
    )


def unjoined(
    links: Iterable[Link], kinds: Collection[str], outermost: str
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of unlike kinds between which no link is known."""
    known = {link.kinds for link in links if link.level == outermost}
    for pair in itertools.combinations(sorted(kinds), 2):
        if pair not in known and () not in known:
            yield pair


def _slowest(links: list[Link]) -> Link:
    """Return a link with the longest latency and the least rate of some, and the largest error."""
    errors = [link.mean_error for link in links if link.mean_error is not None]
    if len(links) == 1:
        return structs.replace(links[0], kinds=())
    return structs.replace(
        max(links, key=lambda link: link.beta_s_per_byte),
        alpha_s=max(link.alpha_s for link in links),
        mean_error=max(errors, default=None),
        kinds=(),
    )
