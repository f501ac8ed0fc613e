"""Move tensors between all states over shares, forward and backward, and note what came out wrong.

Gathers are tried padded and grouped.

Arguments: a file for rank 0's findings, a mesh such as 2:3/1x2, and n: every n-th pair is tried.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import oneflow as flow

from autoddl.engine.oneflow.dialect.runtime import local_model as script
from autoddl.sbp.boxing import boxing, gathers
from autoddl.sbp.canonical import strided_states
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_tensors import shard
from autoddl.sbp.shards import all_states
from autoddl.sbp.shares import Shares
from autoddl.sbp.state import NdSbp, S

SHAPE = (8, 16)


def main(file: Path, mesh: Mesh, every: int) -> None:
    rank = flow.env.get_rank()
    script.RANKS = np.arange(mesh.size).reshape(mesh.shape).tolist()
    script.SHARES = [
        cut.units if isinstance(cut, Shares) else (1,) * n
        for cut, n in zip(mesh.cuts, mesh.shape, strict=True)
    ]
    script.PLACE = mesh.coords(rank)
    script.GROUPS = script.groups(script.RANKS)
    whole = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    states, seen, tried = list(all_states(SHAPE, mesh.cuts)), {}, 0
    if mesh.cuts == mesh.shape:
        states += strided_states(SHAPE, mesh.cuts, [(S(0, 2), S(1, 2))] * mesh.ndim)
    pairs = itertools.permutations(states, 2)
    joined = [pair for pair in pairs if boxing(*pair, SHAPE, mesh.cuts) is not None]
    for src, dst in joined[::every]:
        tried += 1
        for grouped in (False, True)[: 1 + any(gathers(src, dst, SHAPE, mesh.cuts))]:
            for name, right in check(whole, src, dst, mesh, grouped).items():
                seen[f"{name} {src} {dst}{' grouped' * grouped}"] = float(right)
    everywhere = flow.tensor([list(seen.values())]).to_global(
        placement=flow.placement("cpu", list(range(mesh.size))), sbp=flow.sbp.split(0)
    )
    right_on_all = everywhere.numpy().min(axis=0)
    wrong = [what for what, right in zip(seen, right_on_all, strict=True) if right == 0.0]
    if rank == 0:
        file.write_text(json.dumps({"tried": tried, "wrong": wrong}))


def check(whole: np.ndarray, src: NdSbp, dst: NdSbp, mesh: Mesh, grouped: bool) -> dict[str, bool]:
    """Return whether this rank has its part of the tensor, and of the gradient."""
    before, after = map(entries, (src, dst))
    script.TURN[:] = [flow.zeros(1, requires_grad=True)]
    start = script.as_local(whole, before).requires_grad_()
    made = script.boxed(start, before, after, grouped=grouped)
    factor = np.arange(whole.size, dtype=np.float32).reshape(whole.shape)
    goes_back = script.as_local(factor, script.dual(after))
    ((made * goes_back).sum() + 0 * script.TURN[0].sum()).backward()
    back = script.as_whole(start.grad, script.dual(before))
    own = made.detach().numpy()
    held = (
        shard(whole, dst, mesh.cuts, np.random.default_rng(0))[flow.env.get_rank()]
        if not any(s.is_partial for s in dst)
        else own
    )
    return {
        "forward": np.allclose(script.as_whole(made, after), whole, atol=1e-5)
        and held.shape == own.shape
        and np.allclose(held, own, atol=1e-5),
        "backward": np.allclose(back, factor, atol=1e-3),
    }


def entries(state: NdSbp) -> list[object]:
    """Return a state as scripts write it."""
    cuts = [s.dim if s.stride is None else (s.dim, s.stride) for s in state]
    return [cut if s.is_split else s.kind for s, cut in zip(state, cuts, strict=True)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Mesh.parse(sys.argv[2]), int(sys.argv[3]))
