/* Find the best rows for queries in one call without the GIL: compute the terms of a dictionary, read the posting lists
 * of all parts of an index, and compute products with the vectors of the candidates. ranking.py performs the same steps
 * in Python. */

#include "../../boc/clustering/nearest.h"
#include "../../boc/rerank/compact.h"
#include "../../boc/rerank/rescore.h"
#include "ranking.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#endif

#define PARTS_NAME "indexing.embedded._search.parts"
#define CODE "indexing.embedded._search.code"

enum { LISTS, ROWS, FREQUENCIES, PEAKS, MASK, ID_BYTES, ID_OFFSETS, VECTORS, COMPACT, COMPACT_SCALES, PART_ARRAYS };

typedef struct {
    Postings postings;
    const uint8_t *mask;
    const void *vectors;
    int64_t item; /* bytes per item of a vector, see rescore.h */
    const uint8_t *compact;
    const float *compact_scales;
} Part;

/* Memory for the candidates of one query.
 *
 * * * Invariants: `keys` has 2 * `room` entries, see Best. `found` and `products` have room for `most` + 1 candidates,
 * and `most` is at least the number of candidates that `find_candidates` collects from all parts, at most depth from
 * each. A scan lists 8 rows at a time, after checking that `most` is large enough: a scan keeps k or depth rows, which
 * is smaller by AT_ONCE because k is at most depth (`fit`). `padded` contains a vector and WIDEST zeros, which the last
 * product reads; `rotated` contains a vector and the space that `rotate` needs; `compact.numbers` are padded to whole
 * cache lines. */
typedef struct {
    float *padded, *products, *rotated;
    CompactQuery compact;
    uint64_t *keys;
    int64_t room; /* number of keys for one part */
    int64_t most; /* number of candidates */
    int64_t held_room, held_most; /* room and most for which the memory is enough */
    Candidates found;
} Work;

/* Arrays of the parts of an index, which all queries share and which are checked once. */
typedef struct {
    int64_t d, n_parts;    /* d is 0 if there are no vectors */
    int64_t rows, passing; /* rows of all parts, and rows that the masks select */
    int n_arrays;
    const float *signs; /* only if all parts have compact codes */
    Array *arrays;      /* arrays of the parts, then the signs */
    Part *parts;
    Ids *ids;
    Work spare; /* memory from the last call for the next call, which must hold the GIL to use it */
} Whole;

static void leave(Work *w)
{
    void *const pieces[] = {w->padded, w->products, w->rotated, w->compact.numbers, w->keys, w->found.rows,
                            w->found.parts, w->found.ranks, w->found.dropped, w->found.ranked};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        free(pieces[i]);
    *w = (Work){0};
}

static void drop(Whole *whole)
{
    leave(&whole->spare);
    release(whole->arrays, whole->n_arrays);
    PyMem_Free(whole->arrays);
    PyMem_Free(whole->parts);
    PyMem_Free(whole->ids);
    PyMem_Free(whole);
}

