"""Runs and qrels: trec_eval and a loop over their lines compute what boc prints; ties, odd ids,
other files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from boc import Searcher
from boc.errors import BocError
from boc.evaluate.metrics import evaluate_recall
from boc.evaluate.runs import Gallery
from boc.evaluate.trec import write_qrels, write_run
from tests.helpers import boc

ir_measures = pytest.importorskip("ir_measures", reason="ir-measures is not installed")


def measure(run: Path, qrels: Path, *measures: Any) -> list[float]:
    """Return the means of ``measures`` over the queries of a run, by ir_measures."""
    means = ir_measures.calc_aggregate(
        measures,
        ir_measures.read_trec_qrels(str(qrels)),
        ir_measures.read_trec_run(str(run)),
    )
    return [means[measure] for measure in measures]


@given(
    st.lists(
        st.sampled_from([0.5, 0.25, -1.0, 0.3, 2.0**-149]),
        min_size=2,
        max_size=9,
    ),
    st.lists(
        st.text(
            st.characters(codec="utf-8", exclude_categories=["Cs"]),
            min_size=1,
        ),
        min_size=9,
        unique=True,
    ),
)
def test_a_run_keeps_the_order_of_hits(
    tmp_path_factory,
    scores: list[float],
    ids: list[str],
):
    path = tmp_path_factory.mktemp("run")
    scores.sort(reverse=True)
    keys = ids[: len(scores)]
    write_run(path / "a.run", [("the query", keys, scores)])
    for rank in range(len(keys)):
        write_qrels(
            path / "qrels",
            [("the query", [keys[rank]])],
        )
        measured = measure(path / "a.run", path / "qrels", ir_measures.RR)
        assert measured == pytest.approx([1 / (rank + 1)])


def test_runs_of_vectors_have_the_recalls_of_the_command(library: Path, tmp_path: Path):
    result = boc(
        f"evaluate {library}/photos.h5 --run {tmp_path}/runs --json",
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)["all 40 pictures"]
    for side, direction in (
        ("text_to_image", "text-to-image"),
        ("image_to_text", "image-to-text"),
    ):
        run, qrels = (tmp_path / "runs" / f"{direction}.{kind}" for kind in ("run", "qrels"))
        cutoffs = (1, 5, 10)
        measured = measure(run, qrels, *(ir_measures.Success @ k for k in cutoffs))
        recalls = [printed[side][f"r{k}"] / 100 for k in cutoffs]
        assert measured == pytest.approx(recalls, abs=1e-6)
        tool = measure(run, qrels, ir_measures.R @ 10, ir_measures.nDCG @ 10)
        assert tool == pytest.approx(_by_hand(run, qrels), abs=1e-6)
    gallery = Gallery.of(library / "photos.h5")
    assert (
        evaluate_recall(gallery.scores(), gallery.owners).image_to_text.r10
        == printed["image_to_text"]["r10"]
    )


def _by_hand(run: Path, qrels: Path) -> tuple[float, float]:
    """Recall and nDCG at 10 by a slow loop over the text of the files."""
    right = {}
    for line in qrels.read_text().splitlines():
        query, _, key, _ = line.split()
        right.setdefault(query, set()).add(key)
    found = dict.fromkeys(right, 0.0)
    gained = dict.fromkeys(right, 0.0)
    for line in run.read_text().splitlines():
        query, _, key, rank, *_ = line.split()
        if int(rank) <= 10 and key in right[query]:
            found[query] += 1 / len(right[query])
            gained[query] += 1 / np.log2(int(rank) + 1)
    ideal = {
        query: sum(1 / np.log2(rank + 1) for rank in range(1, len(right[query]) + 1))
        for query in right
    }
    return float(np.mean(list(found.values()))), float(
        np.mean([gained[query] / ideal[query] for query in right]),
    )


def test_a_run_through_an_index_is_that_of_its_searches(library: Path, tmp_path: Path):
    at = f"file:{library / 'index'}"
    runs = tmp_path / "runs"
    result = boc(
        f"evaluate {library}/photos.h5 --name photos --at {at} --run {runs}",
    )
    assert result.exit_code == 0, result.output
    searcher = Searcher.open("photos", at)
    query = next(item.id for item in searcher.index.items() if item.modality == "text")
    hits = [
        hit.id
        for hit in searcher.search_vectors(
            searcher.embeddings(query),
            k=100,
            find="image",
        )[0]
    ]
    lines = [line.split() for line in (runs / "text-to-image.run").read_text().splitlines()]
    assert [line[2] for line in lines if line[0] == query] == hits


def test_topics_give_a_run_with_their_ids(library: Path, tmp_path: Path):
    topics = tmp_path / "topics.tsv"
    run = tmp_path / "photos.run"
    topics.write_text("q 1\ta red square\nq2\ta red square\nq3\ta blue circle -red\n")
    arguments = (
        "photos",
        "--at",
        f"file:{library / 'index'}",
        "--queries",
        topics,
        "-k",
        3,
    )
    result = boc("search", *arguments, "--run", run)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in run.read_text().splitlines()]
    assert [line[0] for line in lines] == ["q%201"] * 3 + ["q2"] * 3 + ["q3"] * 3
    records = [json.loads(line) for line in boc("search", *arguments, "--json").stdout.splitlines()]
    assert [record["id"] for record in records] == ["q 1", "q2", "q3"]
    assert [line[2] for line in lines] == [
        hit["id"] for record in records for hit in record["hits"]
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [("a red square\n", "contains no tab"), ("1\ta red square\n1\ta blue one\n", "occurs twice")],
)
def test_topics_without_ids_of_their_own_are_refused(
    library: Path,
    tmp_path: Path,
    text: str,
    message: str,
):
    topics = tmp_path / "topics.tsv"
    topics.write_text(text)
    result = boc(
        f"search photos --at file:{library}/index --queries",
        topics,
        "--run",
        tmp_path / "r",
    )
    assert result.exit_code == 1
    assert message in result.stderr
    assert not (tmp_path / "r").exists()


def test_files_of_other_kinds_are_not_overwritten(tmp_path: Path):
    (tmp_path / "notes").write_text("dear diary\n")
    with pytest.raises(BocError, match="another kind of file"):
        write_run(
            tmp_path / "notes",
            [("q", ["a"], [1.0])],
        )
    write_run(
        tmp_path / "run",
        [("q", ["a"], [1.0])],
    )
    write_run(
        tmp_path / "run",
        [("q", ["b"], [1.0])],
    )
    assert (tmp_path / "run").read_text() == "q Q0 b 1 1 boc\n"
