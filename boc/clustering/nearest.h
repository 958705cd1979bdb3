/* Find the nearest centroids of queries in cells. boc/clustering/cell_index.py describes the arrays. Rows are compared
 * in 8 bits, so products are integers and identical on all machines. */

#ifndef BOC_NEAREST_H
#define BOC_NEAREST_H

#include "../_kernels.h"
#include <stdlib.h>

#define LARGEST 127   /* maximum magnitude of an 8-bit component */
#define LONGEST 65536 /* maximum number of 8-bit components, so that products fit into 32 bits */
#define SIDE 4        /* rows and queries per tile */
#define WIDTH 64      /* bytes of a vector register */
#define NEAR 65536    /* bytes of heads that stay in the cache for several queries */
#define HELD (1 << 20) /* scores in a batch of queries */

/* Vector with components from -127 to 127 in 8 bits and in 16 bits, their sum, and the scale that gives the vector unit
 * length, or 0 for a zero vector. */
typedef struct {
    int8_t *narrow;
    int16_t *wide;
    int32_t sum;
    float scale;
} Query;

/* Round ``row`` to 8 bits: the maximum magnitude becomes 127, and halves are rounded to even. A row that contains NaN
 * or infinity becomes zeros. Computations use double precision, so that very long and very short rows keep their
 * directions. */
DISPATCHED static void round_row(const float *row, int64_t d, Query *query)
{
    const float most = largest_size(row, d);
    const double factor = most > 0 ? LARGEST / (double)most : 0;
    int32_t squares = 0, sum = 0;
    for (int64_t j = 0; j < d; j++) {
        const int32_t whole = most > 0 ? (int32_t)rounded(row[j] * factor) : 0;
        query->narrow[j] = (int8_t)whole;
        query->wide[j] = (int16_t)whole;
        squares += whole * whole;
        sum += whole;
    }
    query->sum = sum;
    query->scale = squares ? (float)(1 / sqrt((double)squares)) : 0;
}

/* Compute the products of a query with n rows, times the scales of the rows. Rows are prefetched AHEAD bytes in
 * advance. */
DISPATCHED static void compare_one(const Query *query, const int8_t *rows, const float *scales, int64_t n, int64_t d,
                                   float *out)
{
    const int16_t *wide = query->wide;
    for (int64_t i = 0; i < n; i++, rows += d) {
        int32_t sum = 0;
        for (int64_t byte = 0; byte < d; byte += LINE)
            PREFETCH((const void *)((uintptr_t)(rows + byte) + AHEAD));
        for (int64_t j = 0; j < d; j++)
            sum += rows[j] * wide[j];
        out[i] = (float)sum * scales[i];
    }
}

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>

/* Compute the products of one query or of SIDE queries with n rows, four rows at a time. Return the number of rows
 * processed: all rows, or 0 if there are fewer than SIDE rows. One operand of the instruction is unsigned, so 128 is
 * added to the components of the rows, and 128 times the sum of the query is subtracted from the result. Variables are
 * used instead of arrays, which gcc would keep in memory. */
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))
#define LOAD_ROW(r)                                                                                                   \
    const __m512i row##r = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, tile + r * d + j), _mm512_set1_epi8(-128));
#define BEGIN_QUERY(q) __m512i s##q##0 = zero, s##q##1 = zero, s##q##2 = zero, s##q##3 = zero;
#define ADD_QUERY(q)                                                                                                  \
    {                                                                                                                 \
        const __m512i query = _mm512_loadu_si512(queries[q]->narrow + j);                                             \
        s##q##0 = _mm512_dpbusd_epi32(s##q##0, row0, query);                                                          \
        s##q##1 = _mm512_dpbusd_epi32(s##q##1, row1, query);                                                          \
        s##q##2 = _mm512_dpbusd_epi32(s##q##2, row2, query);                                                          \
        s##q##3 = _mm512_dpbusd_epi32(s##q##3, row3, query);                                                          \
    }
