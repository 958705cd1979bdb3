/* Dot products of queries with chosen rows of a matrix, read where they lie, the nearest of centroids in cells, the
   largest entries of rows, and conversions.

   A row takes part in nothing but its own sum: its product does not depend on the rows beside it. Sums of floats run in
   float32 in 4 accumulators of as many lanes as the machine has (16, 8, 4, or 1 without vectors): their error is at most
   (d / (4 * lanes) + log2(4 * lanes) + 1) * 2**-24 * sum |q_i r_i|. Conversion from float16 is exact. Centroids are
   compared in 8 bits: those sums are whole numbers, and the same on all machines. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define X86
#elif defined(__GNUC__) && defined(__aarch64__)
#include <arm_neon.h>
#define NEON
#endif

/* Wide vectors where the processor has them; choosing at load time takes gcc and the loader of glibc. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCHED __attribute__((target_clones("default", "avx2")))
#else
#define DISPATCHED
#endif

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

#define WIDEST 16          /* lanes of floats */
#define BYTES 64           /* and of bytes */
#define AHEAD 4096         /* bytes of rows that are fetched before they are needed */
#define LINE 64            /* bytes */
#define NEAR 65536         /* bytes of heads that are compared with one query after the other */
#define TOGETHER (1 << 21) /* numbers held for the queries that are answered together */
#define SIDE 4             /* rows, and queries, of a tile */
#define LARGEST 127        /* number of a vector in 8 bits */
#define LONGEST 65536      /* vector in 8 bits: its products fit 32 */
#define PROBE 16           /* rows that tell whether the others are in memory */
#define FEW 32             /* keys that are compared with each other */

typedef uint16_t half;

/* Products of ``query`` (d,), followed by zeros to a multiple of 16, with n rows of ``matrix``: those ``chosen``, or
   the first. */
typedef void Kernel(const float *query, const void *matrix, const int64_t *chosen, int64_t n, int64_t d, float *out);

/* Floats as float16, rounded to the nearest, halves to the even one. */
typedef void Halve(const float *values, int64_t n, half *out);

#define HALVE(name, target, lanes, convert)                                                                           \
    target static void name(const float *values, int64_t n, half *out)                                                \
    {                                                                                                                 \
        int64_t i = 0;                                                                                                \
        for (; i + (lanes) <= n; i += (lanes))                                                                        \
            convert(values + i, out + i);                                                                             \
        if (i < n) {                                                                                                  \
            float last[lanes] = {0};                                                                                  \
            half converted[lanes];                                                                                    \
            memcpy(last, values + i, (size_t)(n - i) * sizeof *last);                                                 \
            convert(last, converted);                                                                                 \
            memcpy(out + i, converted, (size_t)(n - i) * sizeof *out);                                                \
        }                                                                                                             \
    }

/* A vector in 8 bits, -127 to 127, followed by zeros to a multiple of 64; the ``sum`` of its numbers. */
typedef struct {
    const int8_t *values;
    int32_t sum;
} Query;

/* Products of SIDE rows of d numbers with one query, or with SIDE queries, times the scales of the rows: out[q][r]. */
typedef void Tile(const Query *queries, const int8_t *const *rows, const float *scales, int64_t d, float *const *out);

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

#define HALVE512(from, to) _mm256_storeu_si256((__m256i *)(to), _mm512_cvtps_ph(_mm512_loadu_ps(from), 0))
#define HALVE256(from, to) _mm_storeu_si128((__m128i *)(to), _mm256_cvtps_ph(_mm256_loadu_ps(from), 0))

HALVE(halve_avx512, AVX512, 16, HALVE512)
HALVE(halve_avx2, AVX2, 8, HALVE256)

#define VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))

/* Sums of the lanes of four vectors. */
VNNI static inline __m128i sums512(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

/* Sums of four products each are added to ``sums``; written so because gcc copies them about for the intrinsic. */
#define ADD_PRODUCTS(sums, row, query) __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(row), "v"(query))

/* The instruction takes one side without signs: 128 is added to all numbers of rows, and 128 sums of queries too many
   are taken off again. Variables instead of arrays, which gcc would keep in memory. */
#define LOAD_ROW(r)                                                                                                   \
    const __m512i row##r = _mm512_xor_si512(                                                                          \
        d - j < 64 ? _mm512_maskz_loadu_epi8(((__mmask64)1 << (d - j)) - 1, rows[r] + j)                              \
                   : _mm512_loadu_si512(rows[r] + j),                                                                 \
        _mm512_set1_epi8(-128));
#define BEGIN_QUERY(q)                                                                                                \
    __m512i s##q##0 = _mm512_setzero_si512(), s##q##1 = s##q##0, s##q##2 = s##q##0, s##q##3 = s##q##0;