/* Acquire the arrays of part i with n rows; set an error if they do not match each other. */
static void take_part(Whole *whole, PyObject *arrays, Py_ssize_t n, int64_t i, Py_ssize_t block)
{
    const Array wanted[PART_ARRAYS] = {{"starts", "I", 1},   {"rows", "H", 1},        {"frequencies", "BHi", 1},
                                       {"peaks", "I", 1, 1}, {"mask", "B", 1},        {"ids", "B", 1},
                                       {"offsets", "q", 1},  {"vectors", "efB", 2},   {"compact", "B", 2},
                                       {"compact_scales", "f", 1}};
    Array *a = whole->arrays + i * PART_ARRAYS;
    if (n < 0 || n > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd rows in a part; at most %d", n, INT32_MAX);
        return;
    }
    for (int j = 0; j < PART_ARRAYS; j++) {
        PyObject *array = PyTuple_GetItem(arrays, j);
        a[j] = wanted[j];
        if (array == NULL || ((j < MASK || array != Py_None) && take(a + j, &array, 1)))
            return;
    }
    const Py_ssize_t n_postings = a[ROWS].view.len / 2, n_terms = a[PEAKS].view.len / 4;
    const Py_ssize_t blocks = n > block ? (n - 1) / block + 1 : 1, counted = a[FREQUENCIES].view.shape[0];
    Part *part = whole->parts + i;
    *part = (Part){.mask = a[MASK].view.buf, .vectors = a[VECTORS].view.buf, .item = a[VECTORS].view.itemsize,
                   .compact = a[COMPACT].view.buf, .compact_scales = a[COMPACT_SCALES].view.buf};
    part->postings = (Postings){.starts = a[LISTS].view.buf, .rows = a[ROWS].view.buf,
                                .frequencies = a[FREQUENCIES].view.buf, .peaks = a[PEAKS].view.buf,
                                .width = counted ? (int)a[FREQUENCIES].view.itemsize : 0, .n = n,
                                .n_terms = n_terms, .n_postings = n_postings, .block = block, .blocks = blocks};
    whole->ids[i] = (Ids){a[ID_BYTES].view.buf, a[ID_OFFSETS].view.buf, a[ID_BYTES].view.len};
    whole->rows += n;
    int fits = same_length(a[LISTS].view.len / 4, n_terms * blocks + 1, "starts for another number of terms or rows") &&
               same_length(counted, counted ? n_postings : 0, "frequencies for another number of rows") &&
               same_length(n_terms, whole->parts->postings.n_terms, "postings of another number of terms");
    if (fits && part->mask != NULL)
        fits = same_length(a[MASK].view.shape[0], n, "mask for another number of rows");
    for (int64_t row = 0; fits && row < n; row++)
        whole->passing += part->mask == NULL || part->mask[row] != 0;
    if (fits && whole->n_parts > 1)
        fits = same_length(a[ID_OFFSETS].view.len / 8, n + 1, "offsets of ids for another number of rows");
    if (fits && whole->d > 0)
        fits = same_length(a[VECTORS].view.obj ? a[VECTORS].view.shape[0] : 0, n, "vectors for another number of rows") &&
               same_length(n ? a[VECTORS].view.shape[1] : 0, n ? row_items(whole->d, part->item) : 0,
                           "vectors of another width");
    if (fits && whole->signs != NULL && n > 0)
        fits = same_length(a[COMPACT].view.len, n * compact_bytes(whole->d), "compact codes for another number of bytes") &&
               same_length(a[COMPACT_SCALES].view.len / 4, n, "compact_scales for another number of rows");
}

/* Dictionary: the arrays of the centroids, and the parameters that convert cosines to weights. */
typedef struct {
    Array arrays[6];
    Search search;
    const float *mean;
    double temperature;
    int top;
    Py_ssize_t kept; /* number of terms with the largest weights to keep per query; 0 keeps all */
} Code;

static void drop_code(PyObject *capsule)
{
    Code *code = PyCapsule_GetPointer(capsule, CODE);
    release(code->arrays, 6);
    PyMem_Free(code);
}

static PyObject *code(PyObject *module, PyObject *arguments)
{
    const Array wanted[] = {{"mean", "f", 1},   {"heads", "b", 2},   {"head_scales", "f", 1},
                            {"starts", "q", 1}, {"vectors", "b", 2}, {"scales", "f", 1}};
    PyObject *objects[6], *capsule = NULL;
    Py_ssize_t z, cells;
    int64_t held;
    Code *made = PyMem_Calloc(1, sizeof *made);
    (void)module;
    if (made == NULL)
        return PyErr_NoMemory();
    memcpy(made->arrays, wanted, sizeof wanted);
    if (PyArg_ParseTuple(arguments, "OOOOOOnndi|n", objects, objects + 1, objects + 2, objects + 3, objects + 4, objects + 5,
                         &z, &cells, &made->temperature, &made->top, &made->kept) &&
        !take(made->arrays, objects, 6) &&
        take_centroids(&made->search, made->arrays + 1, made->arrays->view.shape[0], &held) &&
        set_budgets(&made->search, held, z, cells)) {
        made->mean = made->arrays->view.buf;
        capsule = PyCapsule_New(made, CODE, drop_code);
    }
    if (capsule == NULL) {
        release(made->arrays, 6);
        PyMem_Free(made);
    }
    return capsule;
}

/* Arguments of a call. ``vectors`` (n, d) is NULL if rows are ranked by the scores of posting lists. If ``code`` is not
 * NULL, it computes the terms of the queries from the vectors. ``all`` to ``share`` are the plan (boc/plan.py): all
 * rows that pass are compared if the plan requires it, or if the number of candidates that share a term with the query
 * is less than ``least``, or less than ``share`` per term of the query. */
