"""Why is this picture the first? The terms that sentence and picture share, and the regions behind the words.

    python examples/explain_hit.py photos file:boc-data "a dog runs through the snow"

Writes why.html, which draws it.
"""

import sys
from pathlib import Path

from boc.explain.page import write_page
from boc.explain.score import explain
from boc.search import Searcher


def main(name: str, at: str, sentence: str) -> None:
    searcher = Searcher.open(name, at)
    best = searcher.search(sentence, k=1)[0].item
    found = explain(searcher, best.id, sentence)
    print(f"{best.id}: {found.score}, of {len(found.matches)} terms")
    for match in found.matches[:5]:
        words = ", ".join(match.label.words) if match.label else ""
        print(f"{float(found.share(match)):6.1%}  t{match.term}  {match.product}  {words}")
    if found.alignment is not None and found.query_parts is not None and found.item_parts is not None:
        for word, cosines in zip(found.query_parts.names, found.alignment, strict=True):
            print(f"{word}: region {found.item_parts.names[cosines.argmax()]}, cosine {cosines.max():.2f}")
    write_page(Path("why.html"), found, 5)


if __name__ == "__main__":
    main(*sys.argv[1:])
