/* Candidates of a query in several parts, and the k best of them by (-score, id).

   Candidates are listed part by part, by ascending row. Rows of a part are ordered by id, so that of two candidates of
   one part the first has the smaller id; ids are read only where candidates of several parts have equal scores. */

#ifndef BOC_RANKING_H
#define BOC_RANKING_H

#include "topk.h"

/* The ids of a part: UTF-8, whose order is that of code points, and offsets. */
typedef struct {
    const uint8_t *bytes;
    const int64_t *offsets;
    int64_t size; /* of the bytes */
} Ids;

/* A candidate at some ``place`` of the list, and its id: none if all candidates are of one part. */
typedef struct {
    uint32_t rank;
    int64_t place, length;
    const uint8_t *id;
} Ranked;

typedef struct {
    const Ids *ids; /* of each part; NULL if there is one part */
    int64_t *rows, n;
    int32_t *parts;
    uint32_t *ranks;   /* sort keys of their scores */
    uint8_t *dropped;  /* room for a mark each, all 0 between calls: keep_largest takes back what drop_ties sets */
    Ranked *ranked;    /* room for all: drop_ties lists ties of the first part from the begin, others from the end */
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
        const int sound = 0 <= begin && begin <= end && end <= ids->size; /* or damaged: then it counts as empty */
        found.id = ids->bytes + (sound ? begin : 0);
        found.length = sound ? end - begin : 0;
    }
    return found;
}

/* Drop all but ``kept`` of the ``tied`` candidates of a rank, those of larger ids. The candidates of the first part, as a
   rule the largest, are in the order of their ids, so that a binary search reads few ids. */
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
    int64_t low = kept > others ? kept - others : 0, high = kept < mine ? kept : mine; /* of the part are kept */
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

/* Keep the k of largest ranks in their order, of equal ranks those of the smaller id. */
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

/* The places of all candidates in ``ranked``, the best first. */
static void order(Candidates *c)
{
    for (int64_t i = 0; i < c->n; i++)
        c->ranked[i] = ranked_at(c, i);
    qsort(c->ranked, (size_t)c->n, sizeof *c->ranked, best_first);
}

#endif