#define ADD_QUERY(q)                                                                                                  \
    {                                                                                                                 \
        const __m512i query = _mm512_loadu_si512(queries[q].values + j);                                              \
        ADD_PRODUCTS(s##q##0, row0, query);                                                                           \
        ADD_PRODUCTS(s##q##1, row1, query);                                                                           \
        ADD_PRODUCTS(s##q##2, row2, query);                                                                           \
        ADD_PRODUCTS(s##q##3, row3, query);                                                                           \
    }
#define END_QUERY(q)                                                                                                  \
    {                                                                                                                 \
        const __m128i sums = sums512(s##q##0, s##q##1, s##q##2, s##q##3);                                             \
        const __m128i products = _mm_sub_epi32(sums, _mm_set1_epi32(128 * queries[q].sum));                           \
        _mm_storeu_ps(out[q], _mm_mul_ps(_mm_cvtepi32_ps(products), _mm_loadu_ps(scales)));                           \
    }
#define TILE_VNNI(name, EACH)                                                                                         \
    VNNI static void name(const Query *queries, const int8_t *const *rows, const float *scales, int64_t d,            \
                          float *const *out)                                                                          \
    {                                                                                                                 \
        EACH(BEGIN_QUERY)                                                                                             \
        for (int64_t j = 0; j < d; j += 64) {                                                                         \
            LOAD_ROW(0)                                                                                               \
            LOAD_ROW(1)                                                                                               \
            LOAD_ROW(2)                                                                                               \
            LOAD_ROW(3)                                                                                               \
            EACH(ADD_QUERY)                                                                                           \
        }                                                                                                             \
        EACH(END_QUERY)                                                                                               \
    }
#define ONE(step) step(0)
#define FOUR(step) step(0) step(1) step(2) step(3)

TILE_VNNI(tile_avx512, FOUR)
TILE_VNNI(strip_avx512, ONE)

AVX2 static void strip_avx2(const Query *query, const int8_t *const *rows, const float *scales, int64_t d,
                            float *const *out)
{
    __m256i s[SIDE];
    for (int r = 0; r < SIDE; r++)
        s[r] = _mm256_setzero_si256();
    for (int64_t j = 0; j < d; j += 16) {
        const __m256i values = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(query->values + j)));
        for (int r = 0; r < SIDE; r++) {
            int8_t rest[16] = {0};
            const int8_t *row = rows[r] + j;
            if (d - j < 16)
                row = memcpy(rest, row, (size_t)(d - j));
            const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)row));
            s[r] = _mm256_add_epi32(s[r], _mm256_madd_epi16(wide, values));
        }
    }
    const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    const __m128i products = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    _mm_storeu_ps(out[0], _mm_mul_ps(_mm_cvtepi32_ps(products), _mm_loadu_ps(scales)));
}

#elif defined(NEON)

#define HALVE128(from, to) vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from))))

HALVE(halve_neon, , 4, HALVE128)

