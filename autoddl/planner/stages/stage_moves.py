"""What goes between the stages of a pipeline, and which redistributions are left inside them.

Stages that follow one assignment, on meshes of one shape, cut a tensor's path of boxings in two: those
up to the state in which least has to be sent come before, the rest behind. Else a sum is made whole
first, the tensor arrives in the state from which all readers there get theirs soonest, and is boxed:

    (P) on 4 devices, read in (S1) on 2:  → (S0), sent, arrives in (S1); or (S0) and an all-to-all
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from autoddl.plan.parts import Transfer
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.layout import OUTPUT, Layout, Path, Reader, Redistribution
from autoddl.sbp.rewrites.stage_copies import in_each_stage, layout_in_each_stage
from autoddl.sbp.rewrites.tied_sums import layout_with_sums, sums_once
from autoddl.sbp.shards import local_bytes
from autoddl.sbp.state import NdSbp


class StagePart(NamedTuple):
    """The devices of a stage, and the assignment that it follows: one of their mesh, at their prices."""

    assigned: Assigned
    ranks: tuple[int, ...]


class _Way(NamedTuple):
    """How a tensor gets to another stage: boxings before, the state on arrival, boxings there."""

    before: Path
    arrival: NdSbp | None
    paths: Mapping[Reader, Path]


class StageMoves:
    """Assignments of the problem of one micro-batch, cut into stages: what goes between these.

    Each of the `parts` follows its own in its stage; parts that are alike share one. `stage_of` tells
    that of every op, variable and input.
    """

    def __init__(
        self, parts: Sequence[StagePart], stage_of: Mapping[str, int], links: Links, *,
        several: bool,
    ) -> None:  # fmt: skip
        """Cut at the stages of ops, variables and inputs, for several micro-batches or one."""
        self.parts, self.links = tuple(parts), links
        whole = parts[0].assigned.problem.program
        self.program, self._copied, self.stage_of = whole, whole, stage_of
        if len(parts) > 1:
            self._copied, self.stage_of = in_each_stage(whole, stage_of, casts=several)
            self.program = self._copied
            if several:
                self.program, self.stage_of = sums_once(self._copied, self.stage_of)

    def assigned(self, stage: int) -> Assigned:
        """Return the assignment that a stage follows."""
        return self.parts[stage].assigned

    @cached_property
    def layouts(self) -> Mapping[Assigned, Layout]:
        """Return by assignment the states of all that any stage makes."""
        found = {}
        for each in dict.fromkeys(part.assigned for part in self.parts):
            copied = layout_in_each_stage(each.layout, self._copied)
            found[each] = layout_with_sums(copied, self.program)
        return found

    def layout(self, stage: int) -> Layout:
        """Return the states of all tensors in the assignment that a stage follows."""
        return self.layouts[self.assigned(stage)]

    def maker(self, tensor: str) -> str:
        """Return the op that makes a tensor; a variable or input, which none makes, stands for itself."""
        producer = self.program.producer.get(tensor)
        return tensor if producer is None else producer.name

    def where(self, tensor: str) -> int:
        """Return the stage that makes or keeps a tensor."""
        return self.stage_of[self.maker(tensor)]

    @cached_property
    def made(self) -> Mapping[str, NdSbp]:
        """Return the state in which each tensor is made or kept, in the stage that does."""
        made = [self.layout(stage).made for stage in range(len(self.parts))]
        if all(each is made[0] for each in made):
            return made[0]
        return {tensor: made[self.where(tensor)][tensor] for tensor in made[0]}

    def local(self, tensor: str, state: NdSbp, stage: int) -> int:
        """Return the bytes of a tensor in a state on each device of a stage."""
        mesh = self.assigned(stage).problem.mesh
        return local_bytes(self.program.tensor[tensor], state, mesh.cuts)

    def arrived(self, item: Transfer) -> NdSbp:
        """Return the state in which a tensor arrives."""
        return item.arrived(self.made[item.tensor])

    def stage(self, item: Redistribution) -> int:
        """Return the stage whose ops read what a redistribution makes."""
        op = item.readers[0][0]
        return self.where(item.tensor) if op == OUTPUT else self.stage_of[op]

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Return what goes between stages."""
        return self._moves[0]

    @property
    def redistributions(self) -> tuple[Redistribution, ...]:
        """Return the redistributions inside stages."""
        return self._moves[1]

    @cached_property
    def _moves(self) -> tuple[tuple[Transfer, ...], tuple[Redistribution, ...]]:
        items = [_by_tensor(self.layout(stage)) for stage in range(len(self.parts))]
        if len(items) == 1:
            return (), tuple(chain.from_iterable(items[0].get(tensor, ()) for tensor in self.made))
        transfers: list[Transfer] = []
        redistributions: list[Redistribution] = []
        for tensor in self.made:
            source = self.where(tensor)
            mine = items[source].get(tensor, [])
            by_stage = self._readers(tensor, mine)
            if by_stage.keys() == {source}:
                redistributions += mine
                continue
            for stage, readers in by_stage.items():
                theirs = items[stage].get(tensor, [])
                wanted = {reader: item.path for item in theirs for reader in item.readers}
                paths: Mapping[Reader, Path] = {each: wanted.get(each, ()) for each in readers}
                if stage != source:
                    alike = self.assigned(stage) is self.assigned(source)
                    way = (
                        self._cut(tensor, source, paths)
                        if alike
                        else self._boxed(tensor, source, stage, readers)
                    )
                    transfers.append(self._transfer(tensor, source, stage, way))
                    paths = way.paths
                redistributions += _grouped(tensor, paths)
        return tuple(transfers), tuple(redistributions)

    def _readers(self, tensor: str, items: Sequence[Redistribution]) -> dict[int, list[Reader]]:
        """Return who reads a tensor, by stage; outputs stay in the stage that makes them."""
        found: dict[int, list[Reader]] = {}
        for op, operand in self.program.consumers.get(tensor, ()):
            found.setdefault(self.stage_of[op.name], []).append((op.name, operand))
        returned = [r for item in items for r in item.readers if r[0] == OUTPUT]
        found.setdefault(self.where(tensor), []).extend(returned)
        return found

    def _transfer(self, tensor: str, source: int, target: int, way: _Way) -> Transfer:
        sent = Transfer(tensor, source, target, way.before, None, way.arrival)
        if self.goes_once(tensor) and not self.assigned(source).problem.setting.engine.rendezvous:
            return sent
        return replace(sent, seconds=self.sent_s(sent))

    def goes_once(self, tensor: str) -> bool:
        """Tell whether a tensor goes to other stages once per step: a variable, or what updates read."""
        readers = self.program.consumers.get(tensor, ())
        held = tensor not in self.program.producer and tensor not in self.program.inputs
        return held or (bool(readers) and all(op.phase == "optimizer" for op, _ in readers))

    def sent_s(self, item: Transfer) -> float:
        """Return the seconds in which a tensor is sent."""
        size = self.local(item.tensor, self.arrived(item), item.target)
        return self.links.seconds(
            self.parts[item.source].ranks, self.parts[item.target].ranks, size
        )

    def _cut(self, tensor: str, source: int, paths: Mapping[Reader, Path]) -> _Way:
        """Cut the paths of all readers in two, where the fewest bytes have to be sent."""
        known, common = list(paths.values()), 0
        while all(len(p) > common and p[common] == known[0][common] for p in known):
            common += 1
        sizes = [
            (any(s.is_partial for s in state), self.local(tensor, state, source), length)
            for length in range(common + 1)
            for state in ((self.made[tensor], *known[0])[length],)
        ]
        length = min(sizes)[2]
        rest = {reader: path[length:] for reader, path in paths.items()}
        return _Way(known[0][:length], None, rest)

    def _boxed(self, tensor: str, source: int, target: int, readers: Sequence[Reader]) -> _Way:
        """Choose the states in which a tensor leaves one assignment's mesh and arrives on another's.

        These are states that the engine sends, or the same one on meshes of one shape.
        """
        here, there = (self.assigned(s).problem.setting.redistributor for s in (source, target))
        crosses, whole = here.engine.crosses, self.program.tensor[tensor]
        form = whole.shape, whole.item_bytes
        made, layout = self.made[tensor], self.layout(target)
        wanted = {reader: layout.signatures[reader[0]][reader[1]] for reader in readers}
        ends, goals = (self.parts[source].ranks, self.parts[target].ranks), set(wanted.values())
        leaves = {s: here.seconds(*form, made, s) for s in here.table(*form).no_sums}
        arrives = {
            s: self.links.seconds(*ends, self.local(tensor, s, target))
            + sum(there.seconds(*form, s, goal) for goal in goals)
            for s in there.table(*form).no_sums
        }
        sent = min((s for s in leaves if crosses(s, here.mesh.shape)), key=leaves.__getitem__)
        pairs = [(sent, s) for s in arrives if crosses(s, there.mesh.shape)]
        if here.mesh.cuts == there.mesh.cuts:
            pairs += [(s, s) for s in arrives if s in leaves]
        sent, arrival = min(pairs, key=lambda pair: leaves[pair[0]] + arrives[pair[1]])
        paths = {r: there.path(*form, arrival, goal) for r, goal in wanted.items()}
        return _Way(here.path(*form, made, sent), arrival, paths)


def _by_tensor(layout: Layout) -> dict[str, list[Redistribution]]:
    found: dict[str, list[Redistribution]] = {}
    for item in layout.redistributions:
        found.setdefault(item.tensor, []).append(item)
    return found


def _grouped(tensor: str, paths: Mapping[Reader, Path]) -> Iterator[Redistribution]:
    """Yield one redistribution for all readers that want the same state."""
    readers: dict[Path, list[Reader]] = {}
    for reader, path in paths.items():
        if path:
            readers.setdefault(path, []).append(reader)
    for path, group in readers.items():
        yield Redistribution(tensor, path, tuple(group))
