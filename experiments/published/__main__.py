"""Hold predictions against what others measured on clusters of GPUs: `python -m experiments.published`.

Every row of the published tables is printed: OneFlow's and Megatron-LM's runs of BERT, GPT-2 and
ResNet-50 on V100, Wide & Deep with tables in shards, and torchtitan's runs of Llama on H100. Those that
the model expresses have the predicted step and memory under the profile that is bundled for such
devices, without any scaling; the others the reason why not. Scores are of the rows of OneFlow, whose
plans are predicted; a plan of Megatron-LM is priced as if OneFlow ran it. Programs are traced on this
machine, without a GPU, and kept in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pandas as pd

from experiments.lib import cli, figures, frames
from experiments.lib.frames import Row
from experiments.published import cluster_rows, published_scores, titan_rows, wide_rows
from experiments.published.published_rows import ONEFLOW

BAND = 0.15  # what is grey in the figure
CLUSTERS: frames.Formats = {
    "engine": "{}", "source": "{}", "model": "{}", "precision": "{}", "degrees": "{}",
    "layers": "{:.0f}", "width": "{:.0f}", "micro_batch": "{}", "micro_batches": "{}",
    "measured_ms": "{:.1f}", "predicted_ms": "{:.1f}", "ratio": "{:.2f}",
    "megatron_ratio": "{:.2f}", "memory_mib": "{:.0f}", "reason": "{}",
}  # fmt: skip
ERRORS: frames.Formats = {
    "group": "{}", "rows": "{}", "mean_error": "{:.1%}", "median_error": "{:.1%}",
    "bias": "{:+.1%}", "spearman": "{:.2f}",
}  # fmt: skip
SCALING: frames.Formats = {
    "group": "{}", "micro_batch": "{}", "alone_micro_batch": "{}", "devices": "{}",
    "measured": "{:.1%}", "predicted": "{:.1%}", "off": "{:+.1f}",
}  # fmt: skip
WIDE: frames.Formats = {
    "id": "{}", "devices": "{}", "batch_per_step": "{}", "deep_vocabulary": "{}",
    "embedding_width": "{}", "hidden_layers": "{}", "measured_ms": "{:.2f}",
    "predicted_ms": "{:.2f}", "ratio": "{:.2f}", "measured_mib": "{:.0f}", "predicted_mib": "{:.0f}",
    "memory_ratio": "{:.2f}", "reason": "{}",
}  # fmt: skip
TITAN: frames.Formats = {
    "id": "{}", "model": "{}", "gpus": "{}", "precision": "{}", "recompute": "{}",
    "tokens_per_s_per_gpu": "{}", "memory_gib": "{}", "reason": "{}",
}  # fmt: skip


@click.command(help=__doc__)
@click.option(
    "--data", type=click.Path(path_type=Path), default="../shared/published", show_default=True,
    help="folder of the published tables",
)  # fmt: skip
@cli.folder("out/published")
def command(data: Path, folder: Path) -> None:
    """Predict all rows; print the tables and scores, write and draw them."""
    programs = folder / "programs"
    clusters = clusters_of(list(cluster_rows.compared(data, programs)))
    wide = wide_of(list(wide_rows.compared(data, programs)))
    titan = pd.DataFrame(titan_rows.compared(data))
    mine = published_scores.expressed(clusters)
    errors, scaling = published_scores.errors(mine), published_scores.efficiencies(mine)
    tables: list[tuple[str, pd.DataFrame, frames.Formats]] = [
        (
            "Runs on clusters of V100; memory is that of the device that needs most.",
            clusters,
            CLUSTERS,
        ),
        ("Wide & Deep on one node of V100.", wide, WIDE),
        ("torchtitan on H100.", titan, TITAN),
        ("Steps of OneFlow's runs.", errors, ERRORS),
        (
            "Samples a second and device under data parallelism, over those of one.",
            scaling,
            SCALING,
        ),
    ]
    for caption, frame, formats in tables:
        print(f"{caption}\n\n{frames.text(frame, formats)}\n")
    print("\n".join(summary(clusters, wide, errors, scaling)))
    frames.save(clusters, folder, "published", tables)
    for name, frame in (("wide_and_deep", wide), ("torchtitan", titan)):
        frame.to_csv(folder / f"{name}.csv", index=False)
    draw(mine, wide, folder / "published")


def clusters_of(rows: list[Row]) -> pd.DataFrame:
    """Return the frame of runs on clusters, with a ratio of predicted to measured for each engine."""
    frame = pd.DataFrame(rows).astype({"predicted_s": float, "memory_mib": float})
    ours, ratio = frame.engine == ONEFLOW, frame.predicted_s / frame.measured_s
    return frame.assign(
        measured_ms=1e3 * frame.measured_s, predicted_ms=1e3 * frame.predicted_s,
        ratio=ratio.where(ours), megatron_ratio=ratio.where(~ours),
    )  # fmt: skip


def wide_of(rows: list[Row]) -> pd.DataFrame:
    """Return the frame of Wide & Deep."""
    frame = pd.DataFrame(rows).astype({"predicted_s": float, "predicted_mib": float})
    return frame.assign(
        measured_ms=1e3 * frame.measured_s, predicted_ms=1e3 * frame.predicted_s,
        ratio=frame.predicted_s / frame.measured_s,
        memory_ratio=frame.predicted_mib / frame.measured_mib,
    )  # fmt: skip


def summary(
    clusters: pd.DataFrame, wide: pd.DataFrame, errors: pd.DataFrame, scaling: pd.DataFrame
) -> Iterator[str]:
    """Yield the lines that sum up all tables."""
    ours, every = clusters[clusters.engine == ONEFLOW], errors.iloc[-1]
    yield (
        f"steps of OneFlow: {every.rows} of {len(ours)} rows predicted, mean error "
        f"{every.mean_error:.1%}, median {every.median_error:.1%}"
    )
    ranks = errors.spearman[:-1].dropna().astype(float)
    yield (
        f"rank correlation of samples a second and device: {ranks.mean():.2f} on average of "
        f"{len(ranks)} groups, {ranks.min():.2f} at worst"
    )
    for devices, group in scaling.groupby("devices"):
        yield (
            f"data parallel from 1 to {devices} devices: {group.predicted.mean():.1%} predicted, "
            f"{group.measured.mean():.1%} measured, {group.off.abs().mean():.1f} points off on average"
        )
    step, memory = ((wide[name] - 1).abs() for name in ("ratio", "memory_ratio"))
    more = (wide.measured_mib - wide.predicted_mib).median()
    yield (
        f"Wide & Deep: steps {step.mean():.1%} off on average, memory {memory.mean():.1%}; the process "
        f"has {more:.0f} MiB more in the median"
    )
    for reason, count in clusters.reason[clusters.reason != ""].value_counts().items():
        yield f"no prediction, {count} rows: {reason}"


def draw(mine: pd.DataFrame, wide: pd.DataFrame, file: Path) -> None:
    """Draw predicted against measured steps by model, and memory of Wide & Deep."""
    known = wide[wide.predicted_s.notna()].assign(model="Wide & Deep")
    figure, (row,) = figures.panels(1, 3)
    panels = (
        (mine, "s", "step (s), clusters", published_scores.GROUP[1:]),
        (known, "s", "step (s), Wide & Deep", ["devices"]),
        (known, "mib", "memory (MiB), Wide & Deep", ["devices"]),
    )
    for axis, (frame, what, title, by) in zip(row, panels, strict=True):
        figures.against(axis, frame, f"measured_{what}", f"predicted_{what}", by, BAND)
        axis.set(title=title, xlabel="measured", ylabel="predicted")
    figures.save(figure, file)


if __name__ == "__main__":
    sys.exit(cli.run(command, "published"))
