/* Find the k best rows for queries in blocked posting lists. indexing/embedded/postings.py describes the arrays.
 *
 * * * Scores are summed block by block in `scores`, which fits into the second-level cache. Scores are 16 bits wide if
 * this is enough for the maximum score, otherwise 32 bits. For a block with few postings, scores are read back row by
 * row; for other blocks, all scores are compared with the threshold, which is the k-th best score so far. Local rows
 * are 16 bits wide, so they are always within `scores`. The rows and frequencies of a list are checked when the list is
 * first read; everything else in the arrays is checked before the first addition. Therefore, after an error, `scores`
 * contains only zeros, as the next query requires. */
#ifndef BOC_TOPK_H
#define BOC_TOPK_H

#include "../../boc/_kernels.h"
#include <stdlib.h>

#define WHOLE 65536 /* maximum and usual number of rows per block: the number of different 16-bit values */
#define FEW(block) ((block) / 8) /* maximum number of postings for which a block is read back row by row */
#define PARTS 4  /* parts of a posting list per block */
#define LANES 64 /* scores compared with the threshold at a time; divides a block */
#define PIECE 16 /* number of these scores that are compared again if one exceeds the threshold */

/* This struct is passed by address, so that loops do not access thread-local storage.
 *
 * * * Invariants: local rows are 16 bits wide, so each of them is a valid index of `scores`, which contains only zeros
 * between blocks: `check` rejects lists with rows beyond their block, and the scores of each block are set to zero
 * again. A block whose rows are collected in `touched` has at most FEW postings, and a posting appends at most one row.
 * `largest` has an entry for every LANES rows of a block. */
typedef struct {
    union {
        uint16_t narrow[WHOLE];
        uint32_t wide[WHOLE];
    } scores;
    uint16_t touched[FEW(WHOLE)];
    uint32_t largest[WHOLE / LANES];
} Scratch;
static _Thread_local Scratch of_thread;

typedef struct {
    Scratch *scratch;
    const uint32_t *starts;
    const uint16_t *rows;
    const void *frequencies;
    uint32_t *peaks; /* maximum frequency of each checked list, identical in all threads; 0 before the check */
    int width;       /* bytes per frequency; 0 if all frequencies are 1 */
    Py_ssize_t n, n_terms, n_postings, block, blocks; /* block: rows per block, a multiple of LANES */
} Postings;

typedef struct {
    const int32_t *terms, *weights;
    Py_ssize_t length;
} Terms;

/* A key is score << 32 | ~row. Larger keys are better, and keys are distinct.
 *
 * * * Invariant: count <= room, and room >= k + PIECE. Before appending keys, a function makes room for all keys of the
 * step. A step that checked only afterwards would depend on the count that the previous step left. */
typedef struct {
    uint64_t *keys; /* 2 * room entries: sorting needs a second copy */
    Py_ssize_t count, k, room;
    uint64_t threshold; /* keys must exceed this value, which is initially the largest key with score 0 */
    const uint8_t *mask;
} Best;

/* Return the bits in which keys differ. */
static uint64_t differing(const uint64_t *keys, Py_ssize_t count)
{
    uint64_t all = ~(uint64_t)0, any = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        all &= keys[i];
        any |= keys[i];
    }
    return all ^ any;
}

/* Sort keys by some of their bits in descending order with a radix sort, which skips bytes that are equal in all keys.
 * */
static void sort(uint64_t *keys, uint64_t *space, Py_ssize_t count, uint64_t bits)
{
    const uint64_t differ = count > 1 ? differing(keys, count) & bits : 0;
    uint64_t *from = keys, *to = space;
    for (int shift = 0; shift < 64; shift += 8) {
        Py_ssize_t places[256] = {0}, next = 0;
        if ((differ >> shift & 255) == 0)
            continue;
        for (Py_ssize_t i = 0; i < count; i++)
            places[from[i] >> shift & 255]++;
        for (int byte = 255; byte >= 0; byte--) {
            Py_ssize_t size = places[byte];
            places[byte] = next;
            next += size;
        }
        for (Py_ssize_t i = 0; i < count; i++)
            to[places[from[i] >> shift & 255]++] = from[i];
        uint64_t *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != keys)
        memcpy(keys, from, (size_t)count * sizeof *keys);
}

