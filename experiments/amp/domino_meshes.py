"""AMP's dominoes as meshes of ours.

A stage of tmp × dp devices that lie in n nodes has the mesh n × (devices of a node). Tensor-parallel
groups inside of a node are the innermost axis, those across nodes the outermost:

    tmp 2, dp 2 on ranks 0 to 3          2x2 in a node, Megatron on the inner axis
    tmp 2, dp 8 on all of 4 × 4          4 nodes x 2 x 2, Megatron on the innermost axis
    tmp 2, dp 4 on two whole nodes       2 nodes x 4, Megatron on the outer axis (a domino that lies)

Source: AMP (Li et al., NeurIPS 2022), supplement §6.3, figure 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from autoddl.planner.stages.stage_links import Ranks
from autoddl.sbp.mesh import Axis, Mesh
from autoddl.search.rivals.amp.strategies import Domino


class StageMesh(NamedTuple):
    """The mesh of a stage, its ranks in the order of that, and the axis of its tensor parallelism."""

    mesh: Mesh
    ranks: Ranks
    tensor: int | None


def stage_mesh(domino: Domino, tmp: int, per_node: int, levels: Sequence[str]) -> StageMesh:
    """Return how the devices of a domino are a mesh; those of a node all along it, node by node."""
    nodes = len({rank // per_node for rank in domino})
    inside = len(domino) // nodes
    across = len({rank // per_node for rank in domino[:tmp]}) > 1
    outer, inner = levels[0], levels[-1]
    sizes = [(outer, nodes), (inner, inside)]
    if not across:
        sizes = [(outer, nodes), (inner, inside // tmp), (inner, tmp)]
    kept = [Axis(*pair) for pair in sizes if pair[1] > 1] or [Axis(inner, 1)]
    tensor = None if tmp == 1 else 0 if across else len(kept) - 1
    return StageMesh(Mesh(tuple(kept)), tuple(sorted(domino)), tensor)


def stages_across(stages: Sequence[Domino], per_node: int) -> Counter[int]:
    """Return by node how many stages lie in it and in others."""
    touched = [{rank // per_node for rank in domino} for domino in stages]
    return Counter(node for nodes in touched if len(nodes) > 1 for node in nodes)
