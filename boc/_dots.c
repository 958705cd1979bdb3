/* Dot products of queries with chosen rows of a matrix, read where they lie, the nearest of centroids in cells, and the
   largest entries of rows.

   A row takes part in nothing but its own sum: its product does not depend on the rows beside it. Each sum runs in
   float32 in 4 accumulators of as many lanes as the machine has (16, 8, 4, or 1 without vectors): its error is at most
   (d / (4 * lanes) + log2(4 * lanes) + 1) * 2**-24 * sum |q_i r_i|. Conversion from float16 is exact. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define X86
#elif defined(__GNUC__) && defined(__aarch64__)
#include <arm_neon.h>
#define NEON
#endif

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

#define WIDEST 16    /* lanes */
#define AHEAD 4096   /* bytes of rows that are fetched before they are needed */
#define LINE 64      /* bytes */
#define NEAR 65536   /* bytes of heads that are compared with one query after the other */
#define TOGETHER (1 << 21) /* numbers held for the queries that are answered together */
#define SEVERAL 4    /* queries that share a row */
#define FEW 16       /* keys that are sorted by insertion */

typedef uint16_t half;

/* Products of ``query`` (d,), followed by zeros to a multiple of 16, with n rows of ``matrix``: those ``chosen``, or
   the first. */
typedef void Kernel(const float *query, const void *matrix, const int64_t *chosen, int64_t n, int64_t d, float *out);

/* The same, bit by bit, of several queries with the first n rows, each of which is converted once. */
typedef void Several(const float *const *queries, const void *matrix, int64_t n, int64_t d, float *const *out);

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
    }                                                                                                                 \
    target static void several_##name(const float *const *queries, const void *matrix, int64_t n, int64_t d,          \
                                      float *const *out)                                                              \
    {                                                                                                                 \
        const int64_t whole = d - d % (lanes), fours = d - d % (4 * (lanes));                                         \
        for (int64_t i = 0; i < n; i++) {                                                                             \
            const type *row = (const type *)matrix + i * d;                                                           \
            vector s[SEVERAL][4];                                                                                     \
            for (int q = 0; q < SEVERAL; q++)                                                                         \
                s[q][0] = s[q][1] = s[q][2] = s[q][3] = zero;                                                         \
            int64_t j = 0;                                                                                            \
            for (; j < fours; j += 4 * (lanes))                                                                       \
                for (int part = 0; part < 4; part++) {                                                                \
                    const vector wide = widen(row + j + part * (lanes));                                              \
                    for (int q = 0; q < SEVERAL; q++)                                                                 \
                        s[q][part] = multiply_add(wide, floats(queries[q] + j + part * (lanes)), s[q][part]);         \
                }                                                                                                     \
            for (; j < whole; j += (lanes))                                                                           \
                for (int q = 0; q < SEVERAL; q++)                                                                     \
                    s[q][0] = multiply_add(widen(row + j), floats(queries[q] + j), s[q][0]);                          \
            if (j < d) {                                                                                              \
                type rest[lanes] = {0};                                                                               \
                memcpy(rest, row + j, (size_t)(d - j) * sizeof(type));                                                \
                for (int q = 0; q < SEVERAL; q++)                                                                     \
                    s[q][1] = multiply_add(widen(rest), floats(queries[q] + j), s[q][1]);                             \
            }                                                                                                         \
            for (int q = 0; q < SEVERAL; q++)                                                                         \
                out[q][i] = sum(add(add(s[q][0], s[q][1]), add(s[q][2], s[q][3])));                                   \
        }                                                                                                             \
    }

#ifdef X86

#define AVX512 __attribute__((target("avx512f")))
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define WIDEN512(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define WIDEN256(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))

