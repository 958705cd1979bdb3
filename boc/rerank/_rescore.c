/* Dot products of a query with chosen rows of a matrix, float16 or float32, read where they lie.

   A row takes part in nothing but its own sum: its product does not depend on the rows beside it. Sums run in float32 in
   4 accumulators of 16 lanes (AVX-512), 8 (AVX2) or 4 (NEON): their error is at most (d / (4 * lanes) + log2(4 * lanes) + 1) * 2**-24 *
   sum |q_i r_i|. Conversion from float16 is exact. For other processors there is no such module: numpy stands in. */

#include "../_kernels.h"
#include <stdlib.h>

#define AHEAD 4096 /* bytes of rows to prefetch */
#define WIDEST 16  /* lanes */

typedef uint16_t half;

/* Products of ``query`` (d,), followed by zeros to a multiple of WIDEST, with n rows of ``matrix``: those ``chosen``, or
   the first. */
typedef void Kernel(const float *query, const void *matrix, const int64_t *chosen, int64_t n, int64_t d, float *out);

#define KERNEL(name, target, type, vector, lanes, zero, widen, floats, multiply_add, add, sum)                        \
    target static void name(const float *query, const void *matrix, const int64_t *chosen, int64_t n, int64_t d,      \
                            float *out)                                                                               \
    {                                                                                                                 \
        const type *rows = matrix;                                                                                    \
        const int64_t whole = d - d % (lanes), fours = d - d % (4 * (lanes)), size = d * (int64_t)sizeof(type);       \
        const int64_t ahead = 1 + AHEAD / (size + 1);                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                             \
            const type *row = rows + (chosen ? chosen[i] : i) * d;                                                    \
            if (i + ahead < n) {                                                                                      \
                const char *later = (const char *)(rows + (chosen ? chosen[i + ahead] : i + ahead) * d);              \
                for (int64_t byte = 0; byte < size; byte += LINE)                                                     \
                    PREFETCH(later + byte);                                                                           \
            }                                                                                                         \
            vector s0 = zero, s1 = zero, s2 = zero, s3 = zero;                                                        \
            int64_t j = 0;                                                                                            \
            for (; j < fours; j += 4 * (lanes)) {                                                                     \
                s0 = multiply_add(widen(row + j), floats(query + j), s0);                                             \
                s1 = multiply_add(widen(row + j + (lanes)), floats(query + j + (lanes)), s1);                         \
                s2 = multiply_add(widen(row + j + 2 * (lanes)), floats(query + j + 2 * (lanes)), s2);                 \
                s3 = multiply_add(widen(row + j + 3 * (lanes)), floats(query + j + 3 * (lanes)), s3);                 \
            }                                                                                                         \
            for (; j < whole; j += (lanes))                                                                           \
                s0 = multiply_add(widen(row + j), floats(query + j), s0);                                             \
            if (j < d) {                                                                                              \
                type rest[lanes] = {0};                                                                               \
                memcpy(rest, row + j, (size_t)(d - j) * sizeof(type));                                                \
                s1 = multiply_add(widen(rest), floats(query + j), s1);                                                \
            }                                                                                                         \
            out[i] = sum(add(add(s0, s1), add(s2, s3)));                                                              \
        }                                                                                                             \
    }

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define WIDEN(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))

