"""Views: what tables show of the rows of each script, with the columns, their order, and the number of digits.

A view takes rows and words that select among them, and gives a heading and lines of cells in Markdown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch

from bench.report.rows import Rows
from bench.report.server_views import beside, beyond, extrapolated, growing, planned, server_loads
from bench.report.tables import (
    Row,
    Table,
    ViewError,
    cell,
    everything,
    joined,
    listed,
    loading,
    number,
    of,
    ranged,
    share,
    share_of,
    summed,
)

DIRECTIONS = ("text to image", "image to text")
CUTOFFS = (1, 5, 10)


def models(rows: Rows) -> Table:
    """One line per encoder."""
    head = ["model, ranked by"]
    for told in ("sentence to picture", "picture to sentence"):
        head += [f"{told} R@1 / 5 / 10", "+- of R@10", "median rank", "NDCG@25"]
    lines = []
    for model, scored in dict.fromkeys((row["model"], row["scored by"]) for row in rows.table):
        line = [f"{model}, {scored}"]
        for direction in DIRECTIONS:
            row = cell(rows, model=model, direction=direction, **{"scored by": scored})
            line += [
                joined(row, [f"R@{k}" for k in CUTOFFS]), number(row["R@10 +-"]), number(row["median rank"], 0),
                share(row["NDCG@25 ROUGE-L"]),
            ]  # fmt: skip
        lines.append(line)
    return Table(head, lines)


def index(rows: Rows) -> Table:
    """R@10 of the vectors, and of the default code with and without re-ranking."""
    found = {d: cell(rows, code="scalar", chain="default", direction=d) for d in DIRECTIONS}
    one = found[DIRECTIONS[0]]
    kept = f"the index, {one['z']} terms per item and {one['query z']} per query"
    measures = {"dense vectors": "dense", f"{kept}, not re-ranked": "Rm=1"}
    measures["the same, 10 candidates re-ranked per hit"] = "Rm=10"
    lines = [[told, *(number(found[d][column]) for d in DIRECTIONS)] for told, column in measures.items()]
    return Table(["R@10, %", "sentence to picture", "picture to sentence"], lines)


def table1(rows: Rows, paper: str = "") -> Table:
    """Table I; with the word "paper", beside the paper's own figures, which are of other data."""
    directions = {"image": "image retrieval", "sentence": "sentence retrieval"}
    head = ["Model", *(f"{told} R@1 / 5 / 10" for told in directions.values()), "sum", "+-"]
    sets = {"coco": "COCO", "flickr30k": "Flickr30K"} if paper else {}
    head += [f"paper, {name}: {told}" for name in sets.values() for told in directions.values()]
    lines, section = [], ""
    for row in (row for row in rows.table if not row["minus"]):
        if row["section"] != section:
            section = row["section"]
            lines.append([f"**{section}**", *[""] * (len(head) - 1)])
        line = [row["model"], *(joined(row, [f"{d} R@{k}" for k in CUTOFFS]) for d in directions)]
        line += [number(row["sum"]), number(row["sum +-"])]
        for name in sets:
            line += [joined(row, [f"paper {name} {d} R@{k}" for k in CUTOFFS]).strip(" /") for d in directions]
        lines.append(line)
    return Table(head, lines)


def claims(rows: Rows) -> Table:
    """Each claim with what decides."""
    return listed(rows.table, {
        "the paper's claim": of("claim"),
        "here": lambda row: f"**{row['verdict']}**",
        "difference, points": difference,
        "rows": lambda row: ", ".join(part for part in (row["data"], row["direction"]) if part and part != "both"),
        "figures": of("figures"),
        "the paper's own, on other data": of("paper"),
        "as the codes are read": lambda row: row.get("reading", ""),
    })  # fmt: skip


def difference(row: Row) -> str:
    """What decides a claim, with its standard error; empty where nothing does."""
    return f"{float(row['difference']):+.1f} +- {float(row['error']):.1f}" if row["difference"] else ""