AVX2 static inline float sum256(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

KERNEL(half_avx512, AVX512, half, __m512, 16, _mm512_setzero_ps(), WIDEN512, _mm512_loadu_ps, _mm512_fmadd_ps,
       _mm512_add_ps, _mm512_reduce_add_ps)
KERNEL(single_avx512, AVX512, float, __m512, 16, _mm512_setzero_ps(), _mm512_loadu_ps, _mm512_loadu_ps,
       _mm512_fmadd_ps, _mm512_add_ps, _mm512_reduce_add_ps)
KERNEL(half_avx2, AVX2, half, __m256, 8, _mm256_setzero_ps(), WIDEN256, _mm256_loadu_ps, _mm256_fmadd_ps,
       _mm256_add_ps, sum256)
KERNEL(single_avx2, AVX2, float, __m256, 8, _mm256_setzero_ps(), _mm256_loadu_ps, _mm256_loadu_ps, _mm256_fmadd_ps,
       _mm256_add_ps, sum256)

#elif defined(NEON)

#define WIDEN128(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define MULTIPLY_ADD128(a, b, sum) vfmaq_f32(sum, a, b)

KERNEL(half_neon, , half, float32x4_t, 4, vdupq_n_f32(0), WIDEN128, vld1q_f32, MULTIPLY_ADD128, vaddq_f32, vaddvq_f32)
KERNEL(single_neon, , float, float32x4_t, 4, vdupq_n_f32(0), vld1q_f32, vld1q_f32, MULTIPLY_ADD128, vaddq_f32,
       vaddvq_f32)

#endif

/* A float16 as a float, which holds each exactly. */
static inline float widened(const half *p)
{
    const uint32_t exponent = *p >> 10 & 31, fraction = *p & 1023;
    float value = (float)fraction * 0x1p-24f;
    if (exponent) {
        const uint32_t bits = (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
        memcpy(&value, &bits, sizeof value);
    }
    return *p >> 15 ? -value : value;
}

#define SAME(p) (*(p))
#define MULTIPLY_ADD(a, b, sum) ((a) * (b) + (sum))
#define ADD(a, b) ((a) + (b))

KERNEL(half_portable, , half, float, 1, 0, widened, SAME, MULTIPLY_ADD, ADD, )
KERNEL(single_portable, , float, float, 1, 0, SAME, SAME, MULTIPLY_ADD, ADD, )

typedef struct {
    const char *name;
    Kernel *half, *single;
    Several *several_half, *several_single;
} Path;

#define PATH(name) {#name, half_##name, single_##name, several_half_##name, several_single_##name}

static const Path PATHS[] = { /* the best first */
#ifdef X86
    PATH(avx512),
    PATH(avx2),
#elif defined(NEON)
    PATH(neon),
#endif
    PATH(portable),
};
#define N_PATHS ((int)(sizeof PATHS / sizeof *PATHS))

static const Path *path;

static int runs_here(const Path *asked)
{
#ifdef X86
    if (!strcmp(asked->name, "avx512"))
        return __builtin_cpu_supports("avx512f");
    if (!strcmp(asked->name, "avx2")) /* whatever has it has F16C */
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)asked;
    return 1;
}

/* Orders as the pair (number, -place) does. */
static inline int64_t key_of_ordered(int32_t number, int64_t place)
{
    return (int64_t)number * ((int64_t)1 << 32) + (int64_t)(UINT32_MAX - (uint32_t)place);
}

/* Orders as the pair (score, -place) does, whatever the score: no two are equal. */
static inline int64_t key_of(float score, int64_t place)
{
    int32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return key_of_ordered(bits ^ (bits < 0 ? INT32_MAX : 0), place);
}

static inline int64_t place_of(int64_t key)
{
    return (int64_t)(UINT32_MAX - (uint32_t)((uint64_t)key & UINT32_MAX));
}

static inline float score_of(int64_t key)
{
    int32_t bits = (int32_t)((key - (int64_t)((uint64_t)key & UINT32_MAX)) / ((int64_t)1 << 32));
    float score;
    bits ^= bits < 0 ? INT32_MAX : 0;
    memcpy(&score, &bits, sizeof score);
    return score;
}

static inline void swap(int64_t *a, int64_t *b)
{
    const int64_t kept = *a;
    *a = *b;
    *b = kept;
}

/* The k largest of n distinct keys come first, the largest of all at the front: quicksort of those parts only that
   hold some of them. */
static void largest_first(int64_t *keys, int64_t n, int64_t k)
{
    while (n > FEW && k > 0) {
        int64_t *last = keys + n - 1, *middle = keys + n / 2, larger = 0;
        if (*keys < *middle)
            swap(keys, middle);
        if (*middle < *last)
            swap(middle, last);
        if (*keys < *last)
            swap(keys, last); /* the median of three is the pivot, and last */
        const int64_t pivot = *last;
        for (int64_t i = 0; i < n - 1; i++) { /* without a branch, which would be mispredicted every other time */
            const int64_t key = keys[i];
            keys[i] = keys[larger];
            keys[larger] = key;
            larger += key > pivot;
        }
        swap(keys + larger, last);
        int64_t *rest = keys + larger + 1;
        const int64_t left = n - larger - 1, wanted = k - larger - 1;
        if (larger < left) {
            largest_first(keys, larger, k < larger ? k : larger);
            keys = rest, n = left, k = wanted;
        } else {
            largest_first(rest, left, wanted);
            n = larger, k = k < larger ? k : larger;
        }
    }
    if (k <= 0)
        return;
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && keys[j - 1] < keys[j]; j--)
            swap(keys + j - 1, keys + j);
}

