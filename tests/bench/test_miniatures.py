"""The scripts of bench/ on data so small and regular that the rows they must print follow on paper.

The miniature has 40 pictures in two classes, c = 0 and 1, of 20 pictures, j = 0 ... 19; picture p =
2 j + c. Its vector is 0.8 e_c + 0.6 e_(2 + j) of 22 components, so dot products are 1 with itself,
0.64 within a class, 0.36 with the picture of the same j in the other class, and else 0. Both
captions of a picture have its vector.

Its regions are the concepts u_c = e_c + 0.1 e_2 and o_j = e_(2 + j); its caption A has both as
words, caption B only u_c. The word of o_j is NOUNS[j], those of u_0 and u_1 are stop-words. The
training file holds each concept once, so a codebook of as many clusters as it holds concepts is the
concepts themselves.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.paper.table1 import PAPER
from boc.types import Batch, Embeddings, Item, Ragged
from boc.vectors import Doubles
from tests.bench.scripts import run_rows
from tests.oracles import write_features

pytestmark = pytest.mark.slow

TEXT = (
    "dog cat horse boat train bird ball tree house beach river car bike chair table snow street "
    "child bottle bench"
)
NOUNS = TEXT.split()
STOPS = ("the", "of")
DIM = 22
PICTURES = [(c, j) for j in range(20) for c in range(2)]
OWN = np.eye(DIM)[2:]
CLASS = np.eye(DIM)[:2] + 0.1 * OWN[0]
CONCEPTS = [
    *zip(CLASS, STOPS, strict=True),
    *zip(OWN, NOUNS, strict=True),
]
SPARSITY = 0.98  # one component of 44, and one centroid of 22


def vector(c: int, j: int) -> Doubles:
    return 0.8 * np.eye(DIM)[c] + 0.6 * OWN[j]


def write(
    path: Path,
    pictures: Sequence[tuple[str, Doubles, Sequence[Doubles]]],
    captions: Sequence[tuple[str, str, Doubles, Sequence[Doubles], list[str]]],
    digest: str = "0",
    spec: str = "mini:0",
) -> Path:
    """Write a feature file of pictures (id, vector, concepts) and captions (id, picture, vector,
    concepts, words)."""
    dim = len(captions[0][2])
    batches = []
    if pictures:
        items = [Item(key, "image", f"{key}.jpg", key) for key, *_ in pictures]
        sets = Ragged.from_sets(
            [np.array(concepts) for *_, concepts in pictures],
            dim,
        )
        batches.append(
            Batch(
                items,
                Embeddings(
                    "image",
                    np.float32([v for _, v, _ in pictures]),
                    sets,
                ),
            ),
        )
    items = [Item(key, "text", " ".join(words), group) for key, group, *_, words in captions]
    sets = Ragged.from_sets(
        [np.array(concepts) for *_, concepts, _ in captions],
        dim,
    )
    batches.append(
        Batch(
            items,
            Embeddings(
                "text",
                np.float32([v for _, _, v, *_ in captions]),
                sets,
                words=[words for *_, words in captions],
            ),
        ),
    )
    return write_features(
        path,
        *batches,
        spec=spec,
        digest=digest,
    )


def training(
    path: Path,
    concepts: Sequence[tuple[Doubles, str]],
    **header: str,
) -> Path:
    """Write a file of the 40 pictures, without regions, and of captions of them all; the first have
    one concept and word each, the rest none."""
    pictures = [(f"t{p:02d}", vector(c, j), []) for p, (c, j) in enumerate(PICTURES)]
    contents = [([concept], [word]) for concept, word in concepts] + [([], [])] * (
        40 - len(concepts)
    )
    captions = []
    for i, (own_concepts, words) in enumerate(contents):
        owner, own, _ = pictures[i % 40]
        captions.append(
            (
                f"{owner}#{i // 40}",
                owner,
                own,
                own_concepts,
                words,
            ),
        )
    return write(path, pictures, captions, **header)


@pytest.fixture(scope="module")
def mini(tmp_path_factory) -> Path:
    """Make a folder with dev.h5 and alone-dev.h5, train.h5 with all 22 concepts, alone.h5 with u_0,
    u_1, a mean o."""
    home = tmp_path_factory.mktemp("mini")
    pictures = []
    captions = []
    for p, (c, j) in enumerate(PICTURES):
        pictures.append(
            (
                f"{p:02d}",
                vector(c, j),
                [CLASS[c], OWN[j]],
            ),
        )
        captions.append(
            (
                f"{p:02d}#A",
                f"{p:02d}",
                vector(c, j),
                [CLASS[c], OWN[j]],
                [STOPS[c], NOUNS[j]],
            ),
        )
        captions.append(
            (
                f"{p:02d}#B",
                f"{p:02d}",
                vector(c, j),
                [CLASS[c]],
                [STOPS[c]],
            ),
        )
    write(home / "dev.h5", pictures, captions)
    training(home / "train.h5", CONCEPTS)
    few = [
        *zip(CLASS, STOPS, strict=True),
        (OWN.mean(axis=0), NOUNS[0]),
    ]
    training(
        home / "alone.h5",
        few,
        digest="alone:0",
        spec="mini:0?alone",
    )
    write(
        home / "alone-dev.h5",
        pictures,
        captions,
        digest="alone:0",
        spec="mini:0?alone",
    )
    return home


def only(rows: list[dict[str, str]], **cells: str) -> dict[str, str]:
    """Return the one row with these cells."""
    matching = [
        row
        for row in rows
        if all(row[name.replace("_", " ")] == value for name, value in cells.items())
    ]
    assert len(matching) == 1, (cells, matching)
    return matching[0]


def cells(row: dict[str, str], *names: str) -> list[float]:
    return [float(row[name]) for name in names]


def test_sparsity_recall(mini: Path):
    rows = run_rows(
        "sparsity_recall.py",
        f"{mini}/dev.h5 --fit {mini}/train.h5 --alone {mini}/alone.h5 --clusters 22 --terms 80 "
        f"--sparsity 0 --sparsity {SPARSITY}",
    )
    costs = ("z", "terms", "postings", "bytes", "dense")
    finds = ("Rm=1", "Rm=2", "Rm=5", "Rm=50")
    errors = ("Rm=1 +-", "Rm=2 +-", "Rm=5 +-")
    there = "text to image"
    back = "image to text"

    # Nothing left out: a caption reads the 20 postings of its class and the 2 of its j. 80 postings
    # of 2 + 2 bytes (frequencies near 800 and 600) or 2 + 1 (ranks 2 and 1), and 4 bytes for each
    # end of 44 lists, by 40 pictures.
    for code, size in (("scalar", 12.5), ("permutation", 10.5)):
        row = only(
            rows,
            code=code,
            chain="plain",
            sparsity="0.0",
            direction=there,
        )
        assert cells(row, *costs) == [44, 2, 22, size, 100]
        assert cells(row, *finds, *errors) == [100] * 4 + [0] * 3

    # Only the class left: 20 pictures tie, and the first 10, those of j < 10, are found: 20 of 40.
    # All 20 of the class are among the first 20, where the vectors tell them apart. 40 pictures
    # vary like a coin: (1/4 / 39)^1/2 = 8.01 %, as their two captions always agree.
    for code, size in (("scalar", 8.5), ("permutation", 6.5)):
        row = only(
            rows,
            code=code,
            chain="plain",
            sparsity=str(SPARSITY),
            direction=there,
        )
        assert cells(row, *costs) == [1, 1, 20, size, 100]
        assert cells(row, *finds) == [50, 100, 100, 100]
        assert cells(row, *errors) == [8.01, 0, 0]

    # The other way 40 captions tie, the first 10 of them of j < 5, the first 20 of j < 10.
    row = only(
        rows,
        code="scalar",
        chain="plain",
        sparsity=str(SPARSITY),
        direction=back,
    )
    assert cells(row, *finds) == [25, 50, 100, 100]
    assert cells(row, *errors) == [6.93, 8.01, 0]
    row = only(
        rows,
        code="scalar minus permutation",
        chain="plain",
        sparsity=str(SPARSITY),
        direction=back,
    )
    assert cells(row, *finds, *errors) == [0] * 7

    # Each concept its own centroid: A finds its picture by two terms, where others share one; B
    # ties with its class. So 75 %: pictures of j < 10 have both captions right, the others one of
    # two: (40 / 39 * 40 * (0.5 / 80)^2)^1/2. Postings: 22 for A, 20 for B. 80 of 2 + 4 bytes
    # (frequencies of 70,710), and the ends of 22 lists.
    for code in ("hard", "soft sum", "soft max"):
        row = next(
            r for r in rows if r["code"] == code and r["chain"] == "with context" and r["z"] == "1"
        )
        assert row["direction"] == there
        assert cells(row, *costs) == [1, 2, 21, 14.3, 100]
        assert cells(row, *finds) == [75, 100, 100, 100]
        assert cells(row, *errors) == [4, 0, 0]
    # Back: the picture's two terms are both in its own A.
    assert (
        only(
            rows,
            code="hard",
            chain="with context",
            direction=back,
        )["Rm=1"]
        == "100.00"
    )

    # All o share a centroid, so that pictures of a class are one: half of the captions, of either
    # kind.
    row = only(
        rows,
        code="hard",
        chain="no context",
        direction=there,
    )
    assert cells(row, *finds) == [50, 100, 100, 100]
    # What context gains is caption A where j is 10 or more: 20 of 80, half of them of each of 20
    # pictures.
    difference = only(
        rows,
        code="soft sum minus soft sum",
        chain="with context minus no context",
        sparsity=str(SPARSITY),
        direction=there,
    )
    assert cells(
        difference,
        "Rm=1",
        "Rm=2",
        "Rm=1 +-",
    ) == [25, 0, 4]

    # 40 directions are the 40 centroids of the dictionary, asked of 80: each picture has one of its
    # own.
    for direction, postings in ((there, 32), (back, 64)):
        row = only(
            rows,
            code="dictionary",
            z="1",
            query_z="32",
            direction=direction,
        )
        assert row["chain"] == "of 40"
        assert cells(row, "terms", "postings", "Rm=1") == [1, postings, 100]


def test_table_one(mini: Path):
    pytest.importorskip("spellchecker")
    rows = run_rows(
        "table1.py",
        f"{mini}/dev.h5 --fit {mini}/train.h5 --clusters 22 --alone-train {mini}/alone.h5 "
        f"--alone-dev {mini}/alone-dev.h5",
    )
    six = [f"{d} R@{k}" for d in ("image", "sentence") for k in (1, 5, 10)]
    for model in (
        "TERN",
        "Deep Permutation",
        "Deep Permutation, printed order",
        "Deep Permutation, offset",
        "Deep Permutation, without c-ReLU",
        "Scalar Quantization",
        "Scalar Quantization, printed order",
        "Scalar Quantization, without c-ReLU",
        "Scalar Quantization, shifted",
    ):
        row = only(rows, model=model, minus="")
        assert cells(row, *six, "sum", "sum +-") == [*[100] * 6, 600, 0]

    # Hard: A is right at once; B ties with its class, whose j-th picture it wants. So of 80
    # captions 40 + 2, 40 + 10 and 40 + 20 are right at 1, 5 and 10; a picture finds its own A at
    # once.
    row = only(rows, model="With context", minus="")
    assert cells(row, *six, "sum", "seeds +-") == [52.5, 62.5, 75, 100, 100, 100, 490, 0]
    # A picture of j = 0 has 6 hits of its captions, of j < 5 5, of j < 10 4, and else 3, 3.8 on
    # average: the error is (40 / 39 (2 * 2.2^2 + 8 * 1.2^2 + 10 * 0.2^2 + 20 * 0.8^2))^1/2 / 80.
    assert cells(row, "sum +-") == [7.42]
    assert cells(
        row,
        "paper coco image R@10",
        "paper flickr30k sentence R@10",
    ) == [43.6, 9.5]
    difference = only(
        rows,
        model="TERN",
        minus="With context",
    )
    assert cells(difference, *six, "sum", "sum +-") == [47.5, 37.5, 25, 0, 0, 0, 110, 7.42]
    assert cells(difference, "paper coco image R@1") == [21.2]

    # Without stop-words only the o are centroids, and u_c is nearest to o_0, to which it leans.
    # Pictures are {o_0, o_j}, twice o_0 for j = 0, and so are their A; B is o_0. A ties with the A
    # of its j in the other class, of which c = 0 comes first. B finds the two of j = 0 and then all
    # others in the order of the file. Captions: (20 + 1) / 80, (40 + 5) / 80, (40 + 10) / 80.
    # Pictures: half of them are first in their pair, and for j = 0, where all B are as good, third
    # at worst.
    for model in ("With cont., no stop-words", "hard, English dict. with context"):
        row = only(rows, model=model, minus="")
        assert cells(row, *six, "sum") == [26.25, 56.25, 62.5, 50, 100, 100, 395]
    difference = only(
        rows,
        model="With context",
        minus="With cont., no stop-words",
    )
    assert cells(difference, "sum") == [95]

    # Without context all o share a centroid: the pictures of a class tie, and so do its A, in the
    # order of the file.
    for model in ("No context", "hard, No context in codebook and items"):
        assert cells(
            only(rows, model=model, minus=""),
            *six,
        ) == [5, 25, 50, 5, 25, 50]
    assert {row["model"] for row in rows} >= set(PAPER)


def test_recall_postings(mini: Path, tmp_path: Path):
    from boc.clustering.make_codebook import cluster
    from boc.inputs.features import FeatureFile

    with FeatureFile(mini / "train.h5") as file:
        cluster([file], 22).save(tmp_path / "book.npz")
    captions = [
        (
            f"q{p:02d}",
            f"{p:02d}",
            vector(c, j),
            [OWN[j]],
            [NOUNS[j]],
        )
        for p, (c, j) in enumerate(PICTURES)
    ]
    queries = write(
        tmp_path / "queries.h5",
        [],
        captions,
    )
    rows = run_rows(
        "recall_postings.py",
        f"{mini}/dev.h5 --queries {queries} --fit {mini}/train.h5 --codebook {tmp_path}/book.npz "
        "--only none",
    )
    # The query knows only its o_j, which two pictures and two captions A have: 4 postings and
    # candidates, two of them among the exact ten (its own picture, A and B, and then its class):
    # recall 0.2, and always one of its own. Lists are 20 of 4 and 2 of 60: G = (4 * -40 + 60 * (19
    # + 21)) / (22 * 200). 200 postings of 5 bytes, 120 items.
    hard = [row for row in rows if row["code"] == "hard"]
    assert [row["R"] for row in hard] == ["100", "300", "500"]
    for row in hard:
        assert cells(
            row,
            "postings",
            "gini",
            "bytes",
            "recall",
            "right",
            "dense",
        ) == [
            4,
            0.509,
            8,
            0.2,
            100,
            100,
        ]


def test_models(tmp_path: Path):
    e = np.eye(2)
    captions = [
        (
            "0#0",
            "0",
            e[0],
            [e[0], e[0]],
            ["a", "b"],
        ),
        (
            "1#0",
            "1",
            np.array([0.8, 0.6]),
            [e[1], e[1]],
            ["a", "c"],
        ),
    ]
    file = write(
        tmp_path / "two.h5",
        [("0", e[0], [e[0]]), ("1", e[1], [e[1]])],
        captions,
    )
    rows = run_rows("models.py", f"one={file} words={file},mrsw both={file}+{file}")
    # The second caption finds the first picture first (0.8 to 0.6): R@1 is a half, ranks 1 and 2.
    # "a b" and "a c" have a word of two in common, so their ROUGE-L is 1/2: that ranking gains
    # 2^1/2 - 1 + 1 / log2(3) = 1.0451 of 1 + (2^1/2 - 1) / log2(3) = 1.2613, and NDCG is (1 +
    # 0.8286) / 2.
    for model in ("one", "both"):
        row = only(
            rows,
            model=model,
            direction="text to image",
        )
        names = ("R@1", "R@5", "R@10", "R@10 +-", "median rank", "NDCG@25 ROUGE-L", "pictures")
        assert cells(row, *names) == [50, 100, 100, 0, 1, 0.9143, 2]
        row = only(
            rows,
            model=model,
            direction="image to text",
        )
        assert cells(
            row,
            "R@1",
            "median rank",
            "NDCG@25 ROUGE-L",
        ) == [100, 1, 1]
    # Their concepts are not confused.
    assert cells(
        only(
            rows,
            model="words",
            direction="text to image",
        ),
        "R@1",
        "NDCG@25 ROUGE-L",
    ) == [100, 1]