def verdicts(rows: Rows) -> Table:
    """Each claim in one line: its verdicts, and the differences that decide, in the order of the rows."""
    lines = []
    for claim in dict.fromkeys(row["claim"] for row in rows.table):
        found = [row for row in rows.table if row["claim"] == claim]
        counts = Counter(row["verdict"] for row in found)
        told = ", ".join(f"**{verdict}**" + (f" {n} of {len(found)}" if n < len(found) else "")
                         for verdict, n in counts.items())  # fmt: skip
        lines.append([claim, told, "; ".join(filter(None, map(difference, found))), found[0].get("reading", "")])
    return Table(["the paper's claim", "here", "difference, points +- standard error", "as the codes are read"], lines)


def postings(rows: Rows, what: str = "recall", *chosen: str) -> Table:
    """Recall of the exact top ten (or "right", R@10) by candidates; ``chosen`` are patterns of code and setting."""
    depths = list(dict.fromkeys(row["R"] for row in rows.table))
    lines = []
    for code, setting in dict.fromkeys((row["code"], row["setting"]) for row in rows.table):
        if chosen and not any(fnmatch(f"{code} {setting}", pattern) for pattern in chosen):
            continue
        found = {r["R"]: r for r in rows.table if (r["code"], r["setting"]) == (code, setting)}
        one = next(iter(found.values()))
        line = [code, setting, number(one["postings"], 0), number(one["bytes"], 0)]
        for depth in depths:
            value = found[depth][what] if depth in found else ""
            line.append(share(value) if what == "recall" else number(value))
        lines.append(line)
    told = "recall" if what == "recall" else "R@10"
    head = ["code", "terms per item / per query", "postings per query", "bytes per item"]
    return Table([*head, *(f"{told}, R = {depth}" for depth in depths)], lines)


def race(rows: Rows, at: str = "0.95") -> Table:
    """Every index at its fastest setting that reached a recall where settings were chosen."""

    def index_name(row: Row) -> str:
        name = f"{row['engine']} {row['index']}"
        return f"**{name}**" if row["ours"] == "1" else name

    took = {"of it the server, ms": of("took_ms", 2)} if any(row["took_ms"] for row in rows.table) else {}
    read = {"vectors read": of("vectors_read", 0)} if any(row.get("vectors_read") for row in rows.table) else {}
    return listed([row for row in rows.table if at in row["at"].split()], {
        "index": index_name,
        "setting": of("setting"),
        **read,
        "recall@10": share_of("recall"),
        "p50 ms (least-most round)": lambda row: ranged(row, "p50", "_ms"),
        **took,
        "p95": of("p95_ms", 2),
        "p99": of("p99_ms", 2),
        "queries/s, 1 / 2 threads": lambda row: joined(row, ["qps_1", "qps_2"], 0),
        "learning + loading, s": lambda row: f"{number(row['fit_s'], 0)} + {loading(row):,.0f}",
        "disk MB: index + vectors + code + rest":
            lambda row: summed(row, "index_mb", "vectors_mb", "codec_mb", "rest_mb"),
        "memory MB, own / mapped": lambda row: " / ".join(number(row[key], 0) or "-" for key in ("anon_mb", "file_mb")),
    })  # fmt: skip


def growth(rows: Rows) -> Table:
    """A number of items a line; or, under a limit of memory, a limit."""
    if "limit_mb" in rows.columns:
        return limited(rows)
    columns = {
        "p50_ms": ("p50 ms", 2), "p95_ms": ("p95", 2), "p99_ms": ("p99", 2), "fit_s": ("learn s", 1),
        "load_s": ("load s", 1), "cpu_s": ("processor s of both", 1), "build_peak_mb": ("builder MB", 0),
        "disk_mb": ("disk MB", 0), "anon_mb": ("memory MB", 1), "file_mb": ("mapped MB", 0),
    }  # fmt: skip
    known = {name: of(key, digits) for key, (name, digits) in columns.items() if key in (*rows.columns, "load_s")}
    table = [{**row, "load_s": str(loading(row))} for row in rows.table]
    return listed(table, {"items": of("n", 0), "setting": of("setting"), "recall": share_of("recall"), **known})


