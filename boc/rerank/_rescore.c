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

/* The products of a query with the chosen rows, or with all, in newly allocated memory; NULL with an error set. */
static float *products_of(const Array *query, const Array *rows, const Array *chosen, int64_t n)
{
    const int64_t held = rows->view.shape[0], d = rows->view.shape[1], *numbers = chosen ? chosen->view.buf : NULL;
    if (!same_length(query->view.shape[0], d, "query for rows of another width"))
        return NULL;
    for (int64_t i = 0; numbers && i < n; i++)
        if (numbers[i] < 0 || numbers[i] >= held)
            return PyErr_Format(PyExc_IndexError, "no row %lld among %lld", (long long)numbers[i], (long long)held), NULL;
    float *padded = PyMem_Calloc((size_t)(n + d + WIDEST), sizeof *padded), *products = padded;
    if (!padded)
        return PyErr_NoMemory(), NULL;
    padded += n;
    memcpy(padded, query->view.buf, (size_t)d * sizeof *padded);
    Kernel *const kernel = rows->view.itemsize == sizeof(half) ? OF_HALVES : OF_FLOATS;
    Py_BEGIN_ALLOW_THREADS
    kernel(padded, rows->view.buf, numbers, n, d, products);
    Py_END_ALLOW_THREADS
    return products;
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
        const int64_t n = (chosen ? chosen : rows)->view.shape[0];
        float *products = NULL;
        if (same_length(out->view.shape[0], n, "out for another number of rows"))
            products = products_of(arrays, rows, chosen, n);
        if (products) {
            memcpy(out->view.buf, products, (size_t)n * sizeof *products);
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(products);
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

/* The k best of n products, the best first; 0 without memory. */
static int rank(const float *products, const int64_t *chosen, int64_t n, int64_t k, int64_t *found, float *scores)
{
    uint32_t *ranks = PyMem_Malloc((size_t)n * sizeof *ranks);
    int64_t *places = PyMem_Malloc((size_t)(k + 1) * sizeof *places);
    Ranked *ranked = PyMem_Malloc((size_t)k * sizeof *ranked);
    const int enough = ranks && places && ranked;
    if (enough) {
        find_largest(products, n, k, ranks, places);
        for (int64_t i = 0; i < k; i++)
            ranked[i] = (Ranked){ranks[places[i]], (uint32_t)places[i]};
        qsort(ranked, (size_t)k, sizeof *ranked, best_first);
        for (int64_t i = 0; i < k; i++) {
            found[i] = chosen[ranked[i].place];
            scores[i] = products[ranked[i].place];
        }
    }
    PyMem_Free(ranks);
    PyMem_Free(places);
    PyMem_Free(ranked);
    return enough;
}

static PyObject *best(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {
        {"query", "f", 1}, {"rows", "ef", 2}, {"chosen", "q", 1}, {"found", "q", 1, 1}, {"scores", "f", 1, 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 5)
        return PyErr_Format(PyExc_TypeError, "best takes 5 arrays");
    if (!take(arrays, objects, 5)) {
        const Array *chosen = arrays + 2, *found = arrays + 3, *scores = arrays + 4;
        const int64_t n = chosen->view.shape[0], k = found->view.shape[0];
        float *products = NULL;
        if (k > n || n > INT32_MAX)
            PyErr_Format(PyExc_ValueError, "the best %zd of %zd rows", (Py_ssize_t)k, (Py_ssize_t)n);
        else if (same_length(scores->view.shape[0], k, "scores for another number of rows"))
            products = products_of(arrays, arrays + 1, chosen, n);
        if (products && k && !rank(products, chosen->view.buf, n, k, found->view.buf, scores->view.buf))
            PyErr_NoMemory();
        else if (products)
            result = Py_NewRef(Py_None);
        PyMem_Free(products);
    }
    release(arrays, 5);
    return result;
}

static PyMethodDef methods[] = {
    {"dot", (PyCFunction)(void (*)(void))dot, METH_FASTCALL,
     "dot(query, rows, out, [chosen]): dot products with all rows, or with the chosen ones, into out."},
    {"best", (PyCFunction)(void (*)(void))best, METH_FASTCALL,
     "best(query, rows, chosen, found, scores): of the chosen rows those of the largest products, the largest first, of "
     "equal ones the one chosen first."},
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