typedef struct {
    const Whole *whole;
    const Code *code;
    int64_t *offsets;
    int32_t *terms, *weights;
    const float *vectors;
    int64_t n, k; /* numbers of queries and hits */
    int all;
    int64_t depth, size, least; /* depth: number of candidates; size: candidates whose vectors are read */
    double share;
    int32_t *parts; /* part numbers of the hits (n, k) */
    int64_t *rows, *counts;
    double *scores;
    int64_t read, compared; /* number of candidates of all queries; number of queries that were compared with all rows */
} Call;

#define SPARE 65536  /* maximum candidates whose memory is kept for the next call */
#define AT_ONCE 4096 /* rows that a scan lists before dropping the worst rows */

static int make(Work *w, const Call *call)
{
    const Whole *whole = call->whole;
    const size_t d = (size_t)whole->d;
    int64_t largest = 0, sum = 0;
    for (int64_t i = 0; i < whole->n_parts; i++) {
        const int64_t found = whole->parts[i].postings.n < call->depth ? whole->parts[i].postings.n : call->depth;
        largest = found > largest ? found : largest;
        sum += found;
    }
    if (call->all || call->least > 0 || call->share > 0)
        sum = sum > call->depth + AT_ONCE ? sum : call->depth + AT_ONCE;
    const size_t most = (size_t)sum + 1;
    const int64_t room = 2 * largest + LANES;
    if (w->held_most < sum || w->held_room < room)
        leave(w);
    w->most = sum;
    w->room = room;
    if (w->held_room > 0)
        return 1;
    w->padded = malloc((d + WIDEST) * sizeof *w->padded);
    w->products = malloc(most * sizeof *w->products);
    w->rotated = malloc(2 * d * sizeof *w->rotated + 1);
    w->compact.width = compact_width(whole->d);
    w->compact.numbers = malloc((size_t)(PER_BYTE * w->compact.width) + 1);
    w->keys = malloc(2 * (size_t)w->room * sizeof *w->keys);
    w->found = (Candidates){.ids = whole->n_parts > 1 ? whole->ids : NULL,
                            .rows = malloc(most * sizeof *w->found.rows),
                            .parts = malloc(most * sizeof *w->found.parts),
                            .ranks = malloc(most * sizeof *w->found.ranks),
                            .dropped = calloc(most, sizeof *w->found.dropped),
                            .ranked = malloc(most * sizeof *w->found.ranked)};
    if (!(w->padded && w->products && w->rotated && w->compact.numbers && w->keys && w->found.rows &&
          w->found.parts && w->found.ranks && w->found.dropped && w->found.ranked))
        return 0;
    w->held_room = room;
    w->held_most = sum;
    return 1;
}

/* Find the candidates of query i in all parts. Return an error message or NULL; set ``read`` to -1 if a score could
 * reach 2**32. */
static const char *find_candidates(Call *call, Work *w, int64_t i)
{
    Candidates *found = &w->found;
    const int64_t first = call->offsets[i];
    const Terms terms = {call->terms + first, call->weights + first, (Py_ssize_t)(call->offsets[i + 1] - first)};
    uint64_t threshold = ((uint64_t)1 << 32) - 1;
    found->n = 0;
    for (int64_t part = 0; part < call->whole->n_parts; part++) {
        Postings p = call->whole->parts[part].postings;
        p.scratch = &of_thread;
        const int64_t k = p.n < call->depth ? p.n : call->depth;
        Best best = {w->keys, 0, k > 0 ? k : 1, w->room, threshold, call->whole->parts[part].mask};
        const char *wrong = check(&p, terms);
        if (wrong != NULL)
            return wrong;
        if (!search(&p, terms, &best, call->vectors != NULL || found->ids != NULL)) {
            call->read = -1;
            return NULL;
        }
        /* As many rows as are wanted reach this score, which rows of later parts must reach to be candidates. */
        if (k == call->depth && best.threshold >> 32 > threshold >> 32)
            threshold = (best.threshold >> 32 << 32) - 1;
        for (int64_t j = 0; j < best.count; j++, found->n++) {
            found->rows[found->n] = (uint32_t)~best.keys[j];
            found->ranks[found->n] = (uint32_t)(best.keys[j] >> 32);
            found->parts[found->n] = (int32_t)part;
        }
    }
    keep_largest(found, call->depth);
    return NULL;
}

/* Rows of mapped arrays that are not in memory are detected by the time needed to read the first rows, and are then
 * requested from the system all at once. */
#define PROBE 4     /* number of rows read to detect whether the other rows are in memory */
#define COLD 50000  /* nanoseconds to read these rows: ten times as long as from memory, less than one row from a disk */