/* One array of a caller. */
typedef struct {
    Py_buffer view;
    int held;
} Array;

static void release(Array *arrays, int n)
{
    for (int i = 0; i < n; i++)
        if (arrays[i].held)
            PyBuffer_Release(&arrays[i].view);
}

/* Takes an array that lies in one piece and whose items are of one of some types: letters as of the module struct, "q"
   for any whole number of 8 bytes, in the byte order of this machine, named or not. ValueError otherwise. */
static int take(Array *array, PyObject *object, const char *name, int ndim, const char *types, int writable)
{
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    array->held = 0;
    if (PyObject_GetBuffer(object, &array->view, flags))
        return -1;
    array->held = 1;
    const char *format = array->view.format;
    if (format && format[0] && strchr(PY_LITTLE_ENDIAN ? "<=@" : ">=@", format[0]))
        format++;
    char type = format && format[0] && !format[1] ? format[0] : 0;
    if (type == 'l' && array->view.itemsize == 8)
        type = 'q';
    if (array->view.ndim != ndim || !type || !strchr(types, type)) {
        PyErr_Format(PyExc_ValueError, "%s must have %d dimensions and items of type %s", name, ndim, types);
        return -1;
    }
    return 0;
}

static int same_length(Py_ssize_t found, Py_ssize_t wanted, const char *what)
{
    if (found != wanted)
        PyErr_Format(PyExc_ValueError, "%s: %zd for %zd", what, found, wanted);
    return found == wanted;
}

static int all_there(const int64_t *numbers, int64_t n, int64_t held)
{
    for (int64_t i = 0; i < n; i++)
        if (numbers[i] < 0 || numbers[i] >= held) {
            PyErr_Format(PyExc_IndexError, "no row %lld among %lld", (long long)numbers[i], (long long)held);
            return 0;
        }
    return 1;
}

static Kernel *kernel_for(const Array *rows)
{
    return rows->view.itemsize == sizeof(half) ? path->half : path->single;
}

/* Rows of a matrix, each of ``size`` bytes. */
typedef struct {
    const char *rows;
    int64_t size, d;
    Kernel *kernel;
    Several *several;
} Rows;

static Rows rows_of(const Array *array)
{
    const Py_buffer *view = &array->view;
    return (Rows){view->buf, view->shape[1] * view->itemsize, view->shape[1], kernel_for(array),
                  view->itemsize == sizeof(half) ? path->several_half : path->several_single};
}

static int64_t padded(int64_t d)
{
    return (d + WIDEST - 1) / WIDEST * WIDEST;
}

static PyObject *dot(PyObject *module, PyObject *args)
{
    PyObject *query_, *rows_, *chosen_, *out_, *result = NULL;
    Array arrays[4] = {{.held = 0}}, *query = arrays, *rows = arrays + 1, *out = arrays + 2, *chosen = arrays + 3;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO:dot", &query_, &rows_, &chosen_, &out_))
        return NULL;
    if (take(query, query_, "query", 1, "f", 0) || take(rows, rows_, "rows", 2, "ef", 0) ||
        take(out, out_, "out", 1, "f", 1) || (chosen_ != Py_None && take(chosen, chosen_, "chosen", 1, "q", 0)))
        goto done;
    const int64_t held = rows->view.shape[0], d = rows->view.shape[1];
    const int64_t n = chosen->held ? chosen->view.shape[0] : held;
    const int64_t *numbers = chosen->held ? chosen->view.buf : NULL;
    if (!same_length(query->view.shape[0], d, "query for rows of another width") ||
        !same_length(out->view.shape[0], n, "out for another number of rows"))
        goto done;
    if (numbers && !all_there(numbers, n, held))
        goto done;
    float *whole = PyMem_Calloc((size_t)padded(d) + 1, sizeof *whole);
    if (!whole) {
        PyErr_NoMemory();
        goto done;
    }
    memcpy(whole, query->view.buf, (size_t)d * sizeof *whole);
    Kernel *const kernel = kernel_for(rows);
    Py_BEGIN_ALLOW_THREADS
    kernel(whole, rows->view.buf, numbers, n, d, out->view.buf);
    Py_END_ALLOW_THREADS
    PyMem_Free(whole);
    result = Py_NewRef(Py_None);
done:
    release(arrays, 4);
    return result;
}