static void strip_neon(const Query *query, const int8_t *const *rows, const float *scales, int64_t d,
                       float *const *out)
{
    for (int r = 0; r < SIDE; r++) {
        int32x4_t s = vdupq_n_s32(0);
        for (int64_t j = 0; j < d; j += 16) {
            int8_t rest[16] = {0};
            const int8_t *row = rows[r] + j;
            if (d - j < 16)
                row = memcpy(rest, row, (size_t)(d - j));
            const int8x16_t a = vld1q_s8(row), b = vld1q_s8(query->values + j);
            s = vpadalq_s16(s, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            s = vpadalq_s16(s, vmull_s8(vget_high_s8(a), vget_high_s8(b)));
        }
        out[0][r] = (float)vaddvq_s32(s) * scales[r];
    }
}

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

static void strip_portable(const Query *query, const int8_t *const *rows, const float *scales, int64_t d,
                           float *const *out)
{
    for (int r = 0; r < SIDE; r++) {
        int32_t s = 0;
        for (int64_t j = 0; j < d; j++)
            s += query->values[j] * rows[r][j];
        out[0][r] = (float)s * scales[r];
    }
}

typedef struct {
    const char *name;
    Kernel *half, *single;
    Tile *strip, *tile; /* of one query and of SIDE; without the second, one after the other */
    Halve *halve;       /* NULL: others do it */
} Path;

static const Path PATHS[] = { /* the best first */
#ifdef X86
    {"avx512", half_avx512, single_avx512, strip_avx512, tile_avx512, halve_avx512},
    {"avx2", half_avx2, single_avx2, strip_avx2, NULL, halve_avx2},
#elif defined(NEON)
    {"neon", half_neon, single_neon, strip_neon, NULL, halve_neon},
#endif
    {"portable", half_portable, single_portable, strip_portable, NULL, NULL},
};
#define N_PATHS ((int)(sizeof PATHS / sizeof *PATHS))

static const Path *path;

static int runs_here(const Path *asked)
{
#ifdef X86
    if (!strcmp(asked->name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vnni");
    if (!strcmp(asked->name, "avx2")) /* whatever has it has F16C */
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)asked;
    return 1;
}

/* Orders as the pair (score, -place) does, also for what is no number: no two are equal. */
static inline int64_t key_of(float score, int64_t place)
{
    int32_t bits;
    score += 0.0f; /* there is one zero only */
    memcpy(&bits, &score, sizeof bits);
    return (int64_t)(bits ^ (bits < 0 ? INT32_MAX : 0)) * ((int64_t)1 << 32) + (int64_t)(UINT32_MAX - (uint32_t)place);
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

/* Distinct keys, FEW at most, the largest first. Each is compared with all, which takes no branch to be mispredicted. */
DISPATCHED static void sort_few(int64_t *keys, int64_t n)
{
    int64_t sorted[FEW];
    for (int64_t i = 0; i < n; i++) {
        const int64_t key = keys[i];
        int64_t larger = 0;
        for (int64_t j = 0; j < n; j++)
            larger += keys[j] > key;
        sorted[larger] = key;
    }
    memcpy(keys, sorted, (size_t)n * sizeof *keys);
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
    if (k > 0 && n > 0)
        sort_few(keys, n);
}

/* Lists the places, ascending, of values among which are the z largest of w, and not many more; how many. ``tops`` has
   room for z. Places that are z apart make z lanes, each with a largest value of its own: the least of those is a
   threshold that z values reach and few others. What is no number passes. */
DISPATCHED static int64_t passing(const float *values, int64_t w, int64_t z, float *tops, int32_t *places)
{
    float least = INFINITY;
    memcpy(tops, values, (size_t)z * sizeof *tops);
    for (int64_t i = z; i + z <= w; i += z)
        for (int64_t lane = 0; lane < z; lane++)
            tops[lane] = values[i + lane] > tops[lane] ? values[i + lane] : tops[lane];
    for (int64_t lane = 0; lane < z; lane++)
        least = tops[lane] < least ? tops[lane] : least;
    int64_t n = 0;
    for (int64_t i = 0; i < w; i++) {
        places[n] = (int32_t)i;
        n += !(values[i] < least);
    }
    return n;
}

/* The keys of the z largest of w values come first in ``keys``, the largest of all at the front. ``keys``, ``tops`` and
   ``passed`` have room for w each. */
static void find_largest(const float *values, int64_t w, int64_t z, int64_t *keys, float *tops, int32_t *passed)
{
    const int64_t n = z ? passing(values, w, z, tops, passed) : 0;
    for (int64_t i = 0; i < n; i++)
        keys[i] = key_of(values[passed[i]], passed[i]);
    largest_first(keys, n, z);
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

static int64_t padded(int64_t d, int64_t multiple)
{
    return (d + multiple - 1) / multiple * multiple;
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
    float *whole = PyMem_Calloc((size_t)padded(d, WIDEST) + 1, sizeof *whole);
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

static PyObject *halve(PyObject *module, PyObject *args)
{
    PyObject *rows_, *out_, *result = NULL;
    Array arrays[2] = {{.held = 0}}, *rows = arrays, *out = arrays + 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:halve", &rows_, &out_))
        return NULL;
    if (take(rows, rows_, "rows", 2, "f", 0) || take(out, out_, "out", 2, "e", 1) ||
        !same_length(out->view.shape[0], rows->view.shape[0], "out for another number of rows") ||
        !same_length(out->view.shape[1], rows->view.shape[1], "out for rows of another width"))
        goto done;
    Halve *const convert = path->halve;
    Py_BEGIN_ALLOW_THREADS
    if (convert)
        convert(rows->view.buf, rows->view.shape[0] * rows->view.shape[1], out->view.buf);
    Py_END_ALLOW_THREADS
    result = PyBool_FromLong(convert != NULL);
done:
    release(arrays, 2);
    return result;
}

/* Seconds of a clock. */
static double now(void)
{
    struct timespec at;
    timespec_get(&at, TIME_UTC);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static PyObject *best(PyObject *module, PyObject *args)
{
    static const char *const NAMES[] = {"query", "rows", "chosen", "found", "scores"};
    static const char *const TYPES[] = {"f", "ef", "q", "q", "f"};
    static const int DIMENSIONS[] = {1, 2, 1, 1, 1};
    PyObject *objects[5], *result = NULL;
    Array arrays[5] = {{.held = 0}};
    double patience;
    float *whole = NULL, *products = NULL;
    int64_t *keys = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOdOO:best", &objects[0], &objects[1], &objects[2], &patience, &objects[3],
                          &objects[4]))
        return NULL;
    for (int i = 0; i < 5; i++)
        if (take(arrays + i, objects[i], NAMES[i], DIMENSIONS[i], TYPES[i], i > 2))
            goto done;
    const Array *rows = arrays + 1;
    const int64_t held = rows->view.shape[0], d = rows->view.shape[1], *chosen = arrays[2].view.buf;
    const int64_t n = arrays[2].view.shape[0], k = arrays[3].view.shape[0];
    if (!same_length(arrays[0].view.shape[0], d, "query for rows of another width") ||
        !same_length(arrays[4].view.shape[0], k, "scores for another number of rows") || !all_there(chosen, n, held))
        goto done;
    if (k > n || n > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "the best %zd of %zd rows", (Py_ssize_t)k, (Py_ssize_t)n);
        goto done;
    }
    whole = PyMem_Calloc((size_t)padded(d, WIDEST) + 1, sizeof *whole);
    products = PyMem_Malloc((size_t)n * (2 * sizeof *products + sizeof(int32_t)) + 1);
    keys = PyMem_Malloc((size_t)n * sizeof *keys + 1);
    if (!whole || !products || !keys) {
        PyErr_NoMemory();
        goto done;
    }
    memcpy(whole, arrays[0].view.buf, (size_t)d * sizeof *whole);
    Kernel *const kernel = kernel_for(rows);
    const int64_t first = n < PROBE ? n : PROBE;
    int patient;
    Py_BEGIN_ALLOW_THREADS
    const double begun = now();
    kernel(whole, rows->view.buf, chosen, first, d, products);
    patient = first == n || now() - begun <= patience;
    if (patient) {
        kernel(whole, rows->view.buf, chosen + first, n - first, d, products + first);
        find_largest(products, n, k, keys, products + n, (int32_t *)(products + 2 * n));
        for (int64_t i = 0; i < k; i++) {
            ((int64_t *)arrays[3].view.buf)[i] = chosen[place_of(keys[i])];
            ((float *)arrays[4].view.buf)[i] = score_of(keys[i]);
        }
    }
    Py_END_ALLOW_THREADS
    result = PyBool_FromLong(patient);
done:
    PyMem_Free(whole);
    PyMem_Free(products);
    PyMem_Free(keys);
    release(arrays, 5);
    return result;
}

static int short_enough(int64_t d)
{
    if (d > LONGEST)
        PyErr_Format(PyExc_ValueError, "rows of %zd numbers; at most %d", (Py_ssize_t)d, LONGEST);
    return d <= LONGEST;
}

/* ``row`` in 8 bits: the largest number becomes 127, halves go to the even one; a row that holds something else than
   numbers becomes zeros. Returns what makes its length 1; 0 for zeros. In double, so that rows of any size keep their
   direction. */
DISPATCHED static float round_row(const float *row, int64_t d, int8_t *out)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2**52: sums with it have no places left for fractions */
    float most = 0;
    int odd = 0;
    for (int64_t j = 0; j < d; j++) {
        const float size = fabsf(row[j]);
        most = size > most ? size : most;
        odd |= !(size <= FLT_MAX);
    }
    const double factor = most > 0 && !odd ? LARGEST / (double)most : 0;
    int32_t squares = 0;
    for (int64_t j = 0; j < d; j++) {
        const int32_t whole = odd ? 0 : (int32_t)(row[j] * factor + magic - magic);
        out[j] = (int8_t)whole;
        squares += whole * whole;
    }
    return squares ? (float)(1 / sqrt((double)squares)) : 0;
}

static PyObject *rounded(PyObject *module, PyObject *args)
{
    PyObject *rows_, *out_, *scales_, *result = NULL;
    Array arrays[3] = {{.held = 0}}, *rows = arrays, *out = arrays + 1, *scales = arrays + 2;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:rounded", &rows_, &out_, &scales_))
        return NULL;
    if (take(rows, rows_, "rows", 2, "f", 0) || take(out, out_, "out", 2, "b", 1) ||
        take(scales, scales_, "scales", 1, "f", 1))
        goto done;
    const int64_t n = rows->view.shape[0], d = rows->view.shape[1];
    if (!short_enough(d) || !same_length(out->view.shape[0], n, "out for another number of rows") ||
        !same_length(out->view.shape[1], d, "out for rows of another width") ||
        !same_length(scales->view.shape[0], n, "scales for another number of rows"))
        goto done;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < n; i++)
        ((float *)scales->view.buf)[i] =
            round_row((const float *)rows->view.buf + i * d, d, (int8_t *)out->view.buf + i * d);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    release(arrays, 3);
    return result;
}

/* Rows of ``d`` numbers in 8 bits, and the scale of each. */
typedef struct {
    const int8_t *rows;
    const float *scales;
    int64_t d;
} Rows;

static int32_t sum_of(const int8_t *row, int64_t d)
{
    int32_t sum = 0;
    for (int64_t j = 0; j < d; j++)
        sum += row[j];
    return sum;
}

/* Products of ``count`` queries, at most SIDE, with SIDE rows, times the scales of those. */
static void multiply(const Query *queries, int64_t count, const int8_t *const *rows, const float *scales, int64_t d,
                     float *const *out)
{
    if (count == SIDE && path->tile)
        path->tile(queries, rows, scales, d, out);
    else
        for (int64_t q = 0; q < count; q++)
            path->strip(queries + q, rows, scales, d, out + q);
}

/* The same with n rows of a matrix. */
static void compare(const Rows *matrix, int64_t first, int64_t n, const Query *queries, float *const *out,
                    int64_t count)
{
    const int64_t d = matrix->d, whole = n - n % SIDE;
    const int8_t *rows[SIDE], *begin = matrix->rows + first * d;
    const float *scales = matrix->scales + first;
    float *to[SIDE];
    for (int64_t i = 0; i < whole; i += SIDE) {
        if (count == 1) /* among several queries there is time enough */
            for (int64_t byte = 0; byte < SIDE * d; byte += LINE)
                PREFETCH((const void *)((uintptr_t)(begin + i * d + byte) + AHEAD));
        for (int64_t r = 0; r < SIDE; r++)
            rows[r] = begin + (i + r) * d;
        for (int64_t q = 0; q < count; q++)
            to[q] = out[q] + i;
        multiply(queries, count, rows, scales + i, d, to);
    }
    if (whole < n) { /* the last row stands in for those that there are not */
        float last[SIDE][SIDE], ends[SIDE];
        for (int64_t r = 0; r < SIDE; r++) {
            const int64_t row = whole + r < n ? whole + r : n - 1;
            rows[r] = begin + row * d;
            ends[r] = scales[row];
            to[r] = last[r];
        }
        multiply(queries, count, rows, ends, d, to);
        for (int64_t q = 0; q < count; q++)
            memcpy(out[q] + whole, last[q], (size_t)(n - whole) * sizeof **out);
    }
}

/* Of each row of numbers with weights the numbers, ascending, and weights times ``top`` as whole numbers from 1 to it.
   With a temperature other than 0 a weight w counts as exp((w - first) / temperature), in double. */
static PyObject *terms(PyObject *module, PyObject *args)
{
    static const char *const NAMES[] = {"numbers", "weights", "columns", "frequencies"};
    static const char *const TYPES[] = {"q", "f", "i", "i"};
    PyObject *objects[4], *result = NULL;
    Array arrays[4] = {{.held = 0}};
    double temperature;
    int top;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOdiOO:terms", &objects[0], &objects[1], &temperature, &top, &objects[2], &objects[3]))
        return NULL;
    for (int i = 0; i < 4; i++)
        if (take(arrays + i, objects[i], NAMES[i], 2, TYPES[i], i > 1) ||
            !same_length(arrays[i].view.shape[0], arrays[0].view.shape[0], "rows") ||
            !same_length(arrays[i].view.shape[1], arrays[0].view.shape[1], "terms"))
            goto done;
    const int64_t n = arrays[0].view.shape[0], z = arrays[0].view.shape[1], *numbers = arrays[0].view.buf;
    const float *weights = arrays[1].view.buf;
    int32_t *columns = arrays[2].view.buf, *frequencies = arrays[3].view.buf;
    int64_t *keys = PyMem_Malloc((size_t)z * sizeof *keys + 1);
    if (!keys) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = 0; row < n * z; row += z) {
        for (int64_t j = 0; j < z; j++) {
            float weight = weights[row + j];
            if (temperature != 0)
                weight = (float)exp(((double)weight - (double)weights[row]) / temperature);
            const float magic = 12582912.0f, whole = weight * (float)top + magic - magic;
            const int64_t frequency = whole >= 1 ? whole < (float)top ? (int64_t)whole : top : 1;
            keys[j] = -numbers[row + j] * ((int64_t)1 << 32) + frequency;
        }
        largest_first(keys, z, z);
        for (int64_t j = 0; j < z; j++) {
            frequencies[row + j] = (int32_t)((uint64_t)keys[j] & UINT32_MAX);
            columns[row + j] = (int32_t)((frequencies[row + j] - keys[j]) / ((int64_t)1 << 32));
        }
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(keys);
    result = Py_NewRef(Py_None);
done:
    release(arrays, 4);
    return result;
}

/* A search of ``together`` queries at a time for the ``z`` nearest centroids in the ``cells`` cells of the nearest
   heads. A query takes ``width`` bytes in ``values`` and ``room`` in ``scores``. Cell j that it asks is ``cell[j]`` of
   its own, with scores from ``place[j]``; ``asked`` lists these pairs by cell, as ``begins`` bound them. */
typedef struct {
    const int64_t *starts;
    Rows heads, vectors;
    int64_t m, cells, z, room, width, together;
    int8_t *values;
    Query *queries;
    float *lengths, *scores, *tops;
    int64_t *keys, *cell, *place, *asked, *begins;
    int32_t *passed;
} Search;

/* The cells that query i asks, ascending; how many centroids they hold. */
static int64_t choose_cells(const Search *s, int64_t i)
{
    int64_t held = 0;
    find_largest(s->scores + i * s->room, s->m, s->cells, s->keys, s->tops, s->passed);
    for (int64_t j = 0; j < s->cells; j++)
        s->keys[j] = -place_of(s->keys[j]);
    largest_first(s->keys, s->cells, s->cells);
    for (int64_t j = 0; j < s->cells; j++) {
        const int64_t cell = -s->keys[j];
        s->cell[i * s->cells + j] = cell;
        s->place[i * s->cells + j] = held;
        held += s->starts[cell + 1] - s->starts[cell];
    }
    return held;
}

/* Lists the pairs of n queries and cells by cell. */
static void order_by_cell(const Search *s, int64_t n)
{
    if (n == 1) { /* whose cells ascend */
        for (int64_t pair = 0; pair < s->cells; pair++)
            s->asked[pair] = pair;
        return;
    }
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
static int64_t nearest_to(const Search *s, int64_t n, int64_t *numbers, float *cosines)
{
    const int64_t few = SIDE * (1 + NEAR / (SIDE * s->heads.d));
    Query queries[SIDE];
    float *out[SIDE];
    int64_t count = 0;
    for (int64_t first = 0; first < s->m; first += few)
        for (int64_t i = 0; i < n; i++) {
            queries[count] = s->queries[i];
            out[count++] = s->scores + i * s->room + first;
            if (count == SIDE || i + 1 == n) {
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
    for (int64_t at = 0; at < n * s->cells; at++) {
        const int64_t pair = s->asked[at], i = pair / s->cells, cell = s->cell[pair];
        const int64_t next = at + 1 < n * s->cells ? s->cell[s->asked[at + 1]] : s->m;
        queries[count] = s->queries[i];
        out[count++] = s->scores + i * s->room + s->place[pair];
        if (count == SIDE || next != cell) {
            const char *later = (const char *)s->vectors.rows + s->starts[next] * s->vectors.d;
            for (int64_t byte = 0; byte < AHEAD && next < s->m; byte += LINE)
                PREFETCH(later + byte);
            compare(&s->vectors, s->starts[cell], s->starts[cell + 1] - s->starts[cell], queries, out, count);
            count = 0;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t *place = s->place + i * s->cells, *cell = s->cell + i * s->cells, last = s->cells - 1;
        const int64_t held = place[last] + s->starts[cell[last] + 1] - s->starts[cell[last]];
        find_largest(s->scores + i * s->room, held, s->z, s->keys, s->tops, s->passed);
        for (int64_t j = 0; j < s->z; j++) {
            const int64_t found = place_of(s->keys[j]);
            int64_t low = 0;
            for (int64_t high = last; low < high;) { /* the last cell that begins at what was found, or before */
                const int64_t middle = (low + high + 1) / 2;
                if (place[middle] <= found)
                    low = middle;
                else
                    high = middle - 1;
            }
            numbers[i * s->z + j] = s->starts[cell[low]] + found - place[low];
            cosines[i * s->z + j] = score_of(s->keys[j]) * s->lengths[i];
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
    static const char *const NAMES[] = {"queries", "heads", "head_scales", "starts", "vectors", "scales", "numbers", "cosines"};
    static const char *const TYPES[] = {"f", "b", "f", "q", "b", "f", "q", "f"};
    static const int DIMENSIONS[] = {2, 2, 1, 1, 2, 1, 2, 2};
    PyObject *objects[8], *result = NULL;
    Array arrays[8] = {{.held = 0}};
    Py_ssize_t cells;
    Search s = {.queries = NULL};
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOOnOO:nearest", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &cells, &objects[6], &objects[7]))
        return NULL;
    for (int i = 0; i < 8; i++)
        if (take(arrays + i, objects[i], NAMES[i], DIMENSIONS[i], TYPES[i], i > 5))
            goto done;
    const Py_buffer *queries = &arrays[0].view, *heads = &arrays[1].view, *vectors = &arrays[4].view;
    const Py_buffer *numbers = &arrays[6].view, *cosines = &arrays[7].view;
    const int64_t n = queries->shape[0], d = queries->shape[1], held = vectors->shape[0];
    s = (Search){.starts = arrays[3].view.buf, .heads = {heads->buf, arrays[2].view.buf, d},
                 .vectors = {vectors->buf, arrays[5].view.buf, d}, .m = heads->shape[0], .cells = cells,
                 .z = numbers->shape[1], .width = padded(d, BYTES) + BYTES};
    if (!short_enough(d) || !same_length(heads->shape[1], d, "heads for queries of another width") ||
        !same_length(vectors->shape[1], d, "vectors for queries of another width") ||
        !same_length(arrays[2].view.shape[0], s.m, "head_scales for another number of heads") ||
        !same_length(arrays[3].view.shape[0], s.m + 1, "starts for another number of heads") ||
        !same_length(arrays[5].view.shape[0], held, "scales for another number of vectors") ||
        !same_length(numbers->shape[0], n, "numbers for another number of queries") ||
        !same_length(cosines->shape[0], n, "cosines for another number of queries") ||
        !same_length(cosines->shape[1], s.z, "cosines for another number of nearest"))
        goto done;
    if (s.cells < 1 || s.cells > s.m || held > UINT32_MAX || !bounds(s.starts, s.m, held, s.cells, &s.room)) {
        PyErr_Format(PyExc_ValueError, "cells: %zd of %zd, or starts that do not rise within %zd vectors", cells,
                     (Py_ssize_t)s.m, (Py_ssize_t)held);
        goto done;
    }
    s.together = 1 + TOGETHER / (s.room + s.width / 4 + 4 * s.cells);
    s.together = s.together < n ? s.together : n;
    const size_t pairs = (size_t)(s.together * s.cells);
    s.values = PyMem_Calloc((size_t)(s.together * s.width) + 1, 1);
    s.queries = PyMem_Malloc((size_t)s.together * sizeof *s.queries);
    s.scores = PyMem_Malloc((size_t)(s.together * (s.room + 1) + s.room) * sizeof *s.scores);
    s.keys = PyMem_Malloc(((size_t)s.room + 3 * pairs + (size_t)s.m + 1) * sizeof *s.keys);
    s.passed = PyMem_Malloc((size_t)s.room * sizeof *s.passed);
    if (!s.values || !s.queries || !s.scores || !s.keys || !s.passed) {
        PyErr_NoMemory();
        goto done;
    }
    s.lengths = s.scores + s.together * s.room, s.tops = s.lengths + s.together;
    s.cell = s.keys + s.room, s.place = s.cell + pairs, s.asked = s.place + pairs, s.begins = s.asked + pairs;
    int64_t found = s.z;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t first = 0; first < n && found >= s.z; first += s.together) {
        const int64_t count = n - first < s.together ? n - first : s.together;
        for (int64_t i = 0; i < count; i++) {
            int8_t *values = s.values + i * s.width;
            s.lengths[i] = round_row((const float *)queries->buf + (first + i) * d, d, values);
            s.queries[i] = (Query){values, sum_of(values, d)};
        }
        found = nearest_to(&s, count, (int64_t *)numbers->buf + first * s.z, (float *)cosines->buf + first * s.z);
    }
    Py_END_ALLOW_THREADS
    if (found < s.z)
        PyErr_Format(PyExc_ValueError, "%zd nearest of %zd in %zd cells; search more of them", (Py_ssize_t)s.z,
                     (Py_ssize_t)found, cells);
    else
        result = Py_NewRef(Py_None);
done:
    PyMem_Free(s.values);
    PyMem_Free(s.queries);
    PyMem_Free(s.scores);
    PyMem_Free(s.keys);
    PyMem_Free(s.passed);
    release(arrays, 8);
    return result;
}

/* Cosines (m, m) of the m rows of a set with each other; ``queries`` has room for m, ``values`` for their numbers,
   ``width`` bytes each, zeros behind them. */
static void gram_of(const Rows *matrix, const int64_t *set, int64_t m, Query *queries, int8_t *values, int64_t width,
                    float *out)
{
    float products[SIDE][SIDE], scales[SIDE];
    float *const to[SIDE] = {products[0], products[1], products[2], products[3]};
    const int8_t *rows[SIDE];
    for (int64_t a = 0; a < m; a++) {
        memcpy(values + a * width, matrix->rows + set[a] * matrix->d, (size_t)matrix->d);
        queries[a] = (Query){values + a * width, sum_of(values + a * width, matrix->d)};
    }
    for (int64_t a = 0; a < m; a += SIDE) {
        const int64_t count = m - a < SIDE ? m - a : SIDE;
        for (int64_t b = a; b < m; b += SIDE) {
            for (int64_t r = 0; r < SIDE; r++) {
                const int64_t row = b + r < m ? b + r : m - 1;
                rows[r] = values + row * width;
                scales[r] = matrix->scales[set[row]];
            }
            multiply(queries + a, count, rows, scales, matrix->d, to);
            for (int64_t q = a; q < a + count; q++)
                for (int64_t r = b > q ? b : q; r < m && r < b + SIDE; r++)
                    out[q * m + r] = out[r * m + q] = products[q - a][r - b] * matrix->scales[set[q]];
        }
    }
}

static PyObject *gram(PyObject *module, PyObject *args)
{
    PyObject *rows_, *scales_, *chosen_, *out_, *result = NULL;
    Array arrays[4] = {{.held = 0}}, *rows = arrays, *scales = arrays + 1, *chosen = arrays + 2, *out = arrays + 3;
    int8_t *values = NULL;
    Query *queries = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO:gram", &rows_, &scales_, &chosen_, &out_))
        return NULL;
    if (take(rows, rows_, "rows", 2, "b", 0) || take(scales, scales_, "scales", 1, "f", 0) ||
        take(chosen, chosen_, "chosen", 2, "q", 0) || take(out, out_, "out", 3, "f", 1))
        goto done;
    const int64_t held = rows->view.shape[0], d = rows->view.shape[1], width = padded(d, BYTES) + BYTES;
    const int64_t n = chosen->view.shape[0], m = chosen->view.shape[1], *numbers = chosen->view.buf;
    if (!short_enough(d) || !same_length(scales->view.shape[0], held, "scales for another number of rows") ||
        !same_length(out->view.shape[0], n, "out for another number of sets") ||
        !same_length(out->view.shape[1], m, "out for sets of another size") ||
        !same_length(out->view.shape[2], m, "out for sets of another size"))
        goto done;
    if (!all_there(numbers, n * m, held))
        goto done;
    values = PyMem_Calloc((size_t)(m * width) + 1, 1);
    queries = PyMem_Malloc((size_t)m * sizeof *queries + 1);
    if (!values || !queries) {
        PyErr_NoMemory();
        goto done;
    }
    const Rows matrix = {rows->view.buf, scales->view.buf, d};
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < n; i++)
        gram_of(&matrix, numbers + i * m, m, queries, values, width, (float *)out->view.buf + i * m * m);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyMem_Free(values);
    PyMem_Free(queries);
    release(arrays, 4);
    return result;
}

/* Ascending places of the z largest of w values, of equal ones those that come first. ``keys``, ``tops`` and ``passed``
   have room for w. */
static void largest_of(const float *values, int64_t w, int64_t z, int64_t *keys, float *tops, int32_t *passed,
                       int32_t *places)
{
    int64_t chosen = 0;
    find_largest(values, w, z, keys, tops, passed);
    for (int64_t i = 0; chosen < z; i++) {
        places[chosen] = passed[i];
        chosen += key_of(values[passed[i]], passed[i]) >= keys[z - 1];
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
    int64_t *keys = PyMem_Malloc((size_t)w * (sizeof *keys + sizeof(float) + sizeof(int32_t)));
    if (!keys) {
        PyErr_NoMemory();
        goto done;
    }
    float *tops = (float *)(keys + w);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < n; i++)
        largest_of((const float *)rows->view.buf + i * w, w, z, keys, tops, (int32_t *)(tops + w),
                   (int32_t *)places->view.buf + i * z);
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
    {"rounded", rounded, METH_VARARGS, "rounded(rows, out, scales): rows in 8 bits, and what makes them of length 1."},
    {"halve", halve, METH_VARARGS, "halve(rows, out): rows as float16; False, and nothing done, where numpy is as fast."},
    {"best", best, METH_VARARGS,
     "best(query, rows, chosen, patience, found, scores): of the chosen rows those of the largest products, the largest "
     "first, of equal ones the one chosen first; False if the first of them took longer than so many seconds."},
    {"terms", terms, METH_VARARGS,
     "terms(numbers, weights, temperature, top, columns, frequencies): numbers of each row, ascending, and weights as whole "
     "numbers."},
    {"nearest", nearest, METH_VARARGS,
     "nearest(queries, heads, head_scales, starts, vectors, scales, cells, numbers, cosines): nearest centroids of some "
     "cells."},
    {"gram", gram, METH_VARARGS, "gram(rows, scales, chosen, out): cosines of the chosen rows of each set."},
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