#if defined(__unix__) || defined(__APPLE__)
static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Ask the system to read n ascending rows of ``size`` bytes if they do not seem to be in memory. This is several times
 * as fast as reading the rows one by one. If the request fails, rows are read when they are needed. */
static void fetch_rows(const void *array, int64_t size, const int64_t *rows, int64_t n)
{
    const int64_t begun = nanoseconds();
    if (n <= PROBE)
        return;
    for (int64_t i = 0; i < PROBE; i++)
        (void)*((const volatile char *)array + rows[i] * size);
    if (nanoseconds() - begun <= COLD)
        return;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < n; i++) {
        const uintptr_t begin = (uintptr_t)array + (uintptr_t)(rows[i] * size), first = begin / page * page;
        (void)madvise((void *)first, begin + (uintptr_t)size - first, MADV_WILLNEED);
    }
}
#else
#define fetch_rows(array, size, rows, n) ((void)0)
#endif

/* Return the part that contains the candidates from ``first`` on, and set their ``end``. */
static const Part *part_from(const Call *call, const Candidates *found, int64_t first, int64_t *end)
{
    for (*end = first; *end < found->n && found->parts[*end] == found->parts[first];)
        ++*end;
    return call->whole->parts + found->parts[first];
}

/* Rank the candidates of query i from ``from`` on by their products with the vector of the query, or by estimates from
 * ``compact`` codes, for which the query is in ``w->compact``. */
static void rank_candidates(const Call *call, Work *w, int64_t i, int64_t from, int compact)
{
    const int64_t d = call->whole->d;
    Candidates *found = &w->found;
    for (int64_t first = from, end = 0; first < found->n; first = end) {
        const Part *part = part_from(call, found, first, &end);
        const int64_t *rows = found->rows + first, n = end - first;
        float *products = w->products + first;
        if (compact) {
            fetch_rows(part->compact, w->compact.bytes, rows, n);
            estimate(&w->compact, part->compact, part->compact_scales, rows, n, products);
        } else {
            fetch_rows(part->vectors, row_items(d, part->item) * part->item, rows, n);
            multiply_rows(call->vectors + i * d, part->vectors, part->item, rows, n, d, w->padded, products);
        }
    }
    for (int64_t j = from; j < found->n; j++)
        found->ranks[j] = rank_of(w->products[j]);
}

static void round_query_of(const Call *call, Work *w, int64_t i)
{
    const int64_t d = call->whole->d;
    memcpy(w->rotated, call->vectors + i * d, (size_t)d * sizeof *w->rotated);
    rotate(w->rotated, w->rotated + d, call->whole->signs, d);
    round_query(w->rotated, d, &w->compact);
}

/* Keep the candidates of query i with the largest estimates by compact codes. */
static void shorten(const Call *call, Work *w, int64_t i)
{
    if (call->whole->signs == NULL || w->found.n <= call->size)
        return;
    round_query_of(call, w, i);
    rank_candidates(call, w, i, 0, 1);
    keep_largest(&w->found, call->size);
}

/* Rank the candidates of a scan from ``from`` on, keep the best candidates, and return their number. */
static int64_t rank_listed(const Call *call, Work *w, int64_t i, int64_t from, int compact)
{
    rank_candidates(call, w, i, from, compact);
    keep_largest(&w->found, compact ? call->depth : call->k);
    return w->found.n;
}

/* Find the best of all rows that pass for query i without using its terms. Rows are ranked by their products or, if the
 * plan did not require a scan and all parts have compact codes, first by estimates. */
static void scan(Call *call, Work *w, int64_t i)
{
    const Whole *whole = call->whole;
    const int compact = whole->signs != NULL && !call->all;
    Candidates *found = &w->found;
    int64_t ranked = 0;
    found->n = 0;
    if (compact)
        round_query_of(call, w, i);
    for (int64_t number = 0; number < whole->n_parts; number++) {
        const Part *part = whole->parts + number;
        for (int64_t row = 0; row < part->postings.n;) {
            uint64_t eight = 1;
            if (part->mask != NULL && row + 8 <= part->postings.n)
                memcpy(&eight, part->mask + row, sizeof eight);
            if (eight == 0) {
                row += 8;
                continue;
            }
            const int64_t end = row + 8 < part->postings.n ? row + 8 : part->postings.n;
            for (; row < end; row++) {
                found->rows[found->n] = row;
                found->parts[found->n] = (int32_t)number;
                found->n += part->mask == NULL || part->mask[row] != 0;
            }
            if (found->n + 8 > w->most)
                ranked = rank_listed(call, w, i, ranked, compact);
        }
    }
    rank_listed(call, w, i, ranked, compact);
    if (compact)
        rank_candidates(call, w, i, 0, 0);
}

