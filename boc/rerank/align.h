/* Compute, for each row of a concept set, the maximum product with the rows of another set, and the sums of these
 * maxima. The rows of the other sets are float16, float32 or int8, and are not copied. */

#ifndef BOC_ALIGN_H
#define BOC_ALIGN_H

#include "rescore.h"

#define FOUR 4 /* rows of the query that are multiplied by two rows of a set at a time */

#if defined(__x86_64__)
#define VECTOR __m256
#define LANES_OF 8
#define NOTHING _mm256_setzero_ps()
#define FLOATS _mm256_loadu_ps
#define ADD_PRODUCT _mm256_fmadd_ps
#define SUM_OF sum_of
#define TARGET AVX2
#else
#define VECTOR float32x4_t
#define LANES_OF 4
#define NOTHING vdupq_n_f32(0)
#define FLOATS vld1q_f32
#define ADD_PRODUCT MULTIPLY_ADD
#define SUM_OF vaddvq_f32
#define TARGET
#endif

/* Query of m rows with unit length. Zero rows are appended up to a multiple of FOUR, and each row is padded with zeros
 * to ``width``. */
typedef struct {
    const float *rows;
    int64_t m, width;
} Set;

/* Compute the products out[i * n + r] of the rows of a query, a multiple of FOUR, with n ``rows`` of d components. */
typedef void Products(const Set *query, const void *rows, int64_t n, int64_t d, float *out);

/* Add the products of two rows, ONE and OTHER, with four rows of the query, for the components from j on. */
#define ADD_PRODUCTS(widen, ONE, OTHER)                        \
    {                                                          \
        const VECTOR x = widen(ONE), y = widen(OTHER);         \
        VECTOR q = FLOATS(four + j);                           \
        a0 = ADD_PRODUCT(x, q, a0), b0 = ADD_PRODUCT(y, q, b0); \
        q = FLOATS(four + width + j);                          \
        a1 = ADD_PRODUCT(x, q, a1), b1 = ADD_PRODUCT(y, q, b1); \
        q = FLOATS(four + 2 * width + j);                      \
        a2 = ADD_PRODUCT(x, q, a2), b2 = ADD_PRODUCT(y, q, b2); \
        q = FLOATS(four + 3 * width + j);                      \
        a3 = ADD_PRODUCT(x, q, a3), b3 = ADD_PRODUCT(y, q, b3); \
    }

/* If the number of rows is odd, the last row is multiplied twice. */
#define PRODUCTS(name, type, widen)                                                                                     \
    TARGET static void name(const Set *query, const void *all, int64_t n, int64_t d, float *out)                        \
    {                                                                                                                   \
        const type *rows = all;                                                                                         \
        const int64_t width = query->width, whole = d - d % LANES_OF;                                                   \
        for (int64_t r = 0; r < n; r += 2) {                                                                            \
            const int64_t next = r + 1 < n ? r + 1 : r;                                                                 \
            const type *one = rows + r * d, *other = rows + next * d;                                                   \
            type rest[2][LANES_OF] = {{0}};                                                                             \
            memcpy(rest[0], one + whole, (size_t)(d - whole) * sizeof(type));                                           \
            memcpy(rest[1], other + whole, (size_t)(d - whole) * sizeof(type));                                         \
            for (int64_t i = 0; i < query->m; i += FOUR) {                                                              \
                const float *four = query->rows + i * width;                                                            \
                VECTOR a0 = NOTHING, a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;                     \
                int64_t j = 0;                                                                                          \
                for (; j < whole; j += LANES_OF)                                                                        \
                    ADD_PRODUCTS(widen, one + j, other + j)                                                             \
                if (j < d)                                                                                              \
                    ADD_PRODUCTS(widen, rest[0], rest[1])                                                               \
                float *first = out + i * n + r, *second = out + i * n + next;                                           \
                first[0] = SUM_OF(a0), first[n] = SUM_OF(a1), first[2 * n] = SUM_OF(a2), first[3 * n] = SUM_OF(a3);     \
                second[0] = SUM_OF(b0), second[n] = SUM_OF(b1), second[2 * n] = SUM_OF(b2), second[3 * n] = SUM_OF(b3); \
            }                                                                                                           \
        }                                                                                                               \
    }

PRODUCTS(set_of_halves, half, WIDEN)
PRODUCTS(set_of_floats, float, FLOATS)
PRODUCTS(set_of_bytes, uint8_t, WIDEN_BYTES)

/* Multiply the products by the scales of the n > 0 rows. Then compute the sum of the maximum products over ``asking``
 * rows of the query, and the sum of the maximum products over the n rows. ``most`` has room for n entries. */
static void sum_largest(float *products, const float *scales, int64_t asking, int64_t n, float *most, float *of_query,
                        float *of_rows)
{
    *of_query = *of_rows = 0;
    for (int64_t r = 0; r < n; r++)
        most[r] = -INFINITY;
    for (int64_t i = 0; i < asking; i++, products += n) {
        float largest = -INFINITY;
        for (int64_t r = 0; r < n; r++) {
            const float product = products[r] * (scales ? scales[r] : 1);
            largest = product > largest ? product : largest;
            most[r] = product > most[r] ? product : most[r];
        }
        *of_query += largest;
    }
    for (int64_t r = 0; r < n; r++)
        *of_rows += most[r];
}

#endif