/* Keep the k best of more than k keys in arbitrary order: select by the leading bits, then by the next bits. */
static void keep_best(Best *best)
{
    uint64_t *keys = best->keys, *equal = keys + best->room, worst = ~(uint64_t)0;
    const uint64_t differ = differing(keys, best->count);
    Py_ssize_t n_equal = best->count, kept = 0;
    int shift = 0;
    while (differ >> shift >> 8)
        shift++;
    memcpy(equal, keys, (size_t)n_equal * sizeof *keys);
    for (; kept + n_equal > best->k; shift = shift > 8 ? shift - 8 : 0) {
        Py_ssize_t sizes[256] = {0}, better = kept, left = 0;
        unsigned last = 255;
        for (Py_ssize_t i = 0; i < n_equal; i++)
            sizes[equal[i] >> shift & 255]++;
        while (better + sizes[last] < best->k)
            better += sizes[last--];
        for (Py_ssize_t i = 0; i < n_equal; i++) {
            const uint64_t key = equal[i];
            keys[kept] = key;
            kept += (key >> shift & 255) > last;
            equal[left] = key;
            left += (key >> shift & 255) == last;
        }
        n_equal = left;
    }
    memcpy(keys + kept, equal, (size_t)n_equal * sizeof *keys);
    for (Py_ssize_t i = 0; i < best->k; i++)
        worst = keys[i] < worst ? keys[i] : worst;
    best->count = best->k;
    best->threshold = worst;
}

/* Raise the threshold to `score`, which k rows reach, so that keys with smaller scores can be dropped. */
static void exceed(Best *best, uint32_t score)
{
    const uint64_t below = ((uint64_t)score << 32) - 1;
    if (score > 0 && below > best->threshold)
        best->threshold = below;
}

/* Make room for `more` keys, at most PIECE. */
static inline void make_room(Best *best, Py_ssize_t more)
{
    if (best->count > best->room - more)
        keep_best(best);
}

static inline uint64_t key_of(uint32_t score, uint32_t row) { return (uint64_t)score << 32 | (uint32_t)~row; }

/* Execute STATEMENT for each posting i from begin to end, with its `frequency`. */
#define EACH_OF(TYPE, STATEMENT)                                    \
    for (const TYPE *all = p->frequencies; i < end; i++) {          \
        const uint32_t frequency = all[i];                          \
        STATEMENT;                                                  \
    }                                                               \
    break
#define EACH_POSTING(STATEMENT)                                     \
    switch (p->width) {                                             \
    case 1: EACH_OF(uint8_t, STATEMENT);                            \
    case 2: EACH_OF(uint16_t, STATEMENT);                           \
    case 4: EACH_OF(uint32_t, STATEMENT);                           \
    default:                                                        \
        for (const uint32_t frequency = 1; i < end; i++) {          \
            STATEMENT;                                              \
        }                                                           \
    }

static void add_narrow(const Postings *p, size_t i, size_t end, uint32_t weight)
{
    const uint16_t *rows = p->rows;
    uint16_t *out = p->scratch->scores.narrow;
    EACH_POSTING(out[rows[i]] += (uint16_t)(weight * frequency))
}

static void add_wide(const Postings *p, size_t i, size_t end, uint32_t weight)
{
    const uint16_t *rows = p->rows;
    uint32_t *out = p->scratch->scores.wide;
    EACH_POSTING(out[rows[i]] += weight * frequency)
}

/* Same as add_wide, but append rows without a score so far to the first `count` rows, and return the new count. */
static size_t add_few(const Postings *p, size_t i, size_t end, uint32_t weight, size_t count)
{
    const uint16_t *rows = p->rows;
    uint32_t *out = p->scratch->scores.wide;
    uint16_t *touched = p->scratch->touched;
    EACH_POSTING({
        const uint32_t before = out[rows[i]];
        touched[count] = rows[i];
        count += before == 0;
        out[rows[i]] = before + weight * frequency;
    })
    return count;
}

DISPATCHED static uint32_t largest_frequency(const Postings *p, size_t i, size_t end)
{
    uint32_t largest = 0;
    EACH_POSTING(largest = frequency > largest ? frequency : largest)
    return largest;
}

