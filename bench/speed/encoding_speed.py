"""Vectors encoded per second and peak memory, per code, beside faiss assigning the same vectors to centroids.

    python -m bench.speed.encoding_speed

Each code runs in a separate process over ``--rows`` synthetic vectors (a mixture of directions), read from a file
16,384 at a time. Every eighth block also goes through faiss's flat index, over the code's own centroids with as many
kept, or over 16,384 centroids with one kept for codes without any; so both see the same blocks in turn. A row holds
code, rows, seconds to fit (on 100,000), vectors per second (median of blocks), the ratio to faiss (median, lowest,
highest of its blocks), and the largest resident memory of the process in MB, fitting and faiss included.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.report.rows import Writer
from boc.codecs import SurrogateCodec, global_code
from boc.codecs.bag_of_concepts import concept_steps
from boc.types import Embeddings, Ragged

BLOCK = 16_384
FIT = 100_000
EVERY = 8  # blocks to one that faiss sees too
SET = 16  # vectors of a concept set
CENTROIDS = 16_384
COLUMNS = ("code", "rows", "fit s", "rows/s", "ratio to faiss", "lowest", "highest", "peak MB")


def codec_of(code: str) -> SurrogateCodec:
    """The codec by name."""
    if code in ("hard", "soft"):
        return SurrogateCodec(concept_steps(None, code, clusters=1000, **({"z": 8} if code == "soft" else {})))
    if code == "dictionary":
        return global_code("dictionary", terms=CENTROIDS, z=2, query_z=64)
    return global_code(code, z=64, query_z=128)


CODES = ("scalar", "bits", "permutation", "hard", "soft", "dictionary")


def as_embeddings(X: NDArray[np.float32], code: str) -> Embeddings:
    """Rows as global vectors, or sixteen to a concept set."""
    if code not in ("hard", "soft"):
        return Embeddings("image", X)
    offsets = np.append(np.arange(0, len(X), SET), len(X)).astype(np.int64)
    return Embeddings("image", np.zeros((len(offsets) - 1, 1), np.float32), Ragged(X, offsets))


def measure(path: Path, rows: int, dim: int, code: str) -> list[Any]:
    """The row of one code, beginning with its name."""
    import faiss

    sample = read(path, dim, 0, FIT)
    begun = time.perf_counter()
    codec = codec_of(code).fit(as_embeddings(sample, code))
    fitted = time.perf_counter() - begun
    centroids, kept = reference(codec, sample)
    index = faiss.IndexFlatL2(dim) if code in ("hard", "soft") else faiss.IndexFlatIP(dim)
    index.add(centroids)
    del sample
    speeds, ratios = [], []
    for number, start in enumerate(range(0, rows, BLOCK)):
        block = read(path, dim, start, BLOCK)
        given = as_embeddings(block, code)
        begun = time.perf_counter()
        codec.encode_documents(given)
        spent = time.perf_counter() - begun
        if number == 0:
            continue  # warm-up
        speeds.append(len(block) / spent)
        if number % EVERY == 1:
            begun = time.perf_counter()
            index.search(block, kept)
            ratios.append((time.perf_counter() - begun) / spent)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        code, rows, round(fitted, 1), round(float(np.median(speeds))),
        *(f"{value:.2f}" for value in (np.median(ratios), min(ratios), max(ratios))), round(memory),
    ]  # fmt: skip


def read(path: Path, dim: int, start: int, count: int) -> NDArray[np.float32]:
    """Up to ``count`` rows of the file from row ``start`` on."""
    return np.fromfile(path, np.float32, count * dim, offset=4 * dim * start).reshape(-1, dim)


def reference(codec: SurrogateCodec, sample: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """The centroids that faiss assigns to, and how many it keeps of a vector."""
    step: Any
    for step in codec.steps:
        if "centroids_" in step.learned:
            found = np.ascontiguousarray(step.centroids_, dtype=np.float32)
            return found, step.get_params().get("z") or 1
    return sample[: min(CENTROIDS, len(sample))], 1


def synthetic(path: Path, rows: int, dim: int) -> None:
    """Unit vectors around 4,000 directions, written block by block."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((4000, dim), dtype=np.float32)
    with path.open("wb") as out:  # not mapped: a child's peak memory begins at what its parent has
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            X = centres[rng.integers(4000, size=count)] + rng.standard_normal((count, dim), dtype=np.float32)
            out.write((X / np.linalg.norm(X, axis=1, keepdims=True)).tobytes())


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--dim", default=1024, show_default=True)
@click.option("--code", "codes", multiple=True, type=click.Choice(CODES), default=CODES)
@click.option("--data", type=click.Path(path_type=Path), hidden=True)
def main(rows: int, dim: int, codes: tuple[str, ...], data: Path | None) -> None:
    """Encoding speed and memory of each code."""
    if data is not None:
        click.echo(json.dumps(measure(data, rows, dim, codes[0])))
        return
    settings = {"rows": rows, "dim": dim, "codes": codes}
    with tempfile.TemporaryDirectory() as folder, Writer(sys.stdout, __file__, settings, COLUMNS) as out:
        path = Path(folder) / "vectors"
        synthetic(path, rows, dim)
        for code in codes:
            options = ("--rows", rows, "--dim", dim, "--code", code, "--data", path)
            command = [sys.executable, "-m", "bench.speed.encoding_speed", *map(str, options)]
            out.write(*json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


if __name__ == "__main__":
    main()
