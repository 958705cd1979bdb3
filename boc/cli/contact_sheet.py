"""Write contact sheets, self-contained HTML pages that show the hits of queries."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from boc.atomic_files import write_text
from boc.search.hits import figures
from boc.types import Hit

STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #888; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2.5rem auto;
  padding: 0 1.25rem; }
h1 { font-size: 1.05rem; font-weight: 600; margin: 2.5rem 0 .9rem; }
h1::before { content: "\\201C"; } h1::after { content: "\\201D"; }
ol { list-style: none; padding: 0; margin: 0; display: grid; gap: 14px;
     grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); }
figure { margin: 0; }
img { width: 100%; aspect-ratio: 1; object-fit: cover; border-radius: 8px; display: block; }
figcaption { font-size: .78rem; color: var(--quiet); margin-top: .3rem; display: flex;
  justify-content: space-between;
             gap: .6rem; }
figcaption span:first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
blockquote { margin: 0; padding: .9rem 1rem; border: 1px solid var(--line);
  border-radius: 8px; height: 100%;
             box-sizing: border-box; }
"""


def write_sheet(path: Path, answers: Sequence[tuple[str, Sequence[Hit]]]) -> None:
    """Write an HTML page with a grid of hits for each query. Pictures are embedded, so the page
    needs no other files."""
    sections = "\n".join(
        f"<h1>{escape(query)}</h1>\n<ol>\n{figures(hits)}\n</ol>" for query, hits in answers
    )
    title = escape(answers[0][0]) if answers else "no query"
    write_text(
        path,
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} - "
        f"boc</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{sections}\n</body>\n</html>\n",
    )
