"""A sparse autoencoder over global vectors as terms, shared between modalities after centring.

    python -m bench.paper.sae TRAIN -o sae.npz
    python -m bench.paper.all_codes dev.h5 --fit TRAIN --autoencoder sae.npz

The top-k autoencoder of Gao et al. (Scaling and evaluating sparse autoencoders, 2024): the z largest activations of
W (x - m) + b, where m is the mean of the modality, rebuild x - m; units that were not active for a while rebuild, the
best of them, what is missing. Trained without pairs, so it needs no captions that belong to pictures. The file is a
codebook of learned terms, which ``--code "learned(codebook=sae.npz)"`` reads: directions W, thresholds W m - b.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from boc.clustering.codebook import Codebook
from boc.clustering.kmeans import Floats
from boc.clustering.learned_terms import Adam
from boc.inputs.features import FeatureFile
from boc.types import MODALITIES
from boc.vectors import unit_rows

EPOCHS = 10
BATCH = 256
RATE = 1e-3
IDLE = 50  # batches without activity after which a unit counts as dead
REVIVED = 64  # dead units that rebuild what is missing
SHARE = 1 / 32  # weight of that
NEVER = np.float32(1e9)  # threshold that no product exceeds: of concepts, which are not read


def kept(values: Floats, z: int) -> Floats:
    """The ``z`` largest positive entries of each row; 0 elsewhere."""
    z = min(z, values.shape[1])
    least = np.partition(values, values.shape[1] - z, axis=1)[:, values.shape[1] - z, None]
    found: Floats = np.where((values >= least) & (values > 0), values, 0).astype(np.float32)
    return found


class Autoencoder:
    """Encoder W (p, d) with b (p,), and decoder V (p, d), tied at first."""

    def __init__(self, units: int, rows: Floats, z: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.z = z
        self.encoder = unit_rows(rng.standard_normal((units, rows.shape[1])).astype(np.float32))
        self.bias = np.zeros(units, np.float32)
        self.decoder = self.encoder.copy()
        self.idle = np.zeros(units, np.int64)

    def gradients(self, rows: Floats) -> tuple[float, list[Floats]]:
        """The squared error of a batch, and the gradients of encoder, bias and decoder."""
        before = rows @ self.encoder.T + self.bias
        active = kept(before, self.z)
        missing = active @ self.decoder - rows
        self.idle = np.where(active.any(axis=0), 0, self.idle + 1)
        found = self._of(rows, active, missing)
        dead = self.idle > IDLE
        if dead.any():
            revived = kept(np.where(dead, before, 0).astype(np.float32), REVIVED)
            more = self._of(rows, revived, revived @ self.decoder + missing)
            found = [one + SHARE * other for one, other in zip(found, more, strict=True)]
        return float((missing**2).sum(axis=1).mean()), found

    def _of(self, rows: Floats, active: Floats, missing: Floats) -> list[Floats]:
        slope = 2 / len(rows) * missing
        back = np.where(active > 0, slope @ self.decoder.T, 0)
        return [back.T @ rows, back.sum(axis=0), active.T @ slope]


def learned(files: FeatureFile, units: int, z: int, seed: int) -> Codebook:
    """The codebook of an autoencoder trained on the vectors of both modalities."""
    means, parts = [], []
    for modality in MODALITIES:
        vectors = unit_rows(np.concatenate([batch.embeddings.vectors for batch in files.batches(modality, sets=False)]))
        means.append(vectors.mean(axis=0))
        parts.append(vectors - means[-1])
    rows: Floats = np.concatenate(parts)
    rows /= np.sqrt((rows**2).sum(axis=1).mean())
    made, rng = Autoencoder(units, rows, z, seed), np.random.default_rng(seed)
    adam = Adam([made.encoder, made.bias, made.decoder])
    for epoch in range(1, EPOCHS + 1):
        errors: list[float] = []
        order: NDArray[np.int64] = rng.permutation(len(rows))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            error, gradients = made.gradients(rows[order[start : start + BATCH]])
            adam.step(gradients, RATE)
            errors.append(error)
        click.echo(f"epoch {epoch}: error {np.mean(errors):.3f}, {(made.idle > IDLE).sum()} units dead", err=True)
    thresholds = np.full((len(MODALITIES), 2, units), NEVER)
    thresholds[:, 0] = np.stack(means) @ made.encoder.T - made.bias
    options = {"mode": "autoencoder", "clusters": units, "seed": seed, "z": z, "query_z": z}
    source = (files.header.source,)
    return Codebook(made.encoder, files.header.identity, source, options, len(rows), 1.0, thresholds=thresholds)


@click.command()
@click.argument("train", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Codebook to write.")
@click.option("--units", default=1536, show_default=True, help="Units, which are terms.")
@click.option("--z", default=32, show_default=True, help="Active units per item.")
@click.option("--seed", default=0, show_default=True)
def main(train: Path, output: Path, units: int, z: int, seed: int) -> None:
    """Train a sparse autoencoder on the vectors of TRAIN."""
    with FeatureFile(train) as file:
        learned(file, units, z, seed).save(output)


if __name__ == "__main__":
    main()
