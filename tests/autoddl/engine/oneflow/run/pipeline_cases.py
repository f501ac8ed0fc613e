"""Models with the stages that they are trained in, for the ranks of the tests here."""

from __future__ import annotations

from typing import Any


def _case(model: str, pipeline: int, mesh: str, micro_batches: int, **more: Any) -> dict[str, Any]:
    return {
        "model": model, "pipeline": pipeline, "mesh": mesh, "micro_batches": micro_batches, **more,
    }  # fmt: skip


def _parts(model: str, parts: list[str], micro_batches: int, **more: Any) -> dict[str, Any]:
    """Return a case with a stage on each of some meshes, in the states that `by` says."""
    by = {n: more.pop(n) for n in ("search", "ranks", "bounds") if n in more}
    return {"model": model, "parts": parts, "micro_batches": micro_batches, "by": by, **more}


# By number of ranks. Bounds are positions in the forward pass; weights have a normal distribution of
# the given scale, with which the loss falls in five steps. Each model, optimizer, shape of stages, way to
# cut them and baseline is there, in few combinations: each pair that the code treats in a way of its own.
CASES = {
    2: {
        "two in one stage": _case("two", 1, "2", 2, scale=0.2),
        "two": _case("two", 2, "1", 4, scale=0.2),
    },
    3: {
        "towers in free stages": _case(
            "two_towers", 3, "1", 4, scale=0.2, options={"parts": "free"}
        ),
    },
    4: {
        "unet in another order": _case("unet", 4, "1", 4, scale=0.2, order=1, sizes={"depth": 1}),
        "norm made again": _parts("norm", ["2", "1", "1"], 4, recomputed=[0], **{"global": True}),
        "norm in parts made again": _parts("norm", ["2", "2"], 2, in_parts=True, recomputed=[0]),
        "scored on 1, 2 and 1": _parts(
            "scored", ["1", "2", "1"], 4, scale=0.3, ranks=[[1], [0, 3], [2]],
            search=["data parallel", "Megatron", "data parallel"], bounds=[3, 6],
        ),
        "unet made again": _case(
            "unet", 4, "1", 4, scale=0.2, recomputed=[0, 1], bounds=[6, 10, 15], sizes={"depth": 1}
        ),
        "two on two kinds": {
            "model": "two", "cluster": "1*fastx2 + 1*slowx2", "micro_batches": 4, "scale": 0.2,
            "options": {"pipeline": 3, "micro_batches": 4},
        },
        "two, gathered": _parts("two", ["2", "2"], 2, search=["ZeRO 2", "ZeRO 2"], scale=0.2),
        "tied in random states": _case(
            "tied", 2, "2", 2, bounds=[4], scale=0.5, options={"search": "random", "seed": 1}
        ),
        "gpt cut anywhere": _case(
            "gpt", 4, "1", 8, bounds=[7, 17, 25], recomputed=[1, 2], sizes={"layers": 1}
        ),
    },
    6: {
        "tied on 2 and 2x2": _parts(
            "tied", ["2", "2x2"], 4, scale=0.5, search=["data parallel", "SUMMA"], bounds=[4]
        ),
    },
}  # fmt: skip
