"""The codebooks of a benchmark by name, made when asked for and kept in a folder if one is given."""

from __future__ import annotations

from pathlib import Path

import click

from boc.clustering import make_codebook
from boc.clustering.codebook import Codebook
from boc.inputs.features import FeatureFile


class Codebooks:
    """Codebooks of ``size`` centroids, of the concepts of ``train`` ("with" context) and of ``alone`` ("no" context).

    ``self["with"]`` and ``self["no"]`` are clusters, "with-stop" and "no-stop" those without stop-words, "with-words"
    and "no-words" the dictionary. Files of the folder are of that size and these files, or to be deleted.
    """

    def __init__(self, train: FeatureFile, alone: FeatureFile | None, folder: Path | None, size: int) -> None:
        self.folder = folder
        self.size = size
        self.files = {"with": train, "no": alone}
        self._made: dict[str, Codebook] = {}

    @property
    def contexts(self) -> list[str]:
        """The names of what there are concepts of."""
        return [name for name, file in self.files.items() if file is not None]

    def __getitem__(self, name: str) -> Codebook:
        if name not in self._made:
            path = self.folder / f"{name}.npz" if self.folder else None
            if path is not None and path.exists():
                self._made[name] = self._known(path)
            else:
                click.echo(f"codebook {name}", err=True)
                self._made[name] = self._make(*name.partition("-")[::2])
                if path is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._made[name].save(path)
        return self._made[name]

    def _known(self, path: Path) -> Codebook:
        found = Codebook.load(path)
        source = self.files[path.stem.partition("-")[0]]
        if found.options["clusters"] != self.size or source is None or found.sources != (source.header.source,):
            raise click.UsageError(f"{path}: a codebook of another size or of other files; delete it")
        found.check(source.header.identity)
        return found

    def _make(self, context: str, kind: str) -> Codebook:
        file = self.files[context]
        if file is None:
            raise click.UsageError(f"no concepts {context} context; name the file that holds them")
        if kind == "words":
            return make_codebook.dictionary([file], self.size)
        return make_codebook.cluster([file], self.size, drop_stopwords=kind == "stop")