/* Compares ``count`` queries, at most SEVERAL, with n rows. */
static void compare(const Rows *rows, int64_t first, int64_t n, const float *const *queries, float *const *out,
                    int64_t count)
{
    const char *matrix = rows->rows + first * rows->size;
    if (count == SEVERAL)
        rows->several(queries, matrix, n, rows->d, out);
    else
        for (int64_t i = 0; i < count; i++)
            rows->kernel(queries[i], matrix, NULL, n, rows->d, out[i]);
}

/* A search of ``together`` queries at a time for the ``z`` nearest centroids in the ``cells`` cells of the nearest
   heads. A query takes ``width`` floats in ``queries`` and ``room`` in ``scores``. Cell j that it asks is
   ``cell[j]`` of its own, with scores from ``place[j]``; ``asked`` lists these pairs by cell, as ``begins`` bound them. */
typedef struct {
    const int64_t *starts;
    Rows heads, vectors;
    int64_t m, cells, z, room, width, together;
    float *queries, *scores;
    int64_t *keys, *cell, *place, *asked, *begins;
} Search;

/* The cells that query i asks; how many centroids they hold. */
static int64_t choose_cells(const Search *s, int64_t i)
{
    int64_t held = 0;
    for (int64_t j = 0; j < s->m; j++)
        s->keys[j] = key_of(s->scores[i * s->room + j], j);
    largest_first(s->keys, s->m, s->cells);
    for (int64_t j = 0; j < s->cells; j++) {
        const int64_t cell = place_of(s->keys[j]);
        s->cell[i * s->cells + j] = cell;
        s->place[i * s->cells + j] = held;
        held += s->starts[cell + 1] - s->starts[cell];
    }
    return held;
}

/* Lists the pairs of n queries and cells by cell. */
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

/* The z nearest of each of n queries; the fewest centroids that one had to choose from. Heads, a few at a time, and
   cells are compared with all queries that ask for them, so that they are read from memory once. */
static int64_t nearest_to(const Search *s, int64_t n, int64_t *numbers, float *dots)
{
    const int64_t few = 1 + NEAR / s->heads.size;
    const float *queries[SEVERAL];
    float *out[SEVERAL];
    int64_t count = 0;
    for (int64_t first = 0; first < s->m; first += few)
        for (int64_t i = 0; i < n; i++) {
            queries[count] = s->queries + i * s->width;
            out[count++] = s->scores + i * s->room + first;
            if (count == SEVERAL || i + 1 == n) {
                compare(&s->heads, first, s->m - first < few ? s->m - first : few, queries, out, count);
                count = 0;
            }
        }
    int64_t fewest = INT64_MAX;
    for (int64_t i = 0; i < n; i++) {
        const int64_t held = choose_cells(s, i);
        fewest = held < fewest ? held : fewest;
    }
    if (fewest < s->z)
        return fewest;
    order_by_cell(s, n);
    for (int64_t cell = 0; cell < s->m; cell++)
        for (int64_t at = s->begins[cell]; at < s->begins[cell + 1]; at++) {
            const int64_t pair = s->asked[at], i = pair / s->cells;
            queries[count] = s->queries + i * s->width;
            out[count++] = s->scores + i * s->room + s->place[pair];
            if (count == SEVERAL || at + 1 == s->begins[cell + 1]) {
                compare(&s->vectors, s->starts[cell], s->starts[cell + 1] - s->starts[cell], queries, out, count);
                count = 0;
            }
        }
    for (int64_t i = 0; i < n; i++) {
        const float *score = s->scores + i * s->room;
        int64_t held = 0;
        for (int64_t pair = i * s->cells; pair < (i + 1) * s->cells; pair++)
            for (int64_t row = s->starts[s->cell[pair]]; row < s->starts[s->cell[pair] + 1]; row++, held++)
                s->keys[held] = key_of(score[held], row);
        largest_first(s->keys, held, s->z);
        for (int64_t j = 0; j < s->z; j++) {
            numbers[i * s->z + j] = place_of(s->keys[j]);
            dots[i * s->z + j] = score_of(s->keys[j]);
        }
    }
    return fewest;
}

