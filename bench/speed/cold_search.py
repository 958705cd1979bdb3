"""Seconds of `boc search` as a process of its own, which opens everything anew.

    python -m bench.speed.cold_search NAME --text "a dog on the beach" > cold-search.csv
    python -m bench.speed.cold_search NAME --like 1.jpg > cold-search.csv

A row has a command, and the median, least and most of its seconds, after a first start that does not count: `boc
--version`, which loads little; a search by an item of the index, which loads no encoder; a search by a sentence.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

import click

from bench.report.rows import Writer

COLUMNS = ("command", "seconds", "least", "most")
BOC = (sys.executable, "-c", "from boc.cli import main; main()")


def seconds(words: tuple[str, ...], starts: int) -> list[float]:
    """Measure the seconds of each start of a command, but the first."""
    times = []
    for _ in range(1 + starts):
        start = time.perf_counter()
        subprocess.run([*BOC, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return times[1:]


@click.command()
@click.argument("name")
@click.option("--at", default="file:boc-data", show_default=True)
@click.option("--text", help="A sentence to search by.")
@click.option("--like", help="An item of the index to search by.")
@click.option("--starts", default=7, show_default=True, type=click.IntRange(1))
def main(name: str, at: str, text: str | None, like: str | None, starts: int) -> None:
    """Start searches of the index NAME."""
    search = ("search", name, "--at", at)
    commands: dict[str, tuple[str, ...]] = {"--version": ("--version",)}
    if like is not None:
        commands["search by an item"] = (*search, "--like", like)
    if text is not None:
        commands["search by a sentence"] = (*search, text)
    with Writer(sys.stdout, __file__, click.get_current_context().params, COLUMNS, extras=("torch",)) as out:
        for label, words in commands.items():
            times = seconds(words, starts)
            out.write(label, *(f"{value:.3f}" for value in (median(times), min(times), max(times))))


if __name__ == "__main__":
    main()
