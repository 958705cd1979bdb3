"""Export the terms of an index to other engines, as JSON Lines for Anserini, Pyserini and Seismic,
or as CIFF.

    # photos.image.jsonl, photos.text.queries.jsonl, ...
    python -m bench.datasets.terms photos -o photos.jsonl
    python -m bench.datasets.terms photos -o photos.ciff --at elastic+http://localhost:9200

A JSON line is ``{"id": ..., "contents": ..., "vector": {term: frequency}}``. CIFF is the Common
Index File Format (Lin et al., SIGIR 2020), a sequence of protocol buffer messages, each preceded by
its length. Posting lists are in term order, and each document number is stored as the difference
from the previous number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import click
import numpy as np
import orjson
from numpy.typing import NDArray
from scipy import sparse

from bench.options import PATH
from boc import plugins
from boc.atomic_files import replacing
from boc.codecs import SurrogateCodec
from boc.manage.build import PLACE
from boc.outputs import begins, check_output
from boc.plugins import Engine
from boc.types import MODALITIES, Embeddings, Item, Modality, TermMatrix

READ = 1000  # items read at a time
BYTES = 5  # maximum bytes of a number below 2**32 in base 128


def write_terms(index: Engine, path: Path) -> list[Path]:
    """Write the terms of an index to files beside ``path``, NAME.image.jsonl and NAME.text.jsonl,
    or the same names with ``.ciff``. Write the items, encoded as queries, to
    NAME.image.queries.jsonl and NAME.text.queries.jsonl.

    For concept codes, queries are not written, because an index stores only rounded concepts.
    Returns the written paths. Raises BocError for other file types.
    """
    codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
    is_lines = begins(b'{"id":')
    written = []
    for modality in MODALITIES:
        if not index.manifest.items[modality]:
            continue
        blocks = _blocks(index, modality, None)
        written.append(path.with_suffix(f".{modality}{path.suffix}"))
        if path.suffix == ".ciff":
            _write(written[-1], _ciff(blocks), _is_ciff)
        else:
            _write(written[-1], _lines(blocks), is_lines)
        if not codec.reads_concepts:
            queries = _blocks(index, modality, codec)
            written.append(path.with_suffix(f".{modality}.queries.jsonl"))
            _write(written[-1], _lines(queries), is_lines)
    return written


def _write(path: Path, lines: Iterator[bytes], is_ours: Callable[[Path], bool]) -> None:
    check_output(path, is_ours)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(lines)


def _blocks(
    index: Engine,
    modality: Modality,
    codec: SurrogateCodec | None,
) -> Iterator[tuple[list[Item], TermMatrix]]:
    """Yield items of one modality with their terms, or with their terms as queries if a ``codec``
    is given."""
    items = (item for item in index.items() if item.modality == modality)
    while some := list(islice(items, READ)):
        ids = [item.id for item in some]
        if codec is None:
            yield some, index.terms(ids)
        else:
            vectors = index.vectors(ids).astype(np.float32)
            yield some, codec.encode_queries(Embeddings(modality, vectors))


def _lines(blocks: Iterator[tuple[list[Item], TermMatrix]]) -> Iterator[bytes]:
    for items, terms in blocks:
        names = [f"t{term}" for term in terms.indices.tolist()]
        weights = terms.data.tolist()
        ends = terms.indptr.tolist()
        for item, start, end in zip(items, ends, ends[1:], strict=False):
            vector = dict(zip(names[start:end], weights[start:end], strict=True))
            document = {"id": item.id, "contents": "", "vector": vector}
            if item.modality == "text":
                document["contents"] = item.content
            yield orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _ciff(blocks: Iterator[tuple[list[Item], TermMatrix]]) -> Iterator[bytes]:
    ids = []
    parts = []
    for items, terms in blocks:
        ids += [item.id for item in items]
        parts.append(terms)
    rows = sparse.vstack(parts, format="csr")
    lengths = rows.sum(axis=1).tolist()
    lists = rows.tocsc()
    lists.sort_indices()
    used = np.flatnonzero(np.diff(lists.indptr)).tolist()
    names = {f"t{term}": term for term in used}
    yield _message(
        1,
        len(names),
        len(ids),
        len(names),
        len(ids),
        sum(lengths),
        sum(lengths) / len(ids),
        "impacts of boc; a score is the sum of products",
    )
    for name in sorted(names, key=str.encode):
        span = slice(*lists.indptr[names[name] : names[name] + 2])
        gaps = np.diff(lists.indices[span], prepend=0)
        frequencies = lists.data[span]
        yield _message(name, len(gaps), int(frequencies.sum()), _postings(gaps, frequencies))
    for number, (key, length) in enumerate(zip(ids, lengths, strict=True)):
        yield _message(number, key, length)


def _message(*values: int | float | str | bytes) -> bytes:
    """Return a message, preceded by its length, with ``values`` as fields 1, 2, ... Values of type
    bytes are already encoded fields."""
    body = b""
    for number, value in enumerate(values, 1):
        if isinstance(value, bytes):
            body += value
        elif isinstance(value, str):
            body += bytes([number << 3 | 2]) + _varint(len(value.encode())) + value.encode()
        elif isinstance(value, float):
            body += bytes([number << 3 | 1]) + struct.pack("<d", value)
        else:
            body += bytes([number << 3]) + _varint(value)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    return bytes([value & 127 | 128]) + _varint(value >> 7)


def _postings(*columns: NDArray[np.integer]) -> bytes:
    """Return field 4 of a posting list: for each posting, a message of two numbers."""
    cells = []
    used = []
    for number, column in enumerate(columns, 1):
        digits = column[:, None].astype(np.int64) >> 7 * np.arange(BYTES)
        there = digits > 0
        there[:, 0] = True
        more = np.pad(there[:, 1:], ((0, 0), (0, 1)))
        tag = np.full((len(column), 1), number << 3)
        cells += [tag, digits & 127 | more << 7]
        used += [np.ones_like(tag, bool), there]
    shown = np.concatenate(used, axis=1)
    tags = np.full(len(shown), 4 << 3 | 2)
    head = np.stack([tags, shown.sum(axis=1)], axis=1)
    table = np.concatenate([head, *cells], axis=1).astype(np.uint8)
    kept = np.concatenate([np.ones_like(head, bool), shown], axis=1)
    return bytes(table[kept])


def _is_ciff(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(3)[1:] == b"\x08\x01"  # version 1, after the length of the header


@click.command()
@click.argument("name")
@click.option(
    "-o",
    "--out",
    required=True,
    type=PATH,
    help="File to write, FILE.jsonl or FILE.ciff.",
)
@click.option("--at", default=PLACE, show_default=True, help="Address of the index.")
def main(name: str, out: Path, at: str) -> None:
    """Write the terms of the index NAME, and the terms of its items as queries, for other
    engines."""
    if out.suffix not in (".jsonl", ".ciff"):
        raise click.UsageError(f"{out} is neither FILE.jsonl nor FILE.ciff; name one of them")
    for path in write_terms(plugins.backend(at).open(name), out):
        click.echo(str(path))


if __name__ == "__main__":
    main()