/* Whether ``starts`` bound ``m`` cells of ``held`` centroids; ``room`` is what the ``cells`` largest could hold. */
static int bounds(const int64_t *starts, int64_t m, int64_t held, int64_t cells, int64_t *room)
{
    int64_t widest = 0;
    for (int64_t i = 0; i < m; i++) {
        const int64_t width = starts[i + 1] - starts[i];
        if (starts[i] < 0 || width < 0 || starts[i + 1] > held)
            return 0;
        widest = width > widest ? width : widest;
    }
    *room = widest > held / cells ? held : widest * cells;
    *room = *room > m ? *room : m;
    return 1;
}

static PyObject *nearest(PyObject *module, PyObject *args)
{
    static const char *const NAMES[] = {"queries", "heads", "starts", "vectors", "numbers", "dots"};
    static const char *const TYPES[] = {"f", "ef", "q", "ef", "q", "f"};
    static const int DIMENSIONS[] = {2, 2, 1, 2, 2, 2};
    PyObject *objects[6], *result = NULL;
    Array arrays[6] = {{.held = 0}};
    Py_ssize_t cells;
    Search s = {.queries = NULL};
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOnOO:nearest", &objects[0], &objects[1], &objects[2], &objects[3], &cells,
                          &objects[4], &objects[5]))
        return NULL;
    for (int i = 0; i < 6; i++)
        if (take(arrays + i, objects[i], NAMES[i], DIMENSIONS[i], TYPES[i], i > 3))
            goto done;
    const Py_buffer *queries = &arrays[0].view, *heads = &arrays[1].view, *vectors = &arrays[3].view;
    const Py_buffer *numbers = &arrays[4].view, *dots = &arrays[5].view;
    const int64_t n = queries->shape[0], held = vectors->shape[0];
    s = (Search){.starts = arrays[2].view.buf, .heads = rows_of(arrays + 1), .vectors = rows_of(arrays + 3),
                 .m = heads->shape[0], .cells = cells, .z = numbers->shape[1],
                 .width = padded(queries->shape[1]) + 1};
    if (!same_length(heads->shape[1], queries->shape[1], "heads for queries of another width") ||
        !same_length(vectors->shape[1], queries->shape[1], "vectors for queries of another width") ||
        !same_length(arrays[2].view.shape[0], s.m + 1, "starts for another number of heads") ||
        !same_length(numbers->shape[0], n, "numbers for another number of queries") ||
        !same_length(dots->shape[0], n, "dots for another number of queries") ||
        !same_length(dots->shape[1], s.z, "dots for another number of nearest"))
        goto done;
    if (s.cells < 1 || s.cells > s.m || held > UINT32_MAX || !bounds(s.starts, s.m, held, s.cells, &s.room)) {
        PyErr_Format(PyExc_ValueError, "cells: %zd of %zd, or starts that do not rise within %zd vectors", cells,
                     (Py_ssize_t)s.m, (Py_ssize_t)held);
        goto done;
    }
    s.together = 1 + TOGETHER / (s.room + s.width + 4 * s.cells);
    s.together = s.together < n ? s.together : n;
    const size_t pairs = (size_t)(s.together * s.cells);
    s.queries = PyMem_Calloc((size_t)(s.together * s.width) + 1, sizeof *s.queries);
    s.scores = PyMem_Malloc((size_t)(s.together * s.room) * sizeof *s.scores);
    s.keys = PyMem_Malloc(((size_t)s.room + 3 * pairs + (size_t)s.m + 1) * sizeof *s.keys);
    if (!s.queries || !s.scores || !s.keys) {
        PyErr_NoMemory();
        goto done;
    }
    s.cell = s.keys + s.room, s.place = s.cell + pairs, s.asked = s.place + pairs, s.begins = s.asked + pairs;
    int64_t found = s.z;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t first = 0; first < n && found >= s.z; first += s.together) {
        const int64_t count = n - first < s.together ? n - first : s.together;
        for (int64_t i = 0; i < count; i++)
            memcpy(s.queries + i * s.width, (const float *)queries->buf + (first + i) * queries->shape[1],
                   (size_t)queries->shape[1] * sizeof *s.queries);
        found = nearest_to(&s, count, (int64_t *)numbers->buf + first * s.z, (float *)dots->buf + first * s.z);
    }
    Py_END_ALLOW_THREADS
    if (found < s.z)
        PyErr_Format(PyExc_ValueError, "%zd nearest of %zd in %zd cells; search more of them", (Py_ssize_t)s.z,
                     (Py_ssize_t)found, cells);
    else
        result = Py_NewRef(Py_None);