/* Write the k best candidates of query i, best first. */
static void give(const Call *call, Work *w, int64_t i)
{
    Candidates *found = &w->found;
    const int ordered = call->vectors == NULL && found->ids == NULL;
    keep_largest(found, call->k);
    if (!ordered)
        order(found);
    for (int64_t j = 0; j < found->n; j++) {
        const int64_t place = ordered ? j : found->ranked[j].place, at = i * call->k + j;
        call->parts[at] = found->parts[place];
        call->rows[at] = found->rows[place];
        call->scores[at] = call->vectors ? (double)value_of(found->ranks[place]) : (double)found->ranks[place];
    }
    call->counts[i] = found->n;
}

/* Compute the frequencies of the z terms of a query: exp((cosine - maximum) / temperature) times ``top`` in double
 * precision, rounded to integers from 1 to ``top``, with halves rounded to even. */
static void weigh(const float *cosines, int64_t z, double temperature, int top, int32_t *frequencies)
{
    float most = cosines[0];
    for (int64_t j = 1; j < z; j++)
        most = cosines[j] > most ? cosines[j] : most;
    for (int64_t j = 0; j < z; j++) {
        const double whole = rounded(exp(((double)cosines[j] - (double)most) / temperature) * top);
        frequencies[j] = whole >= 1 ? whole < top ? (int32_t)whole : top : 1;
    }
}

static const char *const OUT_OF_MEMORY = "memory";

/* Compute z terms for each query; queries equal to the mean have no terms. Return an error message or NULL. */
static const char *encode(Call *call)
{
    Search s = call->code->search;
    const int64_t n = call->n, d = s.d, z = s.z;
    float *centred = malloc((size_t)(n * d + n * z + 1) * sizeof *centred), *cosines = centred + n * d;
    int64_t *numbers = malloc((size_t)(n * z + 1) * sizeof *numbers);
    const char *wrong = OUT_OF_MEMORY;
    call->offsets = malloc((size_t)(n + 1) * sizeof *call->offsets);
    call->terms = malloc((size_t)(2 * n * z + 1) * sizeof *call->terms);
    if (centred && numbers && call->offsets && call->terms) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < d; j++)
                centred[i * d + j] = call->vectors[i * d + j] - call->code->mean[j];
        const int64_t fewest = find_nearest(&s, centred, n, numbers, cosines);
        wrong = fewest < 0   ? OUT_OF_MEMORY
                : fewest < z ? "the centroids are damaged: too few lie in the cells; rebuild the index"
                             : NULL;
    }
    call->weights = call->terms + n * z;
    for (int64_t i = 0, at = 0; wrong == NULL && i <= n; i++) {
        call->offsets[i] = at;
        if (i == n || largest_size(centred + i * d, d) == 0)
            continue;
        int32_t *const weights = call->weights + at;
        weigh(cosines + i * z, z, call->code->temperature, call->code->top, weights);
        const int64_t kept = call->code->kept > 0 && call->code->kept < z ? call->code->kept : z;
        const int32_t least = kept < z ? (int32_t)reached((const uint32_t *)weights, (size_t)z, (size_t)kept) : 0;
        int64_t equal = kept; /* number of terms with the minimum weight to keep, from the first on */
        for (int64_t j = 0; j < z; j++)
            equal -= weights[j] > least;
        for (int64_t j = 0; j < z; j++) {
            const int32_t weight = weights[j];
            if (weight > least || (weight == least && equal-- > 0)) {
                call->terms[at] = (int32_t)numbers[i * z + j];
                call->weights[at++] = weight;
            }
        }
    }
    free(centred);
    free(numbers);
    return wrong;
}

