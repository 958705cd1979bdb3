"""The stages of `run.py`: each is a command with its inputs and outputs, which determine the order."""

from __future__ import annotations

import csv
import gzip
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Words = tuple[object, ...]  # of a command line
PYTHON = (sys.executable, "-m")
BOC = (sys.executable, "-c", "from boc.cli import main; main()")
PAINT = (sys.executable, "-m", "demo.gallery")
ALONE = 1500  # training pictures that are encoded without context, where each region is a picture of its own
CLUSTERS = 1000
PAINTED = (40, 20)  # scenes of a trial, to learn from and to search
GALLERIES = (3000, 500)  # the same of the demonstration
SCENE_EYES = "efficientnet:lite0?maps=slim&colours=1"  # its region source
EYES = "efficientnet:lite2?cells=3&crops=2"  # that of the photographs; the Makefile has both too

ON_SERVER = 30_000  # captions that a server is raced over
MILLION = (  # raced over a million drawn vectors; numpy's brute force would hold another 4 GB
    "boc dictionary:2", "boc dictionary:2 int8", "boc bits:32", "hnsw32", "usearch-f16", "scipy bits:32",
    "tantivy bits:32", "ivf-sq8", "flat", "scipy dictionary:2", "tantivy dictionary:2",
)  # fmt: skip
COUNTS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
SERVERS = {"elasticsearch": "elasticsearch-9", "opensearch": "opensearch-3-knn"}

RECIPES = {  # name: kind of encoder
    "photos": "tern",
    "photos-teran": "teran",
    "photos-align": "tern",
    "photos-vsrn": "vsrn",
    "photos-vsrnpp": "vsrnpp",
}
NAMES = {
    "photos": "TERN", "photos-teran": "TERAN", "photos-align": "TERN with alignment", "photos-vsrn": "VSRN",
    "photos-vsrnpp": "VSRN++",
}  # fmt: skip
TRIED = ("photos", "photos-teran")
SHORT = {"photos": "tern", "photos-teran": "teran", "photos-align": "align"}  # those that are searched by codes


@dataclass(frozen=True)
class Stage:
    """One command. ``makes`` is a file or the folder of a model; if it ``prints``, a file of its stdout.

    What is timed runs ``alone``. ``cost`` is the kind of its work and how much of it there is, to tell the time left.
    """

    name: str
    command: tuple[str, ...]
    reads: tuple[Path, ...]
    makes: Path
    prints: bool = False
    alone: bool = False
    follows: tuple[Path, ...] = ()  # read too, as far as they are made
    work: Path | None = None  # a folder of what it keeps for itself, out of date where what it reads is
    cost: tuple[str, float] = ("", 0.0)