done:
    PyMem_Free(s.queries);
    PyMem_Free(s.scores);
    PyMem_Free(s.keys);
    release(arrays, 6);
    return result;
}

/* Finite float16s as floats, by shifting the exponent to where a product puts it right: a loop without branches. */
static void widen_row(const half *row, int64_t d, float *out)
{
    for (int64_t j = 0; j < d; j++) {
        const uint32_t bits = (uint32_t)(row[j] & 0x7fff) << 13, sign = (uint32_t)(row[j] & 0x8000) << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        value *= 0x1p112f;
        uint32_t whole;
        memcpy(&whole, &value, sizeof whole);
        whole |= sign;
        memcpy(out + j, &whole, sizeof whole);
    }
}

/* Dot products of some rows of a matrix with each other, for n sets of m rows, all finite. */
static PyObject *gram(PyObject *module, PyObject *args)
{
    PyObject *rows_, *chosen_, *out_, *result = NULL;
    Array arrays[3] = {{.held = 0}}, *rows = arrays, *chosen = arrays + 1, *out = arrays + 2;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:gram", &rows_, &chosen_, &out_))
        return NULL;
    if (take(rows, rows_, "rows", 2, "ef", 0) || take(chosen, chosen_, "chosen", 2, "q", 0) ||
        take(out, out_, "out", 3, "f", 1))
        goto done;
    const int64_t held = rows->view.shape[0], d = rows->view.shape[1];
    const int64_t n = chosen->view.shape[0], m = chosen->view.shape[1], *numbers = chosen->view.buf;
    if (!same_length(out->view.shape[0], n, "out for another number of sets") ||
        !same_length(out->view.shape[1], m, "out for sets of another size") ||
        !same_length(out->view.shape[2], m, "out for sets of another size"))
        goto done;
    if (!all_there(numbers, n * m, held))
        goto done;
    float *whole = PyMem_Calloc((size_t)padded(d) + 1, sizeof *whole);
    if (!whole) {
        PyErr_NoMemory();
        goto done;
    }
    Kernel *const kernel = kernel_for(rows);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < n; i++) {
        const int64_t *set = numbers + i * m;
        float *products = (float *)out->view.buf + i * m * m;
        for (int64_t a = 0; a < m; a++) {
            if (kernel == path->half)
                widen_row((const half *)rows->view.buf + set[a] * d, d, whole);
            else
                memcpy(whole, (const float *)rows->view.buf + set[a] * d, (size_t)d * sizeof *whole);
            kernel(whole, rows->view.buf, set + a, m - a, d, products + a * m + a);
            for (int64_t b = a + 1; b < m; b++)
                products[b * m + a] = products[a * m + b];
        }
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(whole);
    result = Py_NewRef(Py_None);
done:
    release(arrays, 3);
    return result;
}

/* Ascending places of the z largest of w values; of equal ones those that come first. Places that are z apart make z
   lanes, each with a largest value of its own: the least of those is a threshold that z values reach and few others.
   ``keys`` has room for w numbers, ``ordered`` for 3 w. */