DISPATCHED static uint16_t largest_row(const uint16_t *rows, size_t count)
{
    uint16_t largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = rows[i] > largest ? rows[i] : largest;
    return largest;
}

/* Offer the unmasked scores of a block and set all scores to zero. Rows ascend, so equal scores rank lower. The maximum
 * of every LANES scores is computed first, because the k-th largest maximum is a lower bound of the k-th best score. */
#define SCAN(NAME, SCORE)                                                                           \
    static inline SCORE largest_##NAME(const SCORE *part, int count)                                \
    {                                                                                               \
        SCORE largest = 0;                                                                          \
        for (int i = 0; i < count; i++)                                                             \
            largest = part[i] > largest ? part[i] : largest;                                        \
        return largest;                                                                             \
    }                                                                                               \
    DISPATCHED static void scan_##NAME(const Postings *p, Best *best, uint32_t first, size_t size)  \
    {                                                                                               \
        SCORE *out = p->scratch->scores.NAME;                                                       \
        uint32_t *largest = p->scratch->largest;                                                    \
        size_t lanes = 0;                                                                           \
        if (best->mask != NULL)                                                                     \
            for (size_t i = 0; i < size; i++)                                                       \
                out[i] = best->mask[first + i] ? out[i] : 0;                                        \
        for (size_t at = 0; at < size; at += LANES)                                                 \
            largest[lanes++] = largest_##NAME(out + at, LANES);                                     \
        exceed(best, reached(largest, lanes, (size_t)best->k));                                     \
        for (size_t lane = 0; lane < lanes; lane++)                                                 \
            if (largest[lane] > best->threshold >> 32)                                              \
                for (size_t at = lane * LANES; at < (lane + 1) * LANES; at += PIECE)                \
                    if (largest_##NAME(out + at, PIECE) > best->threshold >> 32) {                  \
                        make_room(best, PIECE);                                                     \
                        uint64_t *keys = best->keys;                                                \
                        Py_ssize_t count = best->count;                                             \
                        for (size_t i = at; i < at + PIECE; i++) {                                  \
                            keys[count] = key_of(out[i], first + (uint32_t)i);                      \
                            count += keys[count] > best->threshold;                                 \
                        }                                                                           \
                        best->count = count;                                                        \
                    }                                                                               \
        memset(out, 0, (size_t)p->block * sizeof *out);                                             \
    }
SCAN(narrow, uint16_t)
SCAN(wide, uint32_t)

static const uint32_t *list_of(const Postings *p, int32_t term) { return p->starts + (size_t)term * (size_t)p->blocks; }

static Py_ssize_t rows_of_block(const Postings *p, Py_ssize_t b)
{
    const Py_ssize_t rest = p->n - b * p->block;
    return rest < p->block ? rest : p->block;
}

static void prefetch(const Postings *p, size_t begin, size_t end)
{
    for (size_t i = begin; i < end && i < begin + 16 * LINE; i += LINE / 2) {
        PREFETCH(p->rows + i);
        PREFETCH((const char *)p->frequencies + i * (size_t)p->width);
    }
}

/* Return an error message about the query or the lists that it reads, or NULL. Each list is checked only once. */
static const char *check(const Postings *p, Terms q)
{
    for (Py_ssize_t t = 0; t < q.length; t++) {
        if (q.terms[t] < 0 || q.terms[t] >= p->n_terms)
            return "a query holds a term that the postings do not have";
        if (q.weights[t] < 0)
            return "the weights of a query must not be negative";
        PREFETCH(list_of(p, q.terms[t]));
        PREFETCH(list_of(p, q.terms[t]) + p->blocks);
        PREFETCH(p->peaks + q.terms[t]);
    }
    for (Py_ssize_t t = 0; t < q.length; t++) {
        const uint32_t *list = list_of(p, q.terms[t]);
        int rising = list[p->blocks] <= p->n_postings;
        for (Py_ssize_t b = 0; b < p->blocks; b++)
            rising &= list[b] <= list[b + 1];
        if (!rising)
            return "the postings are damaged: a list does not end where it should; rebuild the index";
        prefetch(p, list[0], list[p->blocks]);
    }
    for (Py_ssize_t t = 0; t < q.length; t++)
        if (p->peaks[q.terms[t]] == 0) {
            const uint32_t *list = list_of(p, q.terms[t]);
            /* 16 bits cannot represent a row beyond a whole block. */
            for (Py_ssize_t b = p->block < WHOLE ? 0 : p->blocks - 1; b < p->blocks; b++)
                if (list[b] < list[b + 1] &&
                    largest_row(p->rows + list[b], list[b + 1] - list[b]) >= rows_of_block(p, b))
                    return "the postings are damaged: a row is none of the segment's; rebuild the index";
            p->peaks[q.terms[t]] = largest_frequency(p, list[0], list[p->blocks]);
        }
    return NULL;
}