def limited(rows: Rows) -> Table:
    """An index with and without a limit of memory."""
    building = {"build s": of("build_s", 0), "builder used MB": of("build_used_mb", 0)}
    return listed(rows.table, {
        "items": of("n", 0), "index MB": of("index_mb", 0), "limit MB": of("limit_mb", 0),
        **(building if any(row["build_s"] for row in rows.table) else {}),
        "recall": of("recall", 3), "p50 ms": of("p50_ms", 2),
        "p95": of("p95_ms", 2), "p99": of("p99_ms", 2), "reads from the disk (major faults)": of("major_faults", 0),
        **({"kB read per query": of("read_kb", 0)} if "read_kb" in rows.columns else {}),
        "search used MB": of("used_mb", 0),
    })  # fmt: skip


def alignment(rows: Rows, metric: str = "mrsw", stored: str = "float16") -> Table:
    """Re-ranking by an alignment beside that by the dot product."""
    head = ["Rm"]
    for told in ("sentence to picture", "picture to sentence"):
        head += [f"{told}, `dot` R@1 / 10", f"`{metric}`", "added ms"]
    lines = []
    for rm in dict.fromkeys(row["Rm"] for row in rows.table):
        line = [rm]
        for direction in DIRECTIONS:
            same = {"direction": direction, "Rm": rm, "stored as": stored}
            dot, other = (cell(rows, metric=name, **same) for name in ("dot", metric))
            line += [joined(dot, ["R@1", "R@10"]), joined(other, ["R@1", "R@10"]), number(other["ms"])]
        lines.append(line)
    return Table(head, lines)


def metrics(rows: Rows, rm: str = "10", stored: str = "float16") -> Table:
    """One line per metric."""
    head = ["metric", *(f"{told} R@1 / 10" for told in ("sentence to picture", "picture to sentence"))]
    lines = []
    for metric in dict.fromkeys(row["metric"] for row in rows.table if row["metric"] != "none"):
        found = [cell(rows, metric=metric, direction=d, Rm=rm, **{"stored as": stored}) for d in DIRECTIONS]
        lines.append([f"`{metric}`", *(joined(row, ["R@1", "R@10"]) for row in found)])
    return Table(head, lines)


def labels(rows: Rows) -> Table:
    """One line per kind of label."""
    return listed(rows.table, {
        "labels": of("labels"), "terms": of("terms"), "with words": of("with words"),
        "share of top pictures": lambda row: f"{share(row['hits'], 2)} +- {share(row['hits +-'], 2)}",
        "chance": share_of("chance", 2), "terms above chance": share_of("above chance", 2),
    })  # fmt: skip


def encoding(rows: Rows) -> Table:
    """One line per code."""
    return listed(rows.table, {
        "code": of("code"), "vectors per second": of("rows/s", 0),
        "of faiss's speed (least-most)": lambda row: f"{row['ratio to faiss']} ({row['lowest']}-{row['highest']})",
        "learning, s": of("fit s", 1), "peak memory, MB": of("peak MB", 0),
    })  # fmt: skip


def learning(rows: Rows) -> Table:
    """One line per learner."""
    depths = (100, 300, 1000)
    return listed(rows.table, {
        "learner": lambda row: "boc" if row["learner"].startswith("boc,") else row["learner"],
        "vectors": of("rows", 0), "centroids": of("terms", 0),
        "processor s": of("processor_s", 1), "cosine to the nearest": of("cosine", 3),
        **{f"recall@10, R={depth}": share_of(f"recall_{depth}") for depth in depths},
        "candidates per query": of("candidates", 0),
    })  # fmt: skip


