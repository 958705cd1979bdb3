/* Candidates of a query in several parts, and selection of the k best by (-score, id). Candidates are listed part by
 * part, in ascending row order. The rows of a part are sorted by id, so the first of two candidates in a part has the
 * smaller id. Ids are read only if candidates in several parts have equal scores. */

#ifndef BOC_RANKING_H
#define BOC_RANKING_H

#include "topk.h"

/* Ids of a part: UTF-8 bytes, which sort in the same order as code points, and offsets. */
typedef struct {
    const uint8_t *bytes;
    const int64_t *offsets;
    int64_t size; /* number of bytes */
} Ids;

/* Candidate at a ``place`` in the list, and its id, which is not set if all candidates are in the same part. */
typedef struct {
    uint32_t rank;
    int64_t place, length;
    const uint8_t *id;
} Ranked;

typedef struct {
    const Ids *ids; /* ids of each part; NULL if there is only one part */
    int64_t *rows, n;
    int32_t *parts;
    uint32_t *ranks;   /* sort keys of the scores */
    uint8_t *dropped;  /* one mark per candidate, all 0 between calls: keep_largest clears the marks */
    Ranked *ranked;    /* room for all candidates: drop_ties lists ties in the first part first, other ties last */
} Candidates;

static int best_first(const void *one, const void *other)
{
    const Ranked *a = one, *b = other;
    if (a->rank != b->rank)
        return (a->rank < b->rank) - (a->rank > b->rank);
    if (a->id != NULL) {
        const int order = memcmp(a->id, b->id, (size_t)(a->length < b->length ? a->length : b->length));
        if (order || a->length != b->length)
            return order ? order : a->length < b->length ? -1 : 1;
    }
    return (a->place > b->place) - (a->place < b->place);
}

static Ranked ranked_at(const Candidates *c, int64_t place)
{
    Ranked found = {c->ranks[place], place, 0, NULL};
    if (c->ids != NULL) {
        const Ids *ids = c->ids + c->parts[place];
        const int64_t begin = ids->offsets[c->rows[place]], end = ids->offsets[c->rows[place] + 1];
        const int sound = 0 <= begin && begin <= end && end <= ids->size; /* damaged ids count as empty */
        found.id = ids->bytes + (sound ? begin : 0);
        found.length = sound ? end - begin : 0;
    }
    return found;
}

/* Keep the ``kept`` candidates with the smallest ids among the ``tied`` candidates of a rank, and drop the others. The
 * candidates in the first part, which is usually the largest, are sorted by id, so a binary search reads only a few
 * ids. */
static void drop_ties(Candidates *c, uint32_t rank, int64_t tied, int64_t kept)
{
    int64_t mine = 0, others = 0, part = -1;
    for (int64_t i = 0; i < c->n; i++)
        if (c->ranks[i] == rank && (part < 0 || c->parts[i] == part)) {
            part = c->parts[i];
            c->ranked[mine++].place = i;
        } else if (c->ranks[i] == rank)
            c->ranked[tied - ++others] = ranked_at(c, i);
    const Ranked *rest = c->ranked + mine;
    qsort(c->ranked + mine, (size_t)others, sizeof *rest, best_first);
    int64_t low = kept > others ? kept - others : 0, high = kept < mine ? kept : mine; /* bounds for the first part */
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        const Ranked one = ranked_at(c, c->ranked[middle].place);
        const int before = best_first(&one, rest + kept - middle - 1) < 0;
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    for (int64_t i = low; i < tied; i++)
        c->dropped[c->ranked[i].place] = i < mine || i - mine >= kept - low;
}

/* Keep the k candidates with the largest ranks, in their original order. Among equal ranks, smaller ids are kept. */
DISPATCHED static void keep_largest(Candidates *c, int64_t k)
{
    if (c->n <= k)
        return;
    const uint32_t least = reached(c->ranks, (size_t)c->n, (size_t)k);
    uint32_t above = 0, equal = 0; /* as wide as ranks, so that as many are compared at a time */
    int64_t kept = 0;
    for (int64_t i = 0; i < c->n; i++) {
        above += c->ranks[i] > least;
        equal += c->ranks[i] == least;
    }
    if (above + equal > k)
        drop_ties(c, least, equal, k - above);
    for (int64_t i = 0; i < c->n; i++) {
        const int keep = c->ranks[i] >= least && !c->dropped[i];
        c->dropped[i] = 0;
        c->rows[kept] = c->rows[i];
        c->parts[kept] = c->parts[i];
        c->ranks[kept] = c->ranks[i];
        kept += keep;
    }
    c->n = kept;
}

/* Write the places of all candidates to ``ranked``, best first. */
static void order(Candidates *c)
{
    for (int64_t i = 0; i < c->n; i++)
        c->ranked[i] = ranked_at(c, i);
    qsort(c->ranked, (size_t)c->n, sizeof *c->ranked, best_first);
}

#endif