#define END_QUERY(q)                                                                                                  \
    {                                                                                                                 \
        const __m128i sums = sums_of(s##q##0, s##q##1, s##q##2, s##q##3);                                             \
        const __m128i products = _mm_sub_epi32(sums, _mm_set1_epi32(128 * queries[q]->sum));                          \
        _mm_storeu_ps(out[q] + at, _mm_mul_ps(_mm_cvtepi32_ps(products), _mm_loadu_ps(scales + at)));                   \
    }
#define TILES(name, EACH, fetched)                                                                                    \
    VNNI static int64_t name(const Query *const *queries, const int8_t *rows, const float *scales, int64_t n,         \
                             int64_t d, float *const *out)                                                            \
    {                                                                                                                 \
        const __m512i zero = _mm512_setzero_si512();                                                                  \
        for (int64_t i = 0; n >= SIDE && i < n; i += SIDE) {                                                          \
            const int64_t at = i + SIDE <= n ? i : n - SIDE; /* last tile overlaps its predecessor */              \
            const int8_t *tile = rows + at * d;                                                                       \
            EACH(BEGIN_QUERY)                                                                                         \
            for (int64_t byte = 0; byte < (fetched); byte += LINE)                                                    \
                PREFETCH((const void *)((uintptr_t)(tile + byte) + AHEAD));                                           \
            for (int64_t j = 0; j < d; j += WIDTH) {                                                                  \
                const __mmask64 mask = d - j < WIDTH ? ((__mmask64)1 << (d - j)) - 1 : ~(__mmask64)0;                 \
                LOAD_ROW(0) LOAD_ROW(1) LOAD_ROW(2) LOAD_ROW(3)                                                       \
                EACH(ADD_QUERY)                                                                                       \
            }                                                                                                         \
            EACH(END_QUERY)                                                                                           \
        }                                                                                                             \
        return n >= SIDE ? n : 0;                                                                                     \
    }
#define ONE(step) step(0)
#define FOUR(step) step(0) step(1) step(2) step(3)

/* Return the sums over the lanes of four vectors. */
VNNI static inline __m128i sums_of(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

TILES(tiles_of_one, ONE, SIDE * d)
TILES(tiles_of_four, FOUR, 0) /* several queries per row hide the latency */

static int64_t tiles(const Query *const *queries, int64_t count, const int8_t *rows, const float *scales, int64_t n,
                     int64_t d, float *const *out)
{
    static int vnni = -1;
    if (vnni < 0)
        vnni = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
    if (!vnni)
        return 0;
    if (count == SIDE)
        return tiles_of_four(queries, rows, scales, n, d, out);
    for (int64_t q = 1; q < count; q++)
        tiles_of_one(queries + q, rows, scales, n, d, out + q);
    return tiles_of_one(queries, rows, scales, n, d, out);
}
#else
#define tiles(queries, count, rows, scales, n, d, out) 0
#endif

/* Compute the products of ``count`` queries, at most SIDE, with n rows, times the scales of the rows. */
static void compare(const Query *const *queries, int64_t count, const int8_t *rows, const float *scales, int64_t n,
                    int64_t d, float *const *out)
{
    const int64_t done = tiles(queries, count, rows, scales, n, d, out);
    for (int64_t q = 0; q < count; q++)
        compare_one(queries[q], rows + done * d, scales + done, n - done, d, out[q] + done);
}

/* Search of several queries for the ``z`` nearest centroids in the ``cells`` cells with the nearest heads. Each query
 * has ``room`` entries in ``scores``, first for heads, then for centroids. ``cell`` lists the cells that a query
 * searches, in ascending order, and ``place`` contains the positions where the scores of their centroids begin.
 * ``asked`` lists all pairs of queries and cells, ordered by cell, with the bounds ``begins``. */
typedef struct {
    const int64_t *starts;
    const int8_t *heads, *vectors;
    const float *head_scales, *scales;
    int64_t m, d, cells, z, room;
    Query *queries;
    float *scores;
    uint32_t *ranks;
    int64_t *cell, *place, *asked, *begins, *chosen;
} Search;

/* Set up the centroids from the arrays heads, head_scales, starts, vectors and scales, for rows with d components, and
 * their number. Return 0 and set an error if the arrays do not match each other. */
static int take_centroids(Search *s, const Array *arrays, int64_t d, int64_t *held)
{
    const Py_buffer *heads = &arrays[0].view, *vectors = &arrays[3].view;
    *s = (Search){.heads = heads->buf, .head_scales = arrays[1].view.buf, .starts = arrays[2].view.buf,
                  .vectors = vectors->buf, .scales = arrays[4].view.buf, .m = heads->shape[0], .d = d};
    *held = vectors->shape[0];
    if (d > LONGEST || *held > INT32_MAX)
        PyErr_Format(PyExc_ValueError, "%zd centroids of %zd numbers; at most %d of %d", (Py_ssize_t)*held,
                     (Py_ssize_t)d, INT32_MAX, LONGEST);
    return d <= LONGEST && *held <= INT32_MAX && same_length(heads->shape[1], d, "heads of another width") &&
           same_length(vectors->shape[1], d, "vectors of another width") &&
           same_length(arrays[1].view.shape[0], s->m, "head_scales for another number of heads") &&
           same_length(arrays[2].view.shape[0], s->m + 1, "starts for another number of heads") &&
           same_length(arrays[4].view.shape[0], *held, "scales for another number of vectors");
}

/* Choose the cells that query i searches, and return the number of centroids in these cells. */
static int64_t choose_cells(const Search *s, int64_t i)
{
    int64_t held = 0, *cell = s->cell + i * s->cells, *place = s->place + i * s->cells;
    find_largest(s->scores + i * s->room, s->m, s->cells, s->ranks, s->chosen);
    for (int64_t j = 0; j < s->cells; j++) {
        cell[j] = s->chosen[j];
        place[j] = held;
        held += s->starts[cell[j] + 1] - s->starts[cell[j]];
    }
    return held;
}

/* List the pairs of n queries and their cells, ordered by cell. */
static void order_by_cell(const Search *s, int64_t n)
{
    memset(s->begins, 0, ((size_t)s->m + 1) * sizeof *s->begins);
    for (int64_t pair = 0; pair < n * s->cells; pair++)
        s->begins[s->cell[pair]]++;
    for (int64_t cell = 0, end = 0; cell <= s->m; cell++)
        s->begins[cell] = end += s->begins[cell];
    for (int64_t pair = n * s->cells - 1; pair >= 0; pair--)
        s->asked[--s->begins[s->cell[pair]]] = pair;
}

/* Write the z nearest centroids of query i in ascending order. */
static void collect(const Search *s, int64_t i, int64_t *numbers, float *cosines)
{
    const int64_t *place = s->place + i * s->cells, *cell = s->cell + i * s->cells, last = s->cells - 1;
    const int64_t held = place[last] + s->starts[cell[last] + 1] - s->starts[cell[last]];
    const float *scores = s->scores + i * s->room;
    find_largest(scores, held, s->z, s->ranks, s->chosen);
    for (int64_t j = 0, k = 0; j < s->z; j++) {
        while (k < last && place[k + 1] <= s->chosen[j])
            k++;
        numbers[j] = s->starts[cell[k]] + s->chosen[j] - place[k];
        cosines[j] = scores[s->chosen[j]] * s->queries[i].scale;
    }
}

/* Find the z nearest centroids of n queries, and return the minimum number of centroids that a query was compared with.
 * Cells and small groups of heads are compared with all queries that need them, so that each is read from memory only
 * once. */
static int64_t nearest_to(const Search *s, const float *rows, int64_t n, int64_t *numbers, float *cosines)
{
    const int64_t d = s->d, few = SIDE * (1 + NEAR / (SIDE * d + 1));
    const Query *queries[SIDE];
    float *out[SIDE];
    int64_t fewest = INT64_MAX, count = 0;
    for (int64_t i = 0; i < n; i++)
        round_row(rows + i * d, d, s->queries + i);
    for (int64_t first = 0; first < s->m; first += few)
        for (int64_t i = 0; i < n; i++) {
            queries[count] = s->queries + i;
            out[count++] = s->scores + i * s->room + first;
            if (count == SIDE || i + 1 == n) {
                compare(queries, count, s->heads + first * d, s->head_scales + first,
                        s->m - first < few ? s->m - first : few, d, out);
                count = 0;
            }
        }
    for (int64_t i = 0; i < n; i++) {
        const int64_t held = choose_cells(s, i);
        fewest = held < fewest ? held : fewest;
    }
    if (fewest < s->z)
        return fewest;
    order_by_cell(s, n);
    for (int64_t at = 0; at < n * s->cells; at++) {
        const int64_t pair = s->asked[at], i = pair / s->cells, cell = s->cell[pair], first = s->starts[cell];
        queries[count] = s->queries + i;
        out[count++] = s->scores + i * s->room + s->place[pair];
        const int64_t next = at + 1 < n * s->cells ? s->cell[s->asked[at + 1]] : s->m;
        if (count == SIDE || next != cell) {
            const int8_t *later = s->vectors + (next < s->m ? s->starts[next] : first) * d;
            for (int64_t byte = 0; byte < AHEAD; byte += LINE)
                PREFETCH((const void *)((uintptr_t)later + (uintptr_t)byte));
            compare(queries, count, s->vectors + first * d, s->scales + first, s->starts[cell + 1] - first, d, out);
            count = 0;
        }
    }
    for (int64_t i = 0; i < n; i++)
        collect(s, i, numbers + i * s->z, cosines + i * s->z);
    return fewest;
}

/* Prepare a search for z of ``held`` centroids in ``cells`` cells. Return 0 and set an error if there are fewer cells,
 * or if starts are not valid bounds. */
static int set_budgets(Search *s, int64_t held, int64_t z, int64_t cells)
{
    int64_t widest = 0;
    int fits = z >= 1 && cells >= 1 && cells <= s->m;
    for (int64_t i = 0; fits && i < s->m; i++) {
        const int64_t width = s->starts[i + 1] - s->starts[i];
        fits = s->starts[i] >= 0 && width >= 0 && s->starts[i + 1] <= held;
        widest = width > widest ? width : widest;
    }
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "cells: %zd of %zd, or starts that do not rise within %zd vectors",
                     (Py_ssize_t)cells, (Py_ssize_t)s->m, (Py_ssize_t)held);
        return 0;
    }
    s->z = z, s->cells = cells;
    s->room = widest > held / cells ? held : widest * cells; /* maximum number of centroids in the cells */
    s->room = s->room > s->m ? s->room : s->m;
    return 1;
}