AVX2 static inline float sum_of(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

KERNEL(of_halves, AVX2, half, __m256, 8, _mm256_setzero_ps(), WIDEN, _mm256_loadu_ps, _mm256_fmadd_ps, _mm256_add_ps,
       sum_of)
KERNEL(of_floats, AVX2, float, __m256, 8, _mm256_setzero_ps(), _mm256_loadu_ps, _mm256_loadu_ps, _mm256_fmadd_ps,
       _mm256_add_ps, sum_of)
#define AVX512 __attribute__((target("avx512f")))
#define WIDEN512(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))

KERNEL(of_halves_512, AVX512, half, __m512, 16, _mm512_setzero_ps(), WIDEN512, _mm512_loadu_ps, _mm512_fmadd_ps,
       _mm512_add_ps, _mm512_reduce_add_ps)
KERNEL(of_floats_512, AVX512, float, __m512, 16, _mm512_setzero_ps(), _mm512_loadu_ps, _mm512_loadu_ps, _mm512_fmadd_ps,
       _mm512_add_ps, _mm512_reduce_add_ps)
#define OF_HALVES (__builtin_cpu_supports("avx512f") ? of_halves_512 : of_halves)
#define OF_FLOATS (__builtin_cpu_supports("avx512f") ? of_floats_512 : of_floats)
#define RUNS_HERE (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) /* every such processor has F16C */

#elif defined(__GNUC__) && defined(__aarch64__)
#include <arm_neon.h>
#define WIDEN(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define MULTIPLY_ADD(a, b, sum) vfmaq_f32(sum, a, b)

KERNEL(of_halves, , half, float32x4_t, 4, vdupq_n_f32(0), WIDEN, vld1q_f32, MULTIPLY_ADD, vaddq_f32, vaddvq_f32)
KERNEL(of_floats, , float, float32x4_t, 4, vdupq_n_f32(0), vld1q_f32, vld1q_f32, MULTIPLY_ADD, vaddq_f32, vaddvq_f32)
#define OF_HALVES of_halves
#define OF_FLOATS of_floats
#define RUNS_HERE 1

#else
#error "neither AVX2 nor NEON: numpy stands in"
#endif

/* Whether the chosen rows are among those held, and the queries as wide; else an error is set. */
static int fit(int64_t width, const Array *rows, const Array *chosen)
{
    const int64_t held = rows->view.shape[0], n = chosen ? chosen->view.shape[0] : 0;
    const int64_t *numbers = chosen ? chosen->view.buf : NULL;
    for (int64_t i = 0; i < n; i++)
        if (numbers[i] < 0 || numbers[i] >= held)
            return PyErr_Format(PyExc_IndexError, "no row %lld among %lld", (long long)numbers[i], (long long)held), 0;
    return same_length(width, rows->view.shape[1], "query for rows of another width");
}

/* The products of a query with n rows, those ``chosen`` or the first; ``padded`` has room for the query and WIDEST. */
static void multiply(const float *query, const Array *rows, const int64_t *chosen, int64_t n, float *padded, float *out)
{
    const int64_t d = rows->view.shape[1];
    Kernel *const kernel = rows->view.itemsize == sizeof(half) ? OF_HALVES : OF_FLOATS;
    memcpy(padded, query, (size_t)d * sizeof *padded);
    memset(padded + d, 0, WIDEST * sizeof *padded);
    kernel(padded, rows->view.buf, chosen, n, d, out);
}

static PyObject *dot(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"query", "f", 1}, {"rows", "ef", 2}, {"out", "f", 1, 1}, {"chosen", "q", 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 3 && n_objects != 4)
        return PyErr_Format(PyExc_TypeError, "dot takes 3 or 4 arrays");
    if (!take(arrays, objects, (int)n_objects)) {
        const Array *rows = arrays + 1, *out = arrays + 2, *chosen = n_objects == 4 ? arrays + 3 : NULL;
        const int64_t n = (chosen ? chosen : rows)->view.shape[0], d = rows->view.shape[1];
        float *padded = NULL;
        if (same_length(out->view.shape[0], n, "out for another number of rows") &&
            fit(arrays->view.shape[0], rows, chosen) && !(padded = PyMem_Malloc((size_t)(d + WIDEST) * sizeof *padded)))
            PyErr_NoMemory();
        if (padded) {
            Py_BEGIN_ALLOW_THREADS
            multiply(arrays->view.buf, rows, chosen ? chosen->view.buf : NULL, n, padded, out->view.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(padded);
    }
    release(arrays, 4);
    return result;
}

/* A chosen row: the sort key of its product, and its place among the chosen. */
typedef struct {
    uint32_t rank, place;
} Ranked;

static int best_first(const void *one, const void *other)
{
    const Ranked a = *(const Ranked *)one, b = *(const Ranked *)other;
    return a.rank != b.rank ? (a.rank < b.rank) - (a.rank > b.rank) : (a.place > b.place) - (a.place < b.place);
}

/* What ranking the candidates of one query needs: for n products, of which k are kept, and a query of width d. */
typedef struct {
    float *products, *padded;
    uint32_t *ranks;
    int64_t *places;
    Ranked *ranked;
} Room;

static void leave(Room *room)
{
    free(room->products);
    free(room->padded);
    free(room->ranks);
    free(room->places);
    free(room->ranked);
}

static int make(Room *room, int64_t n, int64_t k, int64_t d)
{
    *room = (Room){malloc((size_t)(n + 1) * sizeof *room->products), malloc((size_t)(d + WIDEST) * sizeof *room->padded),
                   malloc((size_t)(n + 1) * sizeof *room->ranks), malloc((size_t)(k + 1) * sizeof *room->places),
                   malloc((size_t)(k + 1) * sizeof *room->ranked)};
    return room->products && room->padded && room->ranks && room->places && room->ranked;
}

/* The k best of n products, the best first. */
static void rank(const Room *room, const int64_t *chosen, int64_t n, int64_t k, int64_t *found, float *scores)
{
    find_largest(room->products, n, k, room->ranks, room->places);
    for (int64_t i = 0; i < k; i++)
        room->ranked[i] = (Ranked){room->ranks[room->places[i]], (uint32_t)room->places[i]};
    qsort(room->ranked, (size_t)k, sizeof *room->ranked, best_first);
    for (int64_t i = 0; i < k; i++) {
        found[i] = chosen[room->ranked[i].place];
        scores[i] = room->products[room->ranked[i].place];
    }
}

enum { QUERIES, MATRIX, OFFSETS, CHOSEN, FOUND, SCORES, ARRAYS };

/* The largest number of candidates of a query; -1, with an error set, if the arrays do not fit each other. */
static int64_t most_of(const Array *arrays)
{
    const int64_t q = arrays[QUERIES].view.shape[0], total = arrays[CHOSEN].view.shape[0];
    const int64_t *offsets = arrays[OFFSETS].view.buf;
    int64_t most = 0;
    if (!same_length(arrays[OFFSETS].view.shape[0], q + 1, "offsets for another number of queries") ||
        !same_length(arrays[FOUND].view.shape[0], q, "found for another number of queries") ||
        !same_length(arrays[SCORES].view.shape[0], q, "scores for another number of queries") ||
        !same_length(arrays[SCORES].view.shape[1], arrays[FOUND].view.shape[1], "scores for another number of rows") ||
        !fit(arrays[QUERIES].view.shape[1], arrays + MATRIX, arrays + CHOSEN))
        return -1;
    int rising = offsets[0] == 0 && offsets[q] == total && total <= INT32_MAX;
    for (int64_t i = 0; i < q && rising; i++) {
        rising = offsets[i] <= offsets[i + 1];
        most = offsets[i + 1] - offsets[i] > most ? offsets[i + 1] - offsets[i] : most;
    }
    if (!rising)
        PyErr_Format(PyExc_ValueError, "offsets must rise from 0 to %lld", (long long)total);
    return rising ? most : -1;
}

static PyObject *best(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[ARRAYS] = {{"queries", "f", 2}, {"rows", "ef", 2},     {"offsets", "q", 1},
                            {"chosen", "q", 1},  {"found", "q", 2, 1}, {"scores", "f", 2, 1}};
    PyObject *result = NULL;
    int64_t most;
    (void)module;
    if (n_objects != ARRAYS)
        return PyErr_Format(PyExc_TypeError, "best takes %d arrays", ARRAYS);
    if (!take(arrays, objects, ARRAYS) && (most = most_of(arrays)) >= 0) {
        const int64_t q = arrays[QUERIES].view.shape[0], d = arrays[QUERIES].view.shape[1];
        const int64_t k = arrays[FOUND].view.shape[1], *offsets = arrays[OFFSETS].view.buf;
        const float *queries = arrays[QUERIES].view.buf;
        Room room;
        const int enough = make(&room, most, k, d);
        Py_BEGIN_ALLOW_THREADS
        for (int64_t i = 0; enough && i < q; i++) {
            const int64_t n = offsets[i + 1] - offsets[i], *chosen = (int64_t *)arrays[CHOSEN].view.buf + offsets[i];
            multiply(queries + i * d, arrays + MATRIX, chosen, n, room.padded, room.products);
            if (n && k)
                rank(&room, chosen, n, k < n ? k : n, (int64_t *)arrays[FOUND].view.buf + i * k,
                     (float *)arrays[SCORES].view.buf + i * k);
        }
        Py_END_ALLOW_THREADS
        leave(&room);
        if (enough)
            result = Py_NewRef(Py_None);
        else
            PyErr_NoMemory();
    }
    release(arrays, ARRAYS);
    return result;
}

static PyMethodDef methods[] = {
    {"dot", (PyCFunction)(void (*)(void))dot, METH_FASTCALL,
     "dot(query, rows, out, [chosen]): dot products with all rows, or with the chosen ones, into out."},
    {"best", (PyCFunction)(void (*)(void))best, METH_FASTCALL,
     "best(queries, rows, offsets, chosen, found, scores): of the rows chosen for each query those of the largest "
     "products, the largest first, of equal ones the one chosen first. If fewer are chosen, the rest stays as it is."},
    {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_rescore", .m_methods = methods};

PyMODINIT_FUNC PyInit__rescore(void)
{
    if (!RUNS_HERE) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
        return NULL;
    }
    return PyModuleDef_Init(&definition);
}