/* Return an upper bound for the scores of the query, limited to 2**32. */
static uint64_t bound(const Postings *p, Terms q)
{
    uint64_t sum = 0;
    for (Py_ssize_t t = 0; t < q.length && sum >> 32 == 0; t++)
        sum += (uint64_t)q.weights[t] * p->peaks[q.terms[t]];
    return sum >> 32 ? (uint64_t)1 << 32 : sum;
}

static void search_few(const Postings *p, Terms q, Py_ssize_t b, Best *best)
{
    const Py_ssize_t rows = rows_of_block(p, b);
    uint32_t *scores = p->scratch->scores.wide;
    const uint16_t *touched = p->scratch->touched;
    size_t count = 0;
    for (Py_ssize_t t = 0; t < q.length; t++) {
        const uint32_t *list = list_of(p, q.terms[t]) + b;
        count = add_few(p, list[0], list[1], (uint32_t)q.weights[t], count);
    }
    for (size_t i = 0; i < count;) {
        make_room(best, PIECE);
        Py_ssize_t kept = best->count;
        for (const size_t end = i + PIECE < count ? i + PIECE : count; i < end; i++) {
            const uint16_t local = touched[i] < rows ? touched[i] : 0; /* as checked before */
            const uint32_t row = (uint32_t)(b * p->block) + local;
            best->keys[kept] = key_of(scores[local], row);
            /* No branches, because the processor cannot predict which rows a mask drops. */
            kept += (touched[i] < rows) & (best->keys[kept] > best->threshold) &
                    (best->mask == NULL || best->mask[row] != 0);
            scores[touched[i]] = 0;
        }
        best->count = kept;
    }
}

/* Add lists in parts, so that the scores of a part are still in the cache for the next list. */
static void search_many(const Postings *p, Terms q, Py_ssize_t b, Best *best, int narrow)
{
    for (size_t part = 0; part < PARTS; part++)
        for (Py_ssize_t t = 0; t < q.length; t++) {
            const uint32_t *list = list_of(p, q.terms[t]) + b;
            const size_t length = list[1] - list[0];
            const size_t begin = list[0] + length * part / PARTS, end = list[0] + length * (part + 1) / PARTS;
            if (t + 1 < q.length) {
                const uint32_t *next = list_of(p, q.terms[t + 1]) + b;
                const size_t ahead = (size_t)(next[1] - next[0]);
                prefetch(p, next[0] + ahead * part / PARTS, next[0] + ahead * (part + 1) / PARTS);
            }
            (narrow ? add_narrow : add_wide)(p, begin, end, (uint32_t)q.weights[t]);
        }
    (narrow ? scan_narrow : scan_wide)(p, best, (uint32_t)(b * p->block), (size_t)rows_of_block(p, b));
}

/* Return whether the query was answered, which is not possible if a score could reach 2**32. Results are sorted best
 * first, with ties resolved in favour of lower rows. */
static int search(const Postings *p, Terms q, Best *best, int by_row)
{
    const uint64_t largest = bound(p, q);
    if (largest >> 32)
        return 0;
    for (Py_ssize_t b = 0; b < p->blocks; b++) {
        size_t count = 0;
        for (Py_ssize_t t = 0; t < q.length; t++)
            count += list_of(p, q.terms[t])[b + 1] - list_of(p, q.terms[t])[b];
        if (count > (size_t)FEW(p->block))
            search_many(p, q, b, best, largest >> 16 == 0);
        else if (count > 0)
            search_few(p, q, b, best);
    }
    if (best->count > best->k)
        keep_best(best);
    sort(best->keys, best->keys + best->room, best->count, by_row ? UINT32_MAX : UINT64_MAX);
    return 1;
}

#endif