@dataclass(frozen=True)
class Plan:
    """All stages over the data in ``data``, for results in ``out``; ``tiny`` draws its own data, ``big`` races over a
    million items too and grows to ten."""

    data: Path
    out: Path
    tiny: bool = False
    big: bool = False
    photos: Path = field(init=False)
    captions: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "photos", self.data / "flickr8k")
        object.__setattr__(self, "captions", self.data / "multi30k" / "captions.en.tsv.gz")

    @property
    def recipes(self) -> dict[str, str]:
        """Those to train; in a trial, two."""
        return {name: kind for name, kind in RECIPES.items() if name in TRIED or not self.tiny}

    def stages(self) -> list[Stage]:
        return [*self._encoders(), *self._scenes(), *self._codes(), *self._race()]

    def draw(self) -> None:
        """The data of a trial: painted scenes in the place of photographs, their captions in that of Multi30k."""
        if self.captions.exists():
            return
        command = (*PAINT, str(self.photos), "--count", str(sum(PAINTED)))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with (self.photos / "captions.csv").open(encoding="utf-8", newline="") as file:
            captions = [(row["image"], row["caption"]) for row in csv.DictReader(file)]
        images = list(dict.fromkeys(image for image, _ in captions))
        for name, part in (("train", images[: PAINTED[0]]), ("dev", images[PAINTED[0] :])):
            (self.photos / f"{name}.ids.txt").write_text("".join(f"{image}\n" for image in part), encoding="utf-8")
        self.captions.parent.mkdir(parents=True, exist_ok=True)
        numbers = [sum(image == other for other, _ in captions[:i]) for i, (image, _) in enumerate(captions)]
        lines = [f"{image}\t{number}\t{text}\n" for number, (image, text) in zip(numbers, captions, strict=True)]
        with gzip.open(self.captions, "wt", encoding="utf-8") as file:
            file.writelines(lines)

    def _encoders(self) -> Iterator[Stage]:
        """Every encoder trained on the training photographs, and what it makes of the others."""
        table, train, dev = (self.photos / name for name in ("captions.csv", "train.ids.txt", "dev.ids.txt"))
        source = "grid" if self.tiny else EYES
        regions = self._in("regions.h5")
        extract: Words = ("extract", table, "-o", regions, "--regions", source)
        yield self._boc("regions", extract, (table, self.photos / "images"), regions)
        few = self._in("alone.ids.txt")
        yield Stage("alone-ids", ("head", "-n", str(ALONE), str(train)), (train,), few, prints=True)
        for recipe, kind in self.recipes.items():
            model = self._in(recipe)
            learn = ("train", regions, "--ids", train, "-o", model, "--recipe", recipe, "--regions", source)
            yield self._boc(recipe, (*learn, *self._tiny_settings()), (regions, train), model)
            for name, ids, spec, more in self._extracted(recipe, kind, train, dev, few):
                file = self._in(f"{name}.h5")
                extract = ("extract", regions, "--ids", ids, "-o", file, "--encoder", spec, *more)
                yield self._boc(f"{name}-vectors", extract, (regions, ids, model), file)

    def _scenes(self) -> Iterator[Stage]:
        """How right a search is, on painted scenes: what ``make demo`` does."""
        counts, source = (PAINTED, "grid") if self.tiny else (GALLERIES, SCENE_EYES)
        drawn = {}
        for seed, (part, count) in enumerate(zip(("train", "photos"), counts, strict=True), 1):
            folder = self._in(part, "scenes")
            drawn[part] = folder / "scenes.json"
            paint = (*PAINT, str(folder), "--count", str(count), "--seed", str(seed))
            yield Stage(f"scenes-{part}", paint, (), drawn[part])
        model, file = self._in("model", "scenes"), self._in("photos.h5", "scenes")
        learn = ("train", drawn["train"].with_name("captions.csv"), "-o", model, "--recipe", "scenes")
        yield self._boc("scenes", (*learn, "--regions", source, *self._tiny_settings()), (drawn["train"],), model)
        extract = ("extract", drawn["photos"].with_name("captions.csv"), "-o", file, "--encoder", f"teran:{model}")
        yield self._boc("scenes-vectors", extract, (drawn["photos"], model), file)
        few = ("--queries", 5, "--explained", 2) if self.tiny else ()
        arguments = (drawn["photos"].parent, file, "--rerank", "mrsw", "--rerank", "dot", *few)
        kinds = ("--queries", 5, "--kinds", 1) if self.tiny else ()
        yield self._rows(
            "cutoff", "paper.cutoff", (file, "--gallery", drawn["photos"].parent, *kinds), (drawn["photos"], file)
        )
        asked = ("--queries", 5, "--code", "dictionary", "--code", "late") if self.tiny else ()
        yield self._rows("alignment-candidates", "paper.alignment_candidates", (file, *asked), (file,))
        yield self._rows("scene-truth", "paper.scene_truth", arguments, (drawn["photos"], file))

    def _extracted(
        self, recipe: str, kind: str, train: Path, dev: Path, few: Path
    ) -> Iterator[tuple[str, Path, str, tuple[str, ...]]]:
        """Name, pictures, encoder and further options of each feature file of a model."""
        spec = f"{kind}:{self._in(recipe)}"
        yield recipe, dev, spec, ()
        if recipe in SHORT:
            name = SHORT[recipe]
            yield f"train-{name}", train, spec, ("--shard", "1/6") if name != "tern" and not self.tiny else ()
        if recipe == "photos":
            yield "alone-train", few, f"{spec}?alone", ()
            yield "alone-dev", dev, f"{spec}?alone", ()

    def _tiny_settings(self) -> Iterator[str]:
        """Of networks that learn nothing, in no time."""
        sizes = {"visual_width": 16, "joint_width": 16, "feedforward": 16, "heads": 2}
        text = {"text": "small", "text_layers": 1, "text_lr": 1}
        for name, value in {**sizes, **text, "epochs": 1, "batch_size": 8, "held_out": 8}.items():
            if self.tiny:
                yield f"--set={name}={value}"

    def _codes(self) -> Iterator[Stage]:
        """Rows about the encoders, and about the codes of their vectors."""
        dev = {recipe: self._in(f"{recipe}.h5") for recipe in self.recipes}
        train = {recipe: self._in(f"train-{name}.h5") for recipe, name in SHORT.items() if recipe in dev}
        alone = {"photos": (self._in("alone-train.h5"), self._in("alone-dev.h5")), "photos-teran": ()}
        tern, learnt = dev["photos"], train["photos"]
        without, without_dev = alone["photos"]
        books = self._in("codebooks-tern")
        size: Words = ("--clusters", 9) if self.tiny else ("--clusters", CLUSTERS)

        regions, ids = self._in("regions.h5"), self.photos / "train.ids.txt"
        models = (*self._models(dev), "--floor", regions, "--train", ids)
        yield self._rows("models", "paper.models", models, (*dev.values(), regions, ids))
        trained = {NAMES[recipe]: self._in(recipe) for recipe in dev}
        named = (f"{name}={model}" for name, model in trained.items())
        yield self._rows("training-curves", "paper.training_curve", named, tuple(trained.values()))
        apart = {NAMES[recipe]: file for recipe, file in dev.items()}
        named = (f"{name}={file}" for name, file in apart.items())
        yield self._rows("concept-variance", "paper.concept_variance", named, tuple(apart.values()))
        few: Words = ("--queries", 5) if self.tiny else ()
        yield self._rows("cutoff-flickr8k", "paper.cutoff", (tern, *few), (tern,))

        arguments = (tern, "--fit", learnt, "--vectors", "--sparsity", 0.5, *(("--terms", 32) if self.tiny else ()))
        yield self._rows("flickr8k", "paper.sparsity_recall", arguments, (tern, learnt))
        options: Words = ("--alone-train", without, "--alone-dev", without_dev, "--codebooks", books, *size)
        reads: tuple[Path, ...] = (tern, learnt, without, without_dev)
        yield self._rows("table1", "paper.table1", (tern, "--fit", learnt, *options), reads, work=books)
        written: Words = (tern, "--fit", learnt, *(("--clusters", 9) if self.tiny else ()))
        yield self._rows("words", "paper.words", written, (tern, learnt))
        table = self.out / "table1.csv"  # whose codebooks are used again
        few = ("--terms", 32, "--sparsity", 0.5, "--sparsity", 0.99) if self.tiny else ()
        for recipe in ("photos", "photos-teran"):
            name, reads = SHORT[recipe], (dev[recipe], train[recipe], *alone[recipe][:1])
            options = ("--alone", reads[2], "--codebooks", books) if len(reads) > 2 else ()
            arguments = (reads[0], "--fit", reads[1], *options, *size, *few)
            after = (table,) if options else ()
            yield self._rows(f"sparsity-{name}", "paper.sparsity_recall", arguments, reads, follows=after)
        judged = tuple(self.out / f"{name}.csv" for name in ("table1", "sparsity-tern", "sparsity-teran"))
        yield self._rows("claims", "paper.claims", judged, follows=judged)

        options = ("--clusters", 4, "--clusters", 9, "--sample", 20, "--sample", 50) if self.tiny else ()
        yield self._rows("codebook-size", "paper.codebook_size", (tern, "--fit", learnt, *options), (tern, learnt))
        yield self._rows("context", "paper.concept_context", (tern, "--alone", without_dev), (tern, without_dev))
        options = ("--terms", 32) if self.tiny else ("--terms", 2048, "--terms", 4096)
        arguments = (tern, "--fit", learnt, *options, "--codebook", books / "with.npz")
        yield self._rows("recall-postings-tern", "paper.recall_postings", arguments, (tern, learnt, table))
        yield from self._side_by_side(tern, learnt, books / "with.npz", table)
        size = ("--clusters", 9, "--pictures", 3) if self.tiny else ("--clusters", 100, "--pictures", 10)
        yield self._rows("labels", "paper.labels", (learnt, tern, *size), (learnt, tern))

        aligned = "photos" if self.tiny else "photos-align"
        align = (dev[aligned], train[aligned])
        few = ("--rm", 1, "--rm", 4, "--timed", 2) if self.tiny else ("--timed", 30)
        arguments = (align[0], "--fit", align[1], *few)
        yield self._rows("alignment", "paper.alignment_rerank", arguments, align, alone=True)
        few = ("--rows", 40_000, "--dim", 64, "--code", "hard") if self.tiny else ()
        yield self._rows("encoding-speed", "speed.encoding_speed", few, alone=True)

    def _side_by_side(self, dev: Path, train: Path, plain: Path, table: Path) -> Iterator[Stage]:
        """All codes over ``dev``; the codebook ``plain`` is made with ``table``."""
        words = ("--words", "--clusters", 9) if self.tiny else ("--words",)
        arguments: list[object] = [dev, "--fit", train, "--codebook", plain]
        books: list[Path] = []
        for name, how in (
            ("centred", ("--centered", "--spherical", "--balanced", "--clusters", 9 if self.tiny else 384)),
            ("rescaled", ("--rescaled", "--spherical", "--balanced", "--clusters", 9 if self.tiny else CLUSTERS)),
            ("words", words),
            ("learned", ("--learned", "--clusters", 40 if self.tiny else 1024)),
        ):
            books.append(self._in(f"{name}.npz"))
            arguments += [f"--{name}", books[-1]]
            yield self._boc(f"codebook-{name}", ("build-codebook", train, "-o", books[-1], *how), (train,), books[-1])
        if self.tiny:
            arguments += ["--code", "dictionary:2/8", "--code", "late(terms=9)"]
        yield self._rows("all-codes", "paper.all_codes", arguments, (dev, train, table, *books))

    def _models(self, dev: Mapping[str, Path]) -> Iterator[str]:
        """What ``models.py`` compares."""
        aligned = {"photos-teran": ("mrsw", "mwsr", "symm", "mravgw"), "photos-align": ("mrsw",)}
        for recipe, file in dev.items():
            metrics = ("", *(f",{metric}" for metric in aligned.get(recipe, ())))
            yield from (f"{NAMES[recipe]}={file}{metric}" for metric in metrics)
        if "photos-vsrnpp" in dev:
            yield f"TERN + VSRN++={dev['photos']}+{dev['photos-vsrnpp']}"

    def _race(self) -> Iterator[Stage]:
        """Rows about engines, over real captions and, as they grow, over drawn vectors."""
        gallery, queries, chosen = (
            self._in(f"captions{end}.h5", "multi30k") for end in ("", "-queries", "-validation")
        )
        few: Words = ("--gallery", 200, "--queries", 20) if self.tiny else ()
        vectors = map(str, (self.captions, gallery, *few))
        command = (*PYTHON, "bench.datasets.caption_vectors", *vectors)
        yield Stage("captions", command, (self.captions,), gallery)
        asked = (gallery, "--queries", queries)
        few = ("--only", "dictionary", "--terms", 32) if self.tiny else ()
        yield self._rows("recall-postings-captions", "paper.recall_postings", (*asked, *few), (gallery,))
        held = (gallery, queries, "--validation", chosen)
        few = ("--index", "boc bits:16", "--index", "flat", "--index", "hnsw32", "--rounds", 2) if self.tiny else ()
        work = self._in("embedded", "work")
        arguments = (*held, "--work", work, *few)
        yield self._rows("race-embedded", "race.race", arguments, (gallery,), alone=True, work=work)
        few = ("--index", "boc bits:16", "--rounds", 2, "--starts", 1) if self.tiny else ()
        arguments, reads = (*held, "--work", work, *few), (gallery, self.out / "race-embedded.csv")
        yield self._rows("kernel", "speed.embedded_kernel", arguments, reads, alone=True)
        races = ["race-embedded"]
        for name, kind in SERVERS.items() if not self.tiny else ():
            work = self._in(name, "work")
            arguments = (*held, "--work", work, "--server", kind, "--limit", ON_SERVER, "--rounds", 3)
            races.append(f"race-{name}")
            yield self._rows(races[-1], "race.race", arguments, (gallery,), alone=True, work=work)
        if self.big:
            work = self._in("million", "work")
            arguments = ("--synthetic", 10**6, "--work", work, "--rounds", 2, *(f"--index={name}" for name in MILLION))
            races.append("race-million")
            yield self._rows(races[-1], "race.race", arguments, alone=True, work=work)
        files = tuple(self.out / f"{name}.csv" for name in races)
        yield self._rows("race-ratios", "race.ratios", files, files)
        counts = (300, 600) if self.tiny else COUNTS if self.big else COUNTS[:4]
        options = ("--dim", 16, "--asked", 20, "--terms", 32) if self.tiny else ()
        sizes = (part for count in counts for part in ("--n", count))
        few = ("--n", 300, "--dim", 16, "--asked", 20) if self.tiny else ()
        yield self._rows("learning", "speed.learning", ("--work", self._in("learning", "work"), *few))
        work = self._in("growth", "work")
        arguments = ("--work", work, *sizes, *options, "--rounds", 3)
        yield self._rows("growth", "speed.embedded_growth", arguments, alone=True, work=work)

    def _in(self, name: str, folder: str = "flickr8k") -> Path:
        return self.out / folder / name

    def _boc(self, name: str, arguments: Sequence[object], reads: Sequence[Path], makes: Path) -> Stage:
        return Stage(name, (*BOC, *map(str, arguments)), tuple(reads), makes)

    def _rows(
        self,
        name: str,
        module: str,
        arguments: Iterable[object] = (),
        reads: Sequence[Path] = (),
        *,
        alone: bool = False,
        follows: tuple[Path, ...] = (),
        work: Path | None = None,
    ) -> Stage:
        command = (*PYTHON, f"bench.{module}", *map(str, arguments))
        return Stage(name, command, tuple(reads), self.out / f"{name}.csv", True, alone, follows, work)