/* Answer all queries. Return an error message or NULL. */
static const char *answer(Call *call, Work *w)
{
    const char *wrong = make(w, call) ? NULL : OUT_OF_MEMORY;
    if (wrong == NULL && call->code != NULL && !call->all)
        wrong = encode(call);
    for (int64_t i = 0; i < call->n && wrong == NULL; i++) {
        int all = call->all;
        if (!all) {
            wrong = find_candidates(call, w, i);
            if (wrong != NULL || call->read < 0)
                break;
            const double shared = call->share * (double)(call->offsets[i + 1] - call->offsets[i]);
            const int64_t n = w->found.n;
            /* All rows that share a term are candidates, but other rows pass as well. */
            all = n < call->depth && n < call->whole->passing && (n < call->least || (double)n < shared);
        }
        call->read += all ? call->whole->passing : w->found.n;
        call->compared += all;
        if (all) {
            scan(call, w, i);
        } else if (call->vectors != NULL) {
            shorten(call, w, i);
            rank_candidates(call, w, i, 0, 0);
        }
        give(call, w, i);
    }
    if (call->code != NULL) {
        free(call->offsets);
        free(call->terms);
    }
    return wrong;
}

static void drop_capsule(PyObject *capsule) { drop(PyCapsule_GetPointer(capsule, PARTS_NAME)); }

static PyObject *parts(PyObject *module, PyObject *arguments)
{
    PyObject *signs, *parts, *capsule = NULL;
    Py_ssize_t d, block;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!nOn", &PyTuple_Type, &parts, &d, &signs, &block))
        return NULL;
    if (d < 0 || block < LANES || block > WHOLE || block % LANES)
        return PyErr_Format(PyExc_ValueError, "%zd components, and blocks of %zd rows; at least 0, and %d to %d by %d", d,
                            block, LANES, WHOLE, LANES);
    const Py_ssize_t n = PyTuple_Size(parts), n_arrays = n * PART_ARRAYS + 1;
    Whole *made = PyMem_Calloc(1, sizeof *made);
    if (made == NULL)
        return PyErr_NoMemory();
    made->d = d, made->n_parts = n, made->n_arrays = (int)n_arrays;
    made->arrays = PyMem_Calloc((size_t)n_arrays, sizeof *made->arrays);
    made->parts = PyMem_Calloc((size_t)n + 1, sizeof *made->parts);
    made->ids = PyMem_Calloc((size_t)n + 1, sizeof *made->ids);
    if (made->arrays == NULL || made->parts == NULL || made->ids == NULL)
        PyErr_NoMemory();
    else if (signs != Py_None) {
        Array *a = made->arrays + n * PART_ARRAYS;
        *a = (Array){"signs", "f", 2};
        if (!take(a, &signs, 1) && same_length(a->view.shape[0], ROUNDS, "rounds of signs") &&
            same_length(a->view.shape[1], d, "signs of another width"))
            made->signs = a->view.buf;
    }
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
        PyObject *arrays;
        Py_ssize_t rows;
        if (PyArg_ParseTuple(PyTuple_GetItem(parts, i), "O!n", &PyTuple_Type, &arrays, &rows))
            take_part(made, arrays, rows, i, block);
    }
    if (PyErr_Occurred() || (capsule = PyCapsule_New(made, PARTS_NAME, drop_capsule)) == NULL)
        drop(made);
    return capsule;
}

enum { QUERIES, OFFSETS, TERMS, WEIGHTS, ARRAYS };

/* Return whether the arrays of a call match each other and the parts; otherwise, set an error. */
static int fit(const Array *arrays, const Call *call)
{
    const int64_t n_terms = call->code ? 0 : arrays[TERMS].view.shape[0];
    int fits = call->k >= 1 && call->k <= call->depth && call->depth <= INT32_MAX && call->size >= 1 && call->least >= 0 &&
               call->share >= 0 &&
               (call->vectors != NULL ? call->whole->d > 0
                                      : !(call->code || call->all || call->least > 0 || call->share > 0));
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "k and the numbers of the plan must be within their limits");
    if (fits && call->vectors != NULL)
        fits = same_length(arrays[QUERIES].view.shape[0], call->n, "vectors for another number of queries") &&
               same_length(arrays[QUERIES].view.shape[1], call->whole->d, "queries of another width");
    if (fits && call->code != NULL)
        return same_length(call->code->search.d, call->whole->d, "a code of another width");
    int rising = fits && same_length(arrays[OFFSETS].view.shape[0], call->n + 1, "offsets") && call->offsets[0] >= 0;
    for (int64_t i = 0; rising && i < call->n; i++)
        rising = call->offsets[i] <= call->offsets[i + 1];
    if (fits && !PyErr_Occurred() &&
        (!rising || call->offsets[call->n] > n_terms || arrays[WEIGHTS].view.shape[0] != n_terms))
        PyErr_SetString(PyExc_ValueError, "offsets must rise within terms and weights");
    return !PyErr_Occurred();
}

/* Allocate memory for the results of a call: bytes for parts, rows and scores, and a list of counts. Set an error on
 * failure. */