def kernel(rows: Rows) -> Table:
    """One line per index."""
    return listed(rows.table, {
        "index": of("index"), "setting": of("setting"), "recall@10": share_of("recall"), "p50 ms": of("p50_ms", 3),
        "of it, terms of the query": of("encode_ms", 3), "posting lists": of("kernel_ms", 3),
        "postings per query": of("postings", 0), "ns per posting": lambda row: ranged(row, "ns"),
        "of a bare loop in C": of("scatter_ns", 2), "cold `boc search`, s": lambda row: ranged(row, "cold", "_s"),
    })  # fmt: skip


MEASURES = (  # heading, column of the rows, words for a ratio below one and above
    ("one query", "p50", ("faster", "slower")),
    ("batches, one thread", "qps_1", ("fewer per second", "more per second")),
    ("loading", "build", ("sooner", "later")),
    ("with learning", "with_fit", ("sooner", "later")),
    ("disk", "disk", ("smaller", "larger")),
    ("own memory", "anon", ("less", "more")),
)
SEVERAL = 1.05  # times; a smaller factor counts as even


def ratios(rows: Rows, at: str = "", race_of: str = "", ours: str = "") -> Table:
    """Ours beside theirs at equal recall; without columns that neither side of any pair has."""
    chosen = {key: word for key, word in (("at", at), ("race", race_of), ("ours", ours)) if word}
    found = [row for row in rows.table if all(row[key] == word for key, word in chosen.items())]
    measures = {
        name: lambda row, column=column, words=words: ratio(row, column, words)[0]
        for name, column, words in MEASURES
        if any(row[column] for row in found)
    }
    return listed(found, {
        "ours (recall@10)": lambda row: f"{row['ours']} ({share(row['recall'])})",
        "theirs (recall@10)": lambda row: f"{row['theirs']} ({share(row['their_recall'])})",
        **measures,
    })  # fmt: skip


def ratio(row: Row, column: str, words: tuple[str, str]) -> tuple[str, str]:
    """So many times faster or slower, and the like; and whose it is: ours, theirs, or even."""
    if not row[column]:
        return "", ""
    value = float(row[column])
    if value == 0:
        return f"none, {words[0]}", "ours"
    times, word = (value, words[1]) if value > 1 else (1 / value, words[0])
    better = value > 1 if column.startswith("qps") else value < 1
    verdict = row.get(f"{column}_verdict", "") or ("even" if times < SEVERAL else "ours" if better else "theirs")
    told = f"{times:.{1 if times < 100 else 0}f} x {word}" if times >= SEVERAL else "even"
    if row.get(f"{column}_least"):
        ends = sorted(float(row[column + end]) for end in ("_least", "_most"))
        told += " ({:.1f}-{:.1f})".format(*(ends if value > 1 else [1 / end for end in reversed(ends)]))
    return told, verdict


def truth(rows: Rows) -> Table:
    """A family of sentences and a metric per line, the value of a random order in parentheses."""
    table = [row for row in rows.table if row["measure"] != "pointing"]
    names = list(dict.fromkeys(row["measure"] for row in table))
    lines = []
    for by, family in dict.fromkeys((row["by"], row["family"]) for row in table):
        mine = {row["measure"]: row for row in table if (row["family"], row["by"]) == (family, by)}
        shares = [with_chance(mine[name]) if name in mine else "" for name in names]
        lines.append([f"{family}, {by}", next(iter(mine.values()))["count"], *shares])
    return Table(["family, ranked by", "sentences", *names], lines)


def pointing(rows: Rows) -> Table:
    """The pointing game, by the number of things in a picture."""
    table = [row for row in rows.table if row["measure"] == "pointing"]
    lines = [[row["family"], row["by"], row["count"], with_chance(row)] for row in table]
    return Table(["pictures with", "region by", "things", "on the thing"], lines)


