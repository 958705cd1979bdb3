/* Compute, for each row of a concept set, the maximum product with the rows of another set, and the sums of these
 * maxima. The rows of the other sets are float16, float32 or int8, and are not copied. */

#ifndef BOC_ALIGN_H
#define BOC_ALIGN_H

#include "rescore.h"

#define FOUR 4 /* rows of the query that are multiplied by TILE rows of a set at a time */
#define TILE 4

/* Query of m rows with unit length. Zero rows are appended up to a multiple of FOUR, and each row is padded with zeros
 * to ``width``. */
typedef struct {
    const float *rows;
    int64_t m, width;
} Set;

/* Compute the products out[r * m + i] of the rows of a query with n ``rows`` of d components. ``out`` has room for TILE
 * more rows. Meanwhile, the processor fetches ``bytes`` of the rows of the ``next`` set, which may have any address. */
typedef void Products(const Set *query, const void *rows, int64_t n, int64_t d, const char *next, int64_t bytes,
                      float *out);

/* If the number of rows is not a multiple of the tile, the last row is multiplied several times. */
#define PRODUCTS(name, target, type, vector, lanes, tile, widen, floats, multiply_add, sums_of)             \
    target static void name(const Set *query, const void *all, int64_t n, int64_t d, const char *next,            \
                            int64_t bytes, float *out)                                                            \
    {                                                                                                             \
        const type *rows = all;                                                                                   \
        const int64_t width = query->width, whole = d - d % (lanes);                                              \
        for (int64_t r = 0; r < n; r += (tile)) {                                                                 \
            const type *row[tile];                                                                                \
            type rest[tile][lanes] = {{0}};                                                                       \
            const int64_t size = d * (int64_t)sizeof(type);                                                       \
            for (int64_t byte = r * size; byte < (r + (tile)) * size && byte < bytes; byte += LINE)               \
                PREFETCH(next + byte);                                                                            \
            for (int k = 0; k < (tile); k++) {                                                                    \
                row[k] = rows + (r + k < n ? r + k : n - 1) * d;                                                  \
                memcpy(rest[k], row[k] + whole, (size_t)(d - whole) * sizeof(type));                              \
            }                                                                                                     \
            for (int64_t i = 0; i < query->m; i += FOUR) {                                                        \
                const float *four = query->rows + i * width;                                                      \
                vector sums[tile][FOUR] = {0}, x[tile];                                                           \
                for (int64_t j = 0; j < d; j += (lanes)) {                                                        \
                    for (int k = 0; k < (tile); k++)                                                              \
                        x[k] = widen(j < whole ? row[k] + j : rest[k]);                                           \
                    for (int w = 0; w < FOUR; w++) {                                                              \
                        const vector q = floats(four + w * width + j);                                            \
                        for (int k = 0; k < (tile); k++)                                                          \
                            sums[k][w] = multiply_add(x[k], q, sums[k][w]);                                       \
                    }                                                                                             \
                }                                                                                                 \
                for (int k = 0; k < (tile); k++)                                                                  \
                    sums_of(sums[k], out + (r + k) * query->m + i);                                               \
            }                                                                                                     \
        }                                                                                                         \
    }

/* Define the products for sets whose numbers have ``size`` bytes. */
#define SETS(name, target, vector, lanes, tile, floats, halves, bytes, multiply_add, sums_of)              \
    PRODUCTS(name##_halves, target, half, vector, lanes, tile, halves, floats, multiply_add, sums_of)      \
    PRODUCTS(name##_floats, target, float, vector, lanes, tile, floats, floats, multiply_add, sums_of)     \
    PRODUCTS(name##_bytes, target, uint8_t, vector, lanes, tile, bytes, floats, multiply_add, sums_of)     \
    static Products *name(int64_t size)                                                                          \
    {                                                                                                            \
        return size == 1 ? name##_bytes : size == sizeof(half) ? name##_halves : name##_floats;                  \
    }

#if defined(__x86_64__)
#define LANES_OF 16
#define AVX512 __attribute__((target("avx512f,avx2,fma,f16c")))
#define WIDEN_16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define WIDEN_16_BYTES(p) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p))))

AVX2 static inline void four_sums(const __m256 *v, float *out)
{
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

AVX512 static inline void four_sums_of_16(const __m512 *v, float *out)
{
    __m256 halves[FOUR];
    for (int w = 0; w < FOUR; w++)
        halves[w] = _mm256_add_ps(_mm512_castps512_ps256(v[w]),
                                  _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v[w]), 1)));
    four_sums(halves, out);
}

SETS(by_8, AVX2, __m256, 8, 2, _mm256_loadu_ps, WIDEN, WIDEN_BYTES, _mm256_fmadd_ps, four_sums)
SETS(by_16, AVX512, __m512, 16, TILE, _mm512_loadu_ps, WIDEN_16, WIDEN_16_BYTES, _mm512_fmadd_ps,
     four_sums_of_16)

static Products *products_of(int64_t size) { return (__builtin_cpu_supports("avx512f") ? by_16 : by_8)(size); }

#else
#define LANES_OF 4

static inline void four_sums(const float32x4_t *v, float *out)
{
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}

SETS(products_of, , float32x4_t, 4, TILE, vld1q_f32, WIDEN, WIDEN_BYTES, MULTIPLY_ADD, four_sums)
#endif

/* Multiply the products by the scales of the n > 0 rows. Then compute the sum of the maximum products over the first
 * ``asking`` of the m rows of the query, and the sum of the maximum products over the n rows. ``largest`` has room for
 * m entries. */
static void sum_largest(const float *products, const float *scales, int64_t asking, int64_t m, int64_t n, float *largest,
                        float *of_query, float *of_rows)
{
    *of_query = *of_rows = 0;
    for (int64_t i = 0; i < m; i++)
        largest[i] = -INFINITY;
    for (int64_t r = 0; r < n; r++, products += m) {
        const float scale = scales ? scales[r] : 1;
        float most = -INFINITY;
        for (int64_t i = 0; i < asking; i++) {
            const float product = products[i] * scale;
            largest[i] = product > largest[i] ? product : largest[i];
            most = product > most ? product : most;
        }
        *of_rows += most;
    }
    for (int64_t i = 0; i < asking; i++)
        *of_query += largest[i];
}

#endif