static int make_results(Call *call, PyObject **results)
{
    const Py_ssize_t sizes[] = {sizeof *call->parts, sizeof *call->rows, sizeof *call->scores, sizeof *call->counts};
    if (call->n > PY_SSIZE_T_MAX / 8 / call->k) {
        PyErr_NoMemory();
        return 0;
    }
    for (int i = 0; i < 4; i++)
        if ((results[i] = PyBytes_FromStringAndSize(NULL, sizes[i] * call->n * (i < 3 ? call->k : 1))) == NULL)
            return 0;
    call->parts = (void *)PyBytes_AsString(results[0]);
    call->rows = (void *)PyBytes_AsString(results[1]);
    call->scores = (void *)PyBytes_AsString(results[2]);
    call->counts = (void *)PyBytes_AsString(results[3]);
    return 1;
}

static PyObject *best_rows(PyObject *module, PyObject *arguments)
{
    Array arrays[ARRAYS] = {{"vectors", "f", 2}, {"offsets", "q", 1}, {"terms", "i", 1}, {"weights", "i", 1}};
    PyObject *objects[ARRAYS] = {NULL}, *results[4] = {NULL}, *capsule, *source, *result = NULL;
    const char *way, *otherwise;
    Py_ssize_t depth, size, least, k;
    double share, unscored;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O(snnndsd)nOO", &capsule, &way, &depth, &size, &least, &share, &otherwise,
                          &unscored, &k, objects + QUERIES, &source))
        return NULL;
    Whole *whole = PyCapsule_GetPointer(capsule, PARTS_NAME);
    const Code *code = PyCapsule_CheckExact(source) ? PyCapsule_GetPointer(source, CODE) : NULL;
    int taken = whole != NULL && !PyErr_Occurred() &&
                (code != NULL ||
                 PyArg_ParseTuple(source, "OOO", objects + OFFSETS, objects + TERMS, objects + WEIGHTS));
    for (int i = 0; taken && i < ARRAYS; i++)
        if (objects[i] != NULL && (i != QUERIES || objects[i] != Py_None))
            taken = !take(arrays + i, objects + i, 1);
    if (taken) {
        Call call = {.whole = whole, .code = code, .offsets = arrays[OFFSETS].view.buf, .terms = arrays[TERMS].view.buf,
                     .weights = arrays[WEIGHTS].view.buf, .vectors = arrays[QUERIES].view.buf, .k = k,
                     .all = strcmp(way, "all") == 0, .depth = depth, .size = size, .least = least, .share = share};
        if (arrays[QUERIES].view.obj != NULL)
            call.n = arrays[QUERIES].view.shape[0];
        else if (arrays[OFFSETS].view.obj != NULL && arrays[OFFSETS].view.shape[0] > 0)
            call.n = arrays[OFFSETS].view.shape[0] - 1;
        if (fit(arrays, &call) && make_results(&call, results)) {
            const char *wrong;
            Work w = whole->spare;
            whole->spare = (Work){0};
            call.depth = depth < whole->rows ? depth : whole->rows > 0 ? whole->rows : 1;
            Py_BEGIN_ALLOW_THREADS
            wrong = answer(&call, &w);
            Py_END_ALLOW_THREADS
            if (whole->spare.held_room == 0 && w.held_most <= SPARE) {
                whole->spare = w;
                w = (Work){0};
            }
            leave(&w);
            if (wrong == OUT_OF_MEMORY)
                PyErr_NoMemory();
            else if (wrong != NULL)
                PyErr_SetString(PyExc_ValueError, wrong);
            else
                result = Py_BuildValue("OOOOLL", results[0], results[1], results[2], results[3], (long long)call.read,
                                       (long long)call.compared);
        }
    }
    for (int i = 0; i < 4; i++)
        Py_XDECREF(results[i]);
    release(arrays, ARRAYS);
    return result;
}

/* Return the string ``row``, which begins at data[offsets[row]], or NULL with ValueError if it lies outside the arrays.
 * */
static const char *string_at(const Array *data, const Array *offsets, int64_t row, Py_ssize_t *length)
{
    const int64_t *ends = offsets->view.buf, held = offsets->view.shape[0] - 1, is_row = row >= 0 && row < held;
    const int64_t begin = is_row ? ends[row] : -1, end = is_row ? ends[row + 1] : -1;
    *length = (Py_ssize_t)(end - begin);
    if (begin >= 0 && begin <= end && end <= data->view.len)
        return (const char *)data->view.buf + begin;
    PyErr_Format(PyExc_ValueError, "no string %lld of %lld", (long long)row, (long long)held);
    return NULL;
}

