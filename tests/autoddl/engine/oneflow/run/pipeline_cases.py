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
        "gpt in one stage": _case("gpt", 1, "2", 2, sizes={"layers": 1}),
        "gpt made again": _case("gpt", 2, "1", 4, recomputed=[0], sizes={"layers": 1}),
        "vgg13": _case("vgg13", 2, "1", 2, optimizer="adam"),
        "two": _case("two", 2, "1", 4, scale=0.2),
    },
    3: {
        "norm made again": _parts("norm", ["2", "1"], 4, recomputed=[0], **{"global": True}),
        "transgan on 1 and 2": _parts(
            "transgan", ["1", "2"], 2, scale=0.15, search=["data parallel", "Megatron"],
            sizes={"depths": (0, 0, 1)},  # a block behind both kinds of upsampling and in windows
        ),
        "clipped on 2 and 1": _parts("clipped", ["2", "1"], 4, scale=0.3),
        "scored on 2 and 1": _parts("scored", ["2", "1"], 4, scale=0.2, ranks=[[0, 2], [1]]),
    },
    4: {
        "gpt on two kinds": {
            "model": "gpt", "cluster": "1*fastx2 + 1*slowx2", "micro_batches": 4,
            "options": {"pipeline": 3, "micro_batches": 4},
        },
        "gpt, gathered": _parts("gpt", ["2", "2"], 2, search=["ZeRO 2", "ZeRO 2"]),
        "gpt in random states": _case(
            "gpt", 2, "2", 2, bounds=[33], options={"search": "random", "seed": 1}
        ),
        "gpt cut anywhere": _case("gpt", 4, "1", 8, bounds=[7, 30, 61]),
        "unet made again": _case("unet", 4, "1", 4, scale=0.2, recomputed=[0, 1, 2]),
    },
    6: {
        "tied on 2 and 2x2": _parts(
            "tied", ["2", "2x2"], 4, scale=0.5, search=["data parallel", "SUMMA"], bounds=[4]
        ),
    },
}  # fmt: skip
