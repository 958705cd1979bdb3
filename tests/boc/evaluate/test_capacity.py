"""Estimates: lines are met exactly, a larger index takes what was foretold, and nothing is left behind."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from boc import plugins
from boc.clustering.cell_index import kmeans_products
from boc.codecs import global_code
from boc.errors import BocError
from boc.evaluate.capacity import GB, Estimate, Learning, Load, SampledFiles, extrapolate, learning_of, measure, size_of
from boc.evaluate.search_time import SCATTERED, SPARSE, Searching, search_seconds
from boc.indexes.learn import fit_code
from boc.indexes.load import load_index, new_manifest
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFiles, Header
from boc.inputs.metadata import Metadata
from boc.types import MODALITIES, Batch, Embeddings, Identity, Item, Modality
from indexing.embedded.merge import MERGE
from indexing.embedded.postings import BLOCK
from indexing.embedded.writer import WAITING
from tests.helpers import boc
from tests.servers.fixtures import kinds

IDENTITY = Identity("tern:somewhere", "ab" * 32, 24)


def write(path: Path, counts: dict[Modality, int], source: str = "cd") -> Path:
    """A feature file of that many items of each modality."""
    head = Header("embeddings", IDENTITY.spec, IDENTITY.digest, IDENTITY.dim, "float32", source * 32)
    with FeatureWriter(path, head) as writer:
        for modality, count in counts.items():
            vectors = np.random.default_rng(count).standard_normal((count, IDENTITY.dim)).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            items = [Item(f"{source}-{modality}-{i:06d}", modality, f"item number {i:06d}") for i in range(count)]
            writer.append(count, [Batch(items, Embeddings(modality, vectors))])
        writer.finish()
    return path


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("many") / "many.h5", {"image": 3000, "text": 7000})


def test_a_code_learned_from_a_file_is_that_of_its_items_spread_evenly(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the blocks it is read in; and memory is told before, if it is much."""
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr("boc.indexes.learn.FIT_SAMPLE", 100)
    with FeatureFiles([many]) as file:
        samples = [
            Embeddings(m, next(iter(file.sample(m, np.arange(size) * file.count(m) // size))))
            for m, size in (("image", 231), ("text", 538))
        ]
        fit_code(file, global_code("dictionary", terms=64), lambda *progress: told.append(progress))
        assert not told
        monkeypatch.setattr("boc.indexes.learn.MUCH", 0)
        monkeypatch.setattr("boc.inputs.features.SAMPLED", 50)
        found = fit_code(file, global_code("dictionary", terms=64), lambda *progress: told.append(progress))
    assert told == [("learning from 769 items, 0.0 GB of memory", done, 769) for done in (0, 769)]
    expected = global_code("dictionary", terms=64).fit(*samples, n_items=10_000)
    for name, array in expected.arrays().items():
        assert np.array_equal(found.arrays()[name], array)


@given(fixed=st.integers(0, 10**9), each=st.dictionaries(st.sampled_from(["postings", "vectors", "other"]),
       st.integers(1, 10**5), min_size=1), sizes=st.lists(st.integers(1, 10**6), min_size=2, max_size=2, unique=True),
       items=st.integers(1, 10**10), start=st.floats(0, 100), rate=st.floats(1e-6, 1))  # fmt: skip
def test_what_grows_along_lines_is_foretold_exactly(
    fixed: int, each: dict[str, int], sizes: list[int], items: int, start: float, rate: float
) -> None:
    def load(n: int) -> Load:
        grown = {name: size * n + (fixed if name == "other" else 0) for name, size in each.items()}
        return Load(n, start + rate * n, grown)

    found = extrapolate(load(min(sizes)), load(max(sizes)), items)
    constant = fixed if "other" in each else 0
    assert found.bytes == pytest.approx(constant + sum(each.values()) * items, rel=1e-9, abs=2)
    assert found.seconds == pytest.approx(start + rate * items, rel=1e-3)
    assert found.page_cache == pytest.approx(sum(s for name, s in each.items() if name != "other") * items, rel=1e-9)


def test_what_does_not_grow_along_a_line_is_foretold_by_its_cause() -> None:
    """The table of lists by terms and blocks of items, the arrays of the code by terms, merges by their number."""

    def growth(items: int, size: int, n_terms: int) -> tuple[int, int]:
        return 4 * n_terms * -(-items // 100), 3 if size > 10**6 else 0

    def load(n: int) -> Load:
        return Load(n, 1 + 2 * n, {"postings": 6 * n + 4 * 10 * -(-n // 100), "other": 50 * n + 1000}, 5 + n)

    found = extrapolate(
        load(50), load(250), 10**5, growth=growth, n_terms=10, codec_bytes=900, learning=Learning(8, 9, 3)
    )
    assert found.table == 4 * 30 * 1000
    assert found.fixed == 1000 + 2 * 900
    assert found.bytes == found.table + found.fixed + 56 * 10**5
    assert found.page_cache == found.table + 6 * 10**5
    assert found.seconds == pytest.approx(1 + (2 + 3 * 1) * 10**5)


@pytest.mark.parametrize(("terms", "items"), [(None, 10_000), (None, 10**6), (64, 10**6)])
def test_learning_is_foretold_by_the_work_of_more_items(many: Path, terms: int | None, items: int) -> None:
    with FeatureFiles([many]) as file:
        codec = global_code("dictionary", terms=terms)
        found = learning_of(file, fit_code(file, codec, n_items=items), items, 2.0)
    wanted = codec.terms_at(items)
    counts = [3 * items // 10, 7 * items // 10]
    rows = sum(min(count, max(100_000, math.ceil(12 * wanted * count / items))) for count in counts)
    assert found.memory == pytest.approx(codec.learning_bytes(rows, IDENTITY.dim, items), abs=10 * IDENTITY.dim)
    assert found.terms == wanted / codec.n_terms
    if items == 10_000:
        assert found == Learning(2.0, found.memory, 1.0)
    else:
        assert found.seconds > rows / 10_000


@given(points=st.integers(1, 10**7), k=st.integers(1, 1 << 18), more=st.integers(1, 100))
def test_more_points_are_more_work_to_learn_from(points: int, k: int, more: int) -> None:
    assert kmeans_products(points, k) < kmeans_products(points + more, k)


@given(points=st.integers(1, 10**6), k=st.integers(1, 1 << 18))
def test_points_that_are_their_own_centroids_are_little_work(points: int, k: int) -> None:
    """K-means has nothing to do then, whatever the number of centroids that were asked for."""
    assert kmeans_products(points, max(k, points)) == kmeans_products(points, points)
    assert kmeans_products(points, points) <= kmeans_products(points + 1, points)


@given(segments=st.integers(0, 300), rest=st.integers(1, WAITING - 1), items=st.integers(1, 10**8))
def test_merges_are_those_of_segments_that_are_joined_as_soon_as_there_are_enough(
    tmp_path_factory: pytest.TempPathFactory, segments: int, rest: int, items: int
) -> None:
    """Each flush is a segment; MERGE of one size become one; at the end all but the last buffer is merged."""
    sizes: list[int] = []
    written = 0
    for _ in range(segments):
        sizes.append(1)
        while sizes.count(sizes[-1]) == MERGE:
            joined = sizes[-1] * MERGE
            sizes, written = [*sizes[:-MERGE], joined], written + joined
    written += segments
    size = segments * WAITING + rest
    table, merges = plugins.backend(f"file:{tmp_path_factory.getbasetemp()}").growth(items, size, 3)
    assert table == 4 * 3 * math.ceil(items / BLOCK)
    assert merges == pytest.approx(written * WAITING / size)


terms_and_density = st.tuples(st.integers(1, 500), st.floats(1e-6, 1.0))


@given(some=terms_and_density, sizes=st.tuples(st.integers(1, 10**5), st.integers(1, 10**5)),
       items=st.integers(1, 10**9), start=st.floats(1e-6, 1e-3), each=st.floats(1e-10, 1e-8),
       terms=st.floats(1, 8))  # fmt: skip
def test_what_a_search_takes_is_foretold_by_its_postings(
    some: tuple[int, float], sizes: tuple[int, int], items: int, start: float, each: float, terms: float
) -> None:
    """Of long lists by what a posting was measured to take, of short ones by a constant."""
    query, density = some
    small = min(sizes)
    large = small + max(sizes)

    def searching(n: int) -> Searching:
        return Searching(n, start + each * query * density * n, query, density)

    assume(each * query * density * (large - small) > 1e-3 * start)  # else rounding decides
    found = search_seconds(searching(small), searching(large), items, terms)
    of_one = each if density >= SPARSE else SCATTERED
    more = max(0.0, query * density * (items / terms - large))
    assert found == pytest.approx(searching(large).seconds + of_one * more, rel=1e-6, abs=1e-6)


def test_searches_that_read_no_postings_take_as_long_among_more_items() -> None:
    assert search_seconds(Searching(1000, 1e-4, 0, 0.1), Searching(5000, 2e-4, 0, 0.1), 10**6) == 2e-4


def test_a_search_that_was_faster_among_more_items_foretells_nothing() -> None:
    slow, fast = Searching(1000, 2e-4, 64, 0.1), Searching(5000, 1e-4, 64, 0.1)
    assert search_seconds(slow, fast, 10**6) is None
    assert search_seconds(fast, Searching(9000, 2e-4, 64, 0.1), 10**6) == pytest.approx(
        2e-4 + (6_400_000 - 57_600) / 256e6
    )


loads = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0.001, 1e4))


@given(one=loads, other=loads, items=st.integers(1, 10**11), part=st.integers(1, 999))
def test_whatever_was_measured_nothing_is_negative_and_more_items_take_more(
    one: tuple[int, int, float], other: tuple[int, int, float], items: int, part: int
) -> None:
    first, second = (
        Load(n, seconds, {"vectors": vectors, "other": rest})
        for n, (vectors, rest, seconds) in ((part, one), (1000, other))
    )
    small, large = (extrapolate(first, second, n) for n in (items, 2 * items))
    assert 0 <= small.bytes <= large.bytes
    assert 0 < small.seconds <= large.seconds
    assert 0 <= small.page_cache <= small.bytes + 1
    assert min(small.bytes_each.values()) >= 0
    assert small.fixed <= sum(second.sizes.values())


@given(items=st.integers(1, 10**11), each=st.integers(1, 10**6))
def test_shards_are_small_enough_and_not_one_too_many(items: int, each: int) -> None:
    load = Load(1, 1.0, {"other": each})
    found = Estimate(items, (load, load), {"other": float(each)}, 0, 1.0)
    assert found.bytes <= found.shards * 30 * GB
    assert items <= found.shards * 10_000_000
    fewer = found.shards - 1
    assert fewer == 0 or items > fewer * 10_000_000 or found.bytes > fewer * 30 * GB
    assert found.heap >= 2 * GB
    assert (found.heap - GB) * 20 >= found.shards * GB


@pytest.mark.parametrize(("part", "whole"), [(0, 5), (5, 5), (6, 5)])
def test_two_sizes_are_needed(part: int, whole: int) -> None:
    with pytest.raises(BocError, match=f"two sizes, got {part} and {whole}"):
        extrapolate(Load(part, 1.0, {}), Load(whole, 1.0, {}), 10)


@pytest.mark.slow
@settings(max_examples=25)
@given(counts=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 900)), min_size=1, max_size=2),
       size=st.integers(1, 2000), batch=st.integers(1, 400))  # fmt: skip
def test_a_sample_is_of_different_items_as_many_as_asked_in_the_shares_of_the_files(
    tmp_path_factory: pytest.TempPathFactory, counts: Sequence[tuple[int, int]], size: int, batch: int
) -> None:
    folder = tmp_path_factory.mktemp("sample")
    paths = [
        write(folder / f"{i}.h5", dict(zip(MODALITIES, pair, strict=True)), f"a{i}") for i, pair in enumerate(counts)
    ]
    with FeatureFiles(paths) as whole:
        sample = SampledFiles(whole, size)
        total, drawn = size_of(whole), 0
        for modality in MODALITIES:
            batches = list(sample.batches(modality, batch))
            found = [item.id for rows in batches for item in rows.items]
            everything = {item.id: row for rows in whole.batches(modality) for item, row in
                          zip(rows.items, rows.embeddings.vectors, strict=True)}  # fmt: skip
            assert len(found) == len(set(found)) == sample.count(modality)
            assert all(0 < len(rows.items) <= batch for rows in batches)
            for rows in batches:
                assert all(np.array_equal(everything[i.id], v) for i, v in
                           zip(rows.items, rows.embeddings.vectors, strict=True))  # fmt: skip
            share = min(1.0, size / total)
            expected = sum(math.ceil(file.count(modality) * share) for file in whole.files)
            assert len(found) == expected
            drawn += len(found)
        assert min(size, total) <= drawn <= min(size, total) + 2 * len(counts)


@pytest.mark.slow
def test_a_sample_has_blocks_from_everywhere(many: Path) -> None:
    with FeatureFiles([many]) as whole:
        numbers = [int(item.id[-6:]) for rows in SampledFiles(whole, 1000).batches("text") for item in rows.items]
    assert len(numbers) == 700
    assert numbers == sorted(numbers)
    assert [start for start in numbers if start - 1 not in numbers] == [0, 2333, 4666]


@pytest.mark.slow
@pytest.mark.parametrize("code", ["scalar", "dictionary"])
def test_the_bytes_of_a_whole_index_were_foretold_from_a_sample(many: Path, tmp_path: Path, code: str) -> None:
    at = f"file:{tmp_path / 'real'}"
    with FeatureFiles([many]) as file:
        codec = fit_code(file, global_code(code, **({"terms": 64} if code == "dictionary" else {"z": 8})))
        manifest = new_manifest(file, codec)
        heard: list[int] = []
        part, whole = measure(file, f"file:{tmp_path / 'tried'}", codec, manifest, size=1000, tick=heard.append)
        for _ in load_index(file, at, "real", codec, manifest):
            pass
    sizes = plugins.backend(at).open("real").sizes()
    found = extrapolate(part, whole, 10_000)
    assert (part.items, whole.items, sum(heard)) == (200, 1000, 1200)
    assert found.bytes == pytest.approx(sum(sizes.values()), rel=0.05)
    for name, size in found.bytes_each.items():
        # Of "other" are the words, which come again and again the more items there are.
        total, near = size * 10_000 + (found.fixed if name == "other" else 0), 0.2 if name == "other" else 0.05
        assert total == pytest.approx(sizes[name], rel=near, abs=600)
    assert plugins.backend(f"file:{tmp_path / 'tried'}").names() == []
    assert not list((tmp_path / "tried").glob("boc-estimate*"))


def test_what_only_a_first_load_takes_is_not_measured(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server compiles its code in its first load: then five times as many items took no longer."""
    took, loaded = [90.0, 1.0, 3.0], []

    def timed(file: FeatureFiles, at: str, name: str, *rest: object) -> float:
        loaded.append(size_of(file))
        for _ in load_index(file, at, name, codec, manifest):
            pass
        return took[len(loaded) - 1]

    monkeypatch.setattr("boc.evaluate.capacity._timed", timed)
    with FeatureFiles([many]) as file:
        codec = fit_code(file, global_code("scalar", z=8))
        manifest = new_manifest(file, codec)
        part, whole = measure(file, f"file:{tmp_path}", codec, manifest, size=100)
    assert loaded == [20, 20, 100]
    assert (part.seconds, whole.seconds) == (1.0, 3.0)
    assert plugins.backend(f"file:{tmp_path}").names() == []


@pytest.mark.parametrize("after", [1, 300])
def test_nothing_is_left_by_an_estimate_that_was_stopped(many: Path, tmp_path: Path, after: int) -> None:
    loaded = 0

    def tick(items: int) -> None:
        nonlocal loaded
        loaded += items
        if loaded >= after:
            raise KeyboardInterrupt

    with FeatureFiles([many]) as file:
        codec = fit_code(file, global_code("scalar", z=8))
        with pytest.raises(KeyboardInterrupt):
            measure(file, f"file:{tmp_path}", codec, new_manifest(file, codec), size=1000, tick=tick)
    assert plugins.backend(f"file:{tmp_path}").names() == []
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {".lock"}


def test_metadata_counts(many: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(
        "id,title:text\n" + "".join(f"cd-image-{i:06d},{'a title of its own ' * 9}\n" for i in range(3000))
    )
    table = Metadata.read(tmp_path / "table.csv")
    with FeatureFiles([many]) as file:
        codec = fit_code(file, global_code("scalar", z=8))
        each = []
        for metadata in (None, table):
            manifest = new_manifest(file, codec, metadata=metadata)
            each.append(extrapolate(*measure(file, f"file:{tmp_path}", codec, manifest, metadata, size=500), 100))
    assert each[1].bytes_each["other"] - each[0].bytes_each["other"] > 0.3 * 9 * len("a title of its own ")


def test_one_item_is_too_few(tmp_path: Path) -> None:
    path = write(tmp_path / "one.h5", {"text": 1})
    result = boc("estimate", path, "--items", 10)
    assert result.exit_code == 1
    assert "1 items are too few to estimate from" in result.stderr


@pytest.mark.slow
def test_the_command_tells_for_people_and_for_machines(many: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    asked = ("estimate", many, "--items", 2_000_000, "--sample", 1000, "--code", "dictionary(terms=64)")
    people, machines = boc(*asked, "--at", f"file:{place}"), boc(*asked, "--at", f"file:{place}", "--json")
    assert (people.exit_code, machines.exit_code) == (0, 0), people.output
    assert not place.exists()
    found = json.loads(machines.stdout)
    assert [load["items"] for load in found["measured"]] == [200, 1000]
    assert found["items"] == 2_000_000
    assert (
        4 * IDENTITY.dim <= found["bytes_each"]["vectors"] <= 4 * IDENTITY.dim + IDENTITY.dim / 4 + 8
    )  # compact codes
    assert found["bytes"] == pytest.approx(found["fixed"] + found["table"] + 2e6 * sum(found["bytes_each"].values()))
    assert "1,000 items in" in people.stdout
    assert "extrapolated: 2e+03 times" in people.stdout
    assert "shards" not in people.stdout  # a folder has none
    assert found["search"] is None or found["search"] >= found["measured"][1]["searching"]["seconds"]


def test_regions_are_refused(library: Path) -> None:
    result = boc("estimate", library / "regions.h5", "--items", 10)
    assert result.exit_code == 2
    assert "boc extract --encoder" in result.stderr


@pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
def test_a_server_is_left_as_it_was(server: SimpleNamespace, many: Path) -> None:
    scheme = "elastic" if server.kind.engine == "elasticsearch" else "opensearch"
    at = f"{scheme}+{server.url}?replicas=0"

    def there() -> set[str]:
        return {name for name in server.request("GET", "_all/_settings") if name.startswith("boc-estimate")}

    result = boc("estimate", many, "--items", 50_000_000, "--sample", 1500, "--at", at, "--code", "scalar:8", "--json")
    assert result.exit_code == 0, result.output
    assert there() == set()
    found = json.loads(result.stdout)
    assert found["shards"] == 5
    assert 0.5 * 4 * IDENTITY.dim < found["bytes_each"]["vectors"] < 2 * 4 * IDENTITY.dim
    assert 8 < found["bytes_each"]["postings"] < 8 * 8
    assert sum(found["bytes_each"].values()) < 600  # once, not in the source or for recovery again
    with FeatureFiles([many]) as file:
        codec = fit_code(file, global_code("scalar", z=8))

        def stop(items: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            measure(file, at, codec, new_manifest(file, codec), size=1000, tick=stop)
    assert there() == set()