static PyObject *strings(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"rows", "q", 1}, {"data", "B", 1}, {"offsets", "q", 1}};
    PyObject *texts = NULL;
    (void)module;
    if (n_objects != 3)
        return PyErr_Format(PyExc_TypeError, "strings takes 3 arrays");
    if (!take(arrays, objects, 3)) {
        const int64_t *rows = arrays[0].view.buf, *offsets = arrays[2].view.buf;
        const int64_t n = arrays[0].view.shape[0], held = arrays[2].view.shape[0] - 1;
        texts = PyList_New(n);
        for (int64_t i = 0; i < n; i++) /* prefetch scattered offsets before reading the first */
            if (rows[i] >= 0 && rows[i] < held)
                PREFETCH(offsets + rows[i]);
        for (int64_t i = 0; texts != NULL && i < n; i++) {
            Py_ssize_t length;
            const char *bytes = string_at(arrays + 1, arrays + 2, rows[i], &length);
            PyObject *text = bytes == NULL ? NULL : PyUnicode_DecodeUTF8(bytes, length, NULL);
            if (text == NULL)
                Py_CLEAR(texts);
            else
                PyList_SetItem(texts, i, text);
        }
    }
    release(arrays, 3);
    return texts;
}

/* UTF-8 bytes sort in the same order as code points. */
static PyObject *find(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"data", "B", 1}, {"offsets", "q", 1}};
    Py_ssize_t size, length;
    int64_t row = -1;
    (void)module;
    if (n_objects != 3)
        return PyErr_Format(PyExc_TypeError, "find takes a string and 2 arrays");
    const char *value = PyUnicode_AsUTF8AndSize(objects[0], &size);
    if (value == NULL) { /* a lone surrogate, which does not occur in any string */
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return NULL;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (!take(arrays, objects + 1, 2))
        for (int64_t low = 0, high = arrays[1].view.shape[0] - 1; row < 0 && low < high;) {
            const int64_t middle = low + (high - low) / 2;
            const char *bytes = string_at(arrays, arrays + 1, middle, &length);
            if (bytes == NULL)
                break;
            int order = memcmp(bytes, value, (size_t)(length < size ? length : size));
            order = order ? order : (length > size) - (length < size);
            if (order < 0)
                low = middle + 1;
            else if (order > 0)
                high = middle;
            else
                row = middle;
        }
    release(arrays, 2);
    if (PyErr_Occurred())
        return NULL;
    if (row < 0)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(row);
}

static PyMethodDef methods[] = {
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL,
     "find(value, data, offsets): the row of a string among sorted ones, in UTF-8 as ``strings`` takes them, or None."},
    {"strings", (PyCFunction)(void (*)(void))strings, METH_FASTCALL,
     "strings(rows, data, offsets): the strings of some rows, UTF-8 in data[offsets[row]:offsets[row + 1]]."},
    {"parts", parts, METH_VARARGS,
     "parts(parts, d, signs, block): what ``best`` needs for vectors of width d, lists in blocks of rows. A part is a tuple of (starts, rows, frequencies, "
     "peaks, mask, bytes of ids, their offsets, vectors, compact codes, their scales), of which all behind the peaks may "
     "be None, and its number of rows. Several parts need ids; d is 0 without vectors."},
    {"code", code, METH_VARARGS,
     "code(mean, heads, head_scales, starts, vectors, scales, z, cells, temperature, top, [kept]): a dictionary, which makes "
     "the terms of queries, of which it keeps those of largest weight."},
    {"best", best_rows, METH_VARARGS,
     "best(parts, plan, k, vectors, terms): the k best rows of each query, as the plan says, a tuple (boc/plan.py): by the "
     "products with ``vectors``, or if those are None by posting lists. ``terms`` are a code, or offsets, terms and "
     "weights; those of query i begin at offsets[i]. Return as bytes the parts (int32), rows (int64) and scores (double) "
     "of k places per query, and how many of these it fills (int64); the number of candidates, less than 0 if a score may "
     "be 2**32 or more, and of the queries that were compared with all rows that the masks select."},
    {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_search", .m_methods = methods};

PyMODINIT_FUNC PyInit__search(void)
{
    if (!RUNS_HERE) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
        return NULL;
    }
    return PyModuleDef_Init(&definition);
}
