"""A query that names a file, a date or a word in another form finds what it names."""

from pathlib import Path

from PIL import Image

from boc import Searcher, build_index
from boc.manage.sync import sync_index

XMP = """<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description
xmlns:d="http://purl.org/dc/elements/1.1/"><d:subject>{}</d:subject></r:Description></r:RDF>"""
BERLIN = "trips/BerlinTrip2019.png"
MAY = "IMG_20240501_101500.png"
JANUARY = "IMG_20240105_101500.png"
SPACE = "rome/don't panic 2.png"


def test_what_a_query_names_is_found(tmp_path: Path, library: Path):
    photos = tmp_path / "p"
    for name in (BERLIN, MAY, JANUARY, SPACE):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), "red").save(photos / name)
    sidecar = photos / f"{MAY}.xmp"
    sidecar.write_text(XMP.format("box"))
    at = f"file:{tmp_path}/at"
    build_index("p", photos, encoder=f"tern:{library}/model", at=at)
    searcher = Searcher.open("p", at)
    for query, filters, ids, note in (
        ("1.5.2024", [], [MAY], "taken=2024-05-01"),
        ("01/05/2024", [], [JANUARY, MAY], "taken=2024-05-01|2024-01-05"),
        ("2019", [], [BERLIN], "no picture was taken on this date (taken=2019)"),
        ("IMG_20240501_101501", [], [], f"similar names: {MAY[:-4]}"),
        ("don't panic 2", [], [SPACE], ""),
        ("a box", [f"id={MAY}", f"id={SPACE}"], [MAY, SPACE], ""),
        ("a box", [f"id!={MAY}|{BERLIN}", "taken=2024"], [JANUARY], ""),
    ):
        one = searcher.search(query, filters=filters)
        for hits in (one, *searcher.search_texts([query], filters=filters)):
            assert sorted(hit.id for hit in hits) == ids, query
            assert note in " ".join(hits.notes)
    for words, id in (
        ("berlin", BERLIN),
        ("BerlinTrip", BERLIN),
        ("boxes", MAY),
    ):
        assert [hit.id for hit in searcher.search_words([words])[0]] == [id]
    for path in (sidecar, photos / f"{JANUARY[:-4]}.xmp"):
        path.write_text(XMP.format("puppy"))
        assert sync_index("p", photos, at=at).encoded == 0
        found = Searcher.open("p", at).search_words(["puppies"])[0]
        assert [hit.id[:16] for hit in found] == [path.name[:16]]
        path.unlink()
        sync_index("p", photos, at=at)
        assert not Searcher.open("p", at).search_words(["puppy"])[0]