def cutoff(rows: Rows) -> Table:
    """A family of sentences and a metric per line: what is above the line."""
    return listed(rows.table, {
        "sentences, ranked by": lambda row: f"{row['family']}, {row['by']}", "number": of("count"),
        "precision": share_of("precision"), "recall": share_of("recall"), "pictures above the line": of("shown", 1),
        "empty answers": share_of("empty"),
    })  # fmt: skip


def ablations(rows: Rows, number: str, digits: int = 1) -> Table:
    """A line per line of Table 4, 5 or 6 of VSRN++: what was found, beside what the paper prints."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows.table:
        if row["table"] == number:
            lines.setdefault(row["line"], {})[row["measure"]] = f"{float(row['found']):.{digits}f} ({row['printed']})"
    measures = list(next(iter(lines.values()), {}))
    return Table(["line", *measures], [[line, *(found[m] for m in measures)] for line, found in lines.items()])


def times(rows: Rows) -> Table:
    """The seconds of Table 4 of VSRN++."""
    return ablations(rows, "4", digits=2)


def with_chance(row: Row) -> str:
    return f"{share(row['share'])} ({share(row['chance'])})"


View = Callable[..., Table]
VIEWS: dict[str, dict[str, View]] = {
    "models.py": {"models": models},
    "sparsity_recall.py": {"index": index},
    "table1.py": {"table1": table1},
    "claims.py": {"claims": claims, "verdicts": verdicts},
    "recall_postings.py": {"postings": postings},
    "race.py": {"at": race},
    "ratios.py": {"ratios": ratios},
    "embedded_growth.py": {"growth": growth},
    "server_memory.py": {"memory": beyond, "loads": server_loads, "planned": planned},
    "server_load.py": {"growing": growing, "beside": beside, "extrapolated": extrapolated},
    "alignment_rerank.py": {"alignment": alignment, "metrics": metrics},
    "encoding_speed.py": {"encoding": encoding},
    "embedded_kernel.py": {"kernel": kernel},
    "learning.py": {"learning": learning},
    "labels.py": {"labels": labels},
    "cutoff.py": {"cutoff": cutoff},
    "vsrnpp_tables.py": {"ablations": ablations, "times": times},
    "scene_truth.py": {"truth": truth, "pointing": pointing},
}


PLOTTED = ("sparsity_recall.py", "codebook_size.py")  # a report's plots say it all


def table(rows: Rows, name: str, *words: str) -> Table:
    """A view of rows by its name; "all" has every column."""
    known = {"all": everything, **VIEWS.get(rows.head["script"], {})}
    if name not in known:
        raise ViewError(f"{rows.name}: no view {name!r}; known: {', '.join(known)}")
    return known[name](rows, *words)


def shown(rows: Rows) -> Iterator[tuple[str, Table]]:
    """The views that a report has, each with a title."""
    script = rows.head["script"]
    if script == "race.py":
        for at in sorted({at for row in rows.table for at in row["at"].split()}):
            yield f"At recall {at} (of the settings chosen on other queries)", race(rows, at)
    elif script == "table1.py":
        yield "Table I, beside the paper's figures on its own data", table1(rows, "paper")
    elif script == "recall_postings.py":
        yield "Recall of the exact top ten", postings(rows)
        yield "R@10 of the right item, %", postings(rows, "right")
    elif script == "vsrnpp_tables.py":
        yield "Ablations, Table 5 (printed for Flickr30K)", ablations(rows, "5")
        yield "Orders of regions, Table 6 (printed for MS-COCO)", ablations(rows, "6")
        yield "Times, Table 4 (printed for Flickr30K)", times(rows)
    elif script == "server_memory.py":
        yield "After as many other queries", beyond(rows, "warm")
        yield "First pass, nothing in memory", beyond(rows, "cold")
    elif script in PLOTTED:
        return
    elif script in VIEWS:
        yield "", next(iter(VIEWS[script].values()))(rows)
    else:
        yield "", everything(rows)