static void largest_of(const float *values, int64_t w, int64_t z, int64_t *keys, int32_t *ordered, int32_t *places)
{
    int32_t *passed = ordered + w, *tops = passed + w, least = INT32_MAX;
    memcpy(ordered, values, (size_t)w * sizeof *ordered);
    for (int64_t i = 0; i < w; i++)
        ordered[i] ^= ordered[i] >> 31 & INT32_MAX;
    memcpy(tops, ordered, (size_t)z * sizeof *tops);
    for (int64_t i = z; i + z <= w; i += z)
        for (int64_t lane = 0; lane < z; lane++)
            tops[lane] = ordered[i + lane] > tops[lane] ? ordered[i + lane] : tops[lane];
    for (int64_t lane = 0; lane < z; lane++)
        least = tops[lane] < least ? tops[lane] : least;
    int64_t n = 0, chosen = 0;
    for (int64_t i = 0; i < w; i++) {
        passed[n] = (int32_t)i;
        n += ordered[i] >= least;
    }
    for (int64_t i = 0; i < n; i++)
        keys[i] = key_of_ordered(ordered[passed[i]], passed[i]);
    largest_first(keys, n, z);
    const int64_t last = keys[z - 1];
    for (int64_t i = 0; chosen < z; i++) {
        places[chosen] = passed[i];
        chosen += key_of_ordered(ordered[passed[i]], passed[i]) >= last;
    }
}

static PyObject *largest(PyObject *module, PyObject *args)
{
    PyObject *rows_, *places_, *result = NULL;
    Array arrays[2] = {{.held = 0}}, *rows = arrays, *places = arrays + 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:largest", &rows_, &places_))
        return NULL;
    if (take(rows, rows_, "rows", 2, "f", 0) || take(places, places_, "places", 2, "i", 1) ||
        !same_length(places->view.shape[0], rows->view.shape[0], "places for another number of rows"))
        goto done;
    const int64_t n = rows->view.shape[0], w = rows->view.shape[1], z = places->view.shape[1];
    if (z < 1 || z > w || w > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd places in rows of %zd", (Py_ssize_t)z, (Py_ssize_t)w);
        goto done;
    }
    int64_t *keys = PyMem_Malloc((size_t)w * (sizeof *keys + 3 * sizeof(int32_t)));
    if (!keys) {
        PyErr_NoMemory();
        goto done;
    }
    int32_t *ordered = (int32_t *)(keys + w);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < n; i++)
        largest_of((const float *)rows->view.buf + i * w, w, z, keys, ordered, (int32_t *)places->view.buf + i * z);
    Py_END_ALLOW_THREADS
    PyMem_Free(keys);
    result = Py_NewRef(Py_None);
done:
    release(arrays, 2);
    return result;
}

static PyObject *paths(PyObject *module, PyObject *args)
{
    PyObject *names = PyList_New(0);
    (void)module, (void)args;
    for (int i = 0; names && i < N_PATHS; i++) {
        if (!runs_here(PATHS + i))
            continue;
        PyObject *name = PyUnicode_FromString(PATHS[i].name);
        if (!name || PyList_Append(names, name))
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *use(PyObject *module, PyObject *args)
{
    const char *name;
    (void)module;
    if (!PyArg_ParseTuple(args, "s:use", &name))
        return NULL;
    for (int i = 0; i < N_PATHS; i++)
        if (!strcmp(PATHS[i].name, name) && runs_here(PATHS + i)) {
            path = PATHS + i;
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "no path %s here", name);
}

static PyMethodDef METHODS[] = {
    {"dot", dot, METH_VARARGS, "dot(query, rows, chosen, out): dot products with chosen rows, or all, into out."},
    {"nearest", nearest, METH_VARARGS,
     "nearest(queries, heads, starts, vectors, cells, numbers, dots): nearest centroids of some cells."},
    {"gram", gram, METH_VARARGS, "gram(rows, chosen, out): dot products of the chosen rows of each set with each other."},
    {"largest", largest, METH_VARARGS, "largest(rows, places): places of the largest entries of each row, ascending."},
    {"paths", paths, METH_NOARGS, "Names of the instruction sets that can be used here, the best first."},
    {"use", use, METH_VARARGS, "use(name): compute by this one from now on; for tests."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "boc._dots", NULL, -1, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__dots(void)
{
    for (path = PATHS; !runs_here(path);)
        path++;
    return PyModule_Create(&MODULE);
}