/* Answer n queries in batches. Return the minimum number of centroids that a query was compared with, or -1 if there is
 * not enough memory. The caller does not need the GIL. */
static int64_t find_nearest(Search *s, const float *rows, int64_t n, int64_t *numbers, float *cosines)
{
    const int64_t most = 1 + HELD / (s->room + s->d + 4 * s->cells), together = most < n ? most : n;
    const int64_t width = (s->d + WIDTH - 1) / WIDTH * WIDTH; /* a query is padded with zeros */
    const size_t pairs = (size_t)(together * s->cells);
    int64_t fewest = -1;
    /* Invariants: a query consists of ``width`` 16-bit components and ``width`` 8-bit components, so that whole
     * registers can be read. ``room`` is enough for the scores of the heads and for the scores of any ``cells`` cells,
     * because `set_budgets` has checked that starts ascend within the centroids. `find_largest` does not rank more
     * scores, and writes at most one place after the z places, or cells, in ``chosen``. */
    int16_t *wide = calloc((size_t)(together * width) + 1, sizeof *wide + 1);
    s->queries = malloc((size_t)together * sizeof *s->queries + 1);
    s->scores = malloc((size_t)(together * s->room) * sizeof *s->scores + 1);
    s->ranks = malloc((size_t)s->room * sizeof *s->ranks + 1);
    s->cell = malloc((3 * pairs + (size_t)s->m + (size_t)s->room + 2) * sizeof *s->cell);
    if (wide && s->queries && s->scores && s->ranks && s->cell) {
        int8_t *narrow = (int8_t *)(wide + together * width);
        for (int64_t i = 0; i < together; i++)
            s->queries[i] = (Query){.narrow = narrow + i * width, .wide = wide + i * width};
        s->place = s->cell + pairs, s->asked = s->place + pairs, s->begins = s->asked + pairs;
        s->chosen = s->begins + s->m + 1;
        fewest = s->z;
        for (int64_t i = 0; i < n && fewest >= s->z; i += together)
            fewest = nearest_to(s, rows + i * s->d, n - i < together ? n - i : together, numbers + i * s->z,
                                cosines + i * s->z);
    }
    free(wide);
    free(s->queries);
    free(s->scores);
    free(s->ranks);
    free(s->cell);
    return fewest;
}

#endif
