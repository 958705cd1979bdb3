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
    uint8_t *dropped;  /* room for a mark each, all 0 */
    Ranked *ranked;    /* room for all */
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

/* Mark all but ``kept`` of the candidates of a rank to be dropped: those of larger ids. The ids of the part that has most
   of them are in order, so that few are read. */
static void drop_ties(Candidates *c, uint32_t rank, int64_t kept)
{
    int64_t n = 0, most = 0, others = 0;
    int32_t part = 0;
    for (int64_t i = 0, run = 0, last = -1; i < c->n; i++)
        if (c->ranks[i] == rank) {
            run = c->parts[i] == last ? run + 1 : 1;
            last = c->parts[i];
            part = run > most ? c->parts[i] : part;
            most = run > most ? run : most;
            n++;
        }
    Ranked *const mine = c->ranked + (n - most);
    for (int64_t i = 0, j = 0; i < c->n; i++)
        if (c->ranks[i] == rank && c->parts[i] == part)
            mine[j++].place = i;
        else if (c->ranks[i] == rank)
            c->ranked[others++] = ranked_at(c, i);
    qsort(c->ranked, (size_t)others, sizeof *c->ranked, best_first);
    int64_t low = kept > others ? kept - others : 0, high = kept < most ? kept : most; /* of ``mine`` are kept */
    while (low < high) {
        const Ranked middle = ranked_at(c, mine[(low + high) / 2].place);
        if (best_first(&middle, c->ranked + kept - (low + high) / 2 - 1) < 0)
            low = (low + high) / 2 + 1;
        else
            high = (low + high) / 2;
    }
    for (int64_t i = kept - low; i < others; i++)
        c->dropped[c->ranked[i].place] = 1;
    for (int64_t i = low; i < most; i++)
        c->dropped[mine[i].place] = 1;
}

/* Keep the k of largest ranks in their order, of equal ranks those of the smaller id. */
static void keep_largest(Candidates *c, int64_t k)
{
    if (c->n <= k)
        return;
    const uint32_t least = reached(c->ranks, (size_t)c->n, (size_t)k);
    int64_t above = 0, equal = 0, kept = 0;
    for (int64_t i = 0; i < c->n; i++) {
        above += c->ranks[i] > least;
        equal += c->ranks[i] == least;
    }
    if (above + equal > k)
        drop_ties(c, least, k - above);
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
