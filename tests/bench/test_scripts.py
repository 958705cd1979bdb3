"""Benchmarks that need more than random data run on the tiny library, and print what they promise."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bench.datasets.wordnet import PARTS
from bench.paper.training_cost import extended, network_of, step
from boc.indexes.build import build_index
from boc.inputs.features import FeatureFile
from boc.search.searcher import Searcher
from encoders.training.train import Recipe
from tests.bench.scripts import run_script
from tests.helpers import boc


def run(script: str, *arguments: object) -> list[dict[str, str]]:
    done = run_script(script, *arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("# done: ")
    return list(csv.DictReader(line for line in lines if not line.startswith("# ")))


@pytest.mark.slow
def test_table_one_has_the_rows_of_the_paper_and_their_differences_which_decide_its_claims(
    library: Path, tmp_path: Path
) -> None:
    pytest.importorskip("spellchecker")
    alone, plain = tmp_path / "alone.h5", library / "photos.h5"
    encoder = f"tern:{library / 'model'}?alone"
    assert boc("extract", library / "captions.csv", "-o", alone, "--encoder", encoder).exit_code == 0
    options = ("--fit", plain, "--clusters", 9, "--codebooks", tmp_path / "books")
    rows = run("table1.py", plain, *options, "--alone-train", alone, "--alone-dev", alone)
    assert [row["model"] for row in rows][:18] == [
        "TERN", "Deep Permutation", "Scalar Quantization",
        "Deep Permutation, printed order", "Deep Permutation, offset", "Deep Permutation, without c-ReLU",
        "Scalar Quantization, printed order", "Scalar Quantization, without c-ReLU",
        "No context", "With context", "No cont., no stop-words", "With cont., no stop-words",
        "No cont., no stop-words (inference)", "English dict.",
        "MAX-aggr No-cont.", "SUM-aggr No-cont.", "MAX-aggr W-cont.", "SUM-aggr W-cont.",
    ]  # fmt: skip
    dense = boc("evaluate", plain).stdout
    assert f"R@10 {float(rows[0]['image R@10']):5.1f}" in dense.splitlines()[1]
    total = {row["model"]: float(row["sum"]) for row in rows if not row["minus"]}
    differences = [row for row in rows if row["minus"]]
    assert len(differences) == 26
    for row in differences:
        assert float(row["sum"]) == pytest.approx(total[row["model"]] - total[row["minus"]], abs=0.02)

    sparsity = run("sparsity_recall.py", plain, *options, "--alone", alone, "--terms", 9, "--sparsity", 0.99)
    kinds = {"scalar", "permutation", "bits", "dictionary", "soft sum", "soft max", "hard", "mixed"}
    assert kinds == {row["code"] for row in sparsity if " minus " not in row["code"]}
    judged = claims(tmp_path, library / "photos.h5", options, alone)
    assert {row["verdict"] for row in judged} <= {"held", "not held", "tie", "cannot be checked here"}
    known = [row for row in judged if row["verdict"] != "cannot be checked here"]
    assert len(known) == 22 + 2 * 7  # a code that keeps half of the components was not measured
    assert len(judged) == len(known) + 1


@pytest.mark.slow
def test_pictures_written_in_words(library: Path, tmp_path: Path) -> None:
    plain = library / "photos.h5"
    for part in PARTS:
        (tmp_path / f"data.{part}").write_text("00000100 05 n 02 red 0 blue 0 000 | colours\n" * (part == "noun"))
    rows = run("words.py", plain, "--fit", plain, "--clusters", 7, "--code", "z=3", "--synonyms", tmp_path)
    found = {row["measure"]: row for row in rows}
    assert {row["code"] for row in rows} == {"captions", "z=3"}
    made = boc("build-codebook", plain, "-o", tmp_path / "words.npz", "--words", "--clusters", 7)
    assert made.exit_code == 0
    build_index("words", plain, code=f"words(z=3, codebook='{tmp_path / 'words.npz'}')", at=f"file:{tmp_path}")
    searcher = Searcher.open("words", f"file:{tmp_path}")
    with FeatureFile(plain) as file:
        items = file.items("text")
    hits = [
        any(hit.item.id == item.group for hit in searcher.search_words([item.content], find="image")[0])
        for item in items
    ]
    assert float(found["R@10 by keywords"]["value"]) == pytest.approx(sum(hits) / len(hits), abs=1e-4)
    assert 0 < float(found["words counted per picture"]["value"]) <= 3
    for measure in ("R@10 by keywords", "R@10 by code", "words in own captions", "words of a caption in the others"):
        assert 0 <= float(found[measure]["value"]) <= 1
    for measure in ("words in own captions", "pictures with .8 of them", "words of a caption in the others"):
        assert float(found[f"{measure} or synonyms"]["value"]) >= float(found[measure]["value"])


def claims(folder: Path, plain: Path, options: tuple[object, ...], alone: Path) -> list[dict[str, str]]:
    """What ``claims.py`` makes of the rows of both scripts."""
    files = []
    for script, more in (
        ("table1.py", ("--alone-train", alone)),
        ("sparsity_recall.py", ("--alone", alone, "--terms", 9, "--sparsity", 0.99)),
    ):
        files.append(folder / f"{script}.csv")
        files[-1].write_text(run_script(script, plain, *options, *more).stdout, encoding="utf-8")
    return run("claims.py", *files)


@pytest.mark.slow
def test_a_training_curve_is_the_history_of_the_model(library: Path, tmp_path: Path) -> None:
    history = json.loads((library / "model" / "history.json").read_text())
    rows = run("training_curve.py", f"TERN={library / 'model'}")
    assert [int(row["step"]) for row in rows] == [entry["step"] for entry in history["history"]]
    assert [row["step"] for row in rows if row["kept"]] == [str(history["best_step"])]
    best = history["best"]
    assert float(next(row["sum"] for row in rows if row["kept"])) == pytest.approx(best, abs=0.005)
    done = run_script("training_curve.py", f"x={tmp_path}")
    assert f"x={tmp_path}: no finished training; write NAME=FOLDER" in done.stderr


@pytest.mark.slow
def test_labels_are_judged_for_every_kind(library: Path) -> None:
    plain = library / "photos.h5"
    rows = run("labels.py", plain, plain, "--clusters", 4, "--pictures", 3)
    assert [row["labels"] for row in rows] == ["scalar", "dictionary", "concepts", "codebook"]
    assert all(0 <= float(row["hits"]) <= 1 for row in rows if int(row["with words"]))


@pytest.mark.slow
def test_recall_and_postings_of_the_codes_over_concepts(library: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.npz"
    assert boc("build-codebook", library / "photos.h5", "-o", book, "--clusters", 9).exit_code == 0
    rows = run("recall_postings.py", library / "photos.h5", "--only", "none", "--codebook", book)
    assert {row["code"] for row in rows} == {"hard", "soft", "mixed"}
    everything = [row for row in rows if row["setting"] == "all of 9"]
    assert everything
    assert all(float(row["recall"]) == 1 for row in everything)  # 40 pictures, all of them re-ranked


@pytest.mark.slow
def test_alignment_over_an_index_has_a_row_for_each_metric(library: Path) -> None:
    plain = library / "photos.h5"
    rows = run("alignment_rerank.py", plain, "--fit", plain, "--rm", 1, "--rm", 4, "--timed", 2)
    assert len(rows) == 2 * 2 * (6 + 5)
    everything = next(r for r in rows if (r["metric"], r["Rm"], r["direction"]) == ("dot", "4", "text to image"))
    assert f"R@10 {float(everything['R@10']):5.1f}" in boc("evaluate", plain).stdout.splitlines()[1]


@pytest.mark.slow
def test_models_agree_with_the_command(library: Path, tmp_path: Path) -> None:
    plain, ids = library / "photos.h5", tmp_path / "ids.txt"
    ids.write_text("".join(f"{i:03d}.png\n" for i in range(30)), encoding="utf-8")
    floor = ("--floor", library / "regions.h5", "--train", ids)
    rows = run("models.py", f"one={plain}", f"two={plain}+{plain}", f"words={plain},mrsw", *floor)
    assert [row["model"] for row in rows[::2]] == ["closed form", "one", "two", "words"]
    assert [row["direction"] for row in rows] == ["text to image", "image to text"] * 4
    one, two = ([list(row.values())[1:] for row in rows if row["model"] == name] for name in ("one", "two"))
    assert one == two
    told = boc("evaluate", plain, "--ndcg", "rouge-l").stdout.splitlines()
    assert f"R@10 {float(one[0][4]):5.1f}" in told[1]
    assert f"{float(one[0][7]):.3f}" in told[1]


@pytest.mark.slow
def test_a_soak_counts_what_was_asked_while_the_index_changes(library: Path) -> None:
    pytest.importorskip("fastapi")
    often = ("--minutes", 0.2, "--rate", 20, "--clients", 10, "--change", 1)
    rows = run("soak.py", library / "captions.csv", "--encoder", f"tern:{library / 'model'}", *often)
    everything = [row for row in rows if row["minutes"] == "0-0.2"]
    assert {row["errors"] for row in rows} == {"0"}
    asked = {row["kind"]: int(row["requests"]) for row in everything}
    assert asked["all"] == sum(asked.values()) - asked["all"] - asked["slow"] > 0


@pytest.mark.slow
def test_all_codes_stand_side_by_side(library: Path, tmp_path: Path) -> None:
    plain, book, words = library / "photos.h5", tmp_path / "book.npz", tmp_path / "words.npz"
    assert boc("build-codebook", plain, "-o", book, "--clusters", 9).exit_code == 0
    assert boc("build-codebook", plain, "-o", words, "--words", "--clusters", 7).exit_code == 0
    every = ("dictionary:2/8", "scalar:16/32", "late(terms=9)", f"hard(codebook={book})", f"words(codebook={words})")
    rows = run("all_codes.py", plain, "--fit", plain, *(word for code in every for word in ("--code", code)))
    assert [row["code"].partition("(")[0].partition(":")[0] for row in rows] == [
        "dictionary", "scalar", "late", "hard", "words",
    ]  # fmt: skip
    told = json.loads(boc("evaluate", plain, "--json", "--ndcg", "rouge-l").stdout)
    dense = next(iter(told.values()))["text_to_image"]
    scalar = rows[1]
    assert float(scalar["recall@100"]) == 1  # of 40 pictures
    assert float(scalar["R@10"]) == pytest.approx(dense["r10"], abs=0.01)
    assert float(scalar["NDCG@25"]) == pytest.approx(dense["ndcg"], abs=1e-3)
    for row in rows:
        assert 0 < float(row["R@10 code"]) <= 100
        assert 0 < float(row["shared terms"]) <= 1
        assert float(row["postings"]) <= 40 * 64


def test_the_cost_of_a_step_follows_from_two_small_ones() -> None:
    """The products of matrices of VSRN, by hand, and a network that is twice as expensive for twice the pictures."""
    recipe = Recipe.of("vsrn", {"width": "8", "reasoning_layers": "1"})
    network = network_of(recipe)
    two, four, six = (step(network, recipe.train, count, 5, 4) for count in (2, 4, 6))
    for part in (0, 1):
        assert extended(two[part], four[part], 6) == pytest.approx(six[part], rel=1e-3)
    regions, scores = 2 * 5, 2 * 2
    linear = regions * 8 * (2048 + 4 * 8)  # the map of features, then g, theta, phi and W
    affinities = 2 * 2 * 5 * 5 * 8
    assert two[0] >= 3 * 2 * (linear + affinities + scores * 8) - 2 * 2 * regions * 2048 * 8


@pytest.mark.slow
def test_the_tables_of_vsrnpp_are_trained_and_go_on(library: Path, tmp_path: Path) -> None:
    ids = [f"{i:03d}.png" for i in range(40)]
    (tmp_path / "train.txt").write_text("\n".join(ids[:28]))
    (tmp_path / "test.txt").write_text("\n".join(ids[28:]))
    tiny = ("width=8", "text=small", "text_layers=1", "epochs=1", "batch_size=8", "held_out=8", "generation_hidden=8")
    chosen = ("visual 4RRR+GSR", "with Sinkhorn", "confidence")
    arguments = (
        library / "regions.h5", "--train", tmp_path / "train.txt", "--test", tmp_path / "test.txt",
        "--out", tmp_path / "out", "--device", "cpu",
        *(word for name in chosen for word in ("--line", name)), *(word for one in tiny for word in ("--set", one)),
    )  # fmt: skip
    rows = run("vsrnpp_tables.py", *arguments)
    recalls = [row for row in rows if row["table"] in "56"]
    assert [row["line"] for row in recalls] == [name for name in chosen for _ in range(6)]
    equal = [[row["found"] for row in recalls if row["line"] == name] for name in ("visual 4RRR+GSR", "confidence")]
    assert equal[0] == equal[1]  # one training
    assert len(list((tmp_path / "out").glob("*.json"))) == 2
    for row in recalls:
        assert 0 <= float(row["found"]) <= 100
        assert row["runs"] == "1"
    assert [row["printed"] for row in recalls if row["line"] == "with Sinkhorn"][3] == "79.2"
    times = [row for row in rows if row["table"] == "4"]
    assert [(row["line"], row["measure"]) for row in times] == [
        (name, f"{part} (s)") for name in ("VSRN", "VSRN++") for part in ("encoding", "matching")
    ]
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("model.safetensors")}
    again = run("vsrnpp_tables.py", *arguments)
    assert [row["found"] for row in again if row["table"] != "4"] == [row["found"] for row in recalls]
    assert made == {path: path.stat().st_mtime_ns for path in made}
