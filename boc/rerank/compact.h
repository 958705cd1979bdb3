/* Compact codes of vectors, and estimates of dot products computed from these codes, as described in
 * boc/rerank/compact.py. Results are identical on all machines, because rotations add and subtract element by element,
 * and sums are integers. */

#ifndef BOC_COMPACT_H
#define BOC_COMPACT_H

#include "../_kernels.h"

#define BITS 2                     /* bits per component */
#define LEVELS (1 << BITS)
#define PER_BYTE (8 / BITS)        /* components per byte */
#define ROUNDS 2                   /* rounds of signs and Hadamard transforms */
#define FINEST 32767               /* maximum magnitude of a component of a row during encoding */
#define STEP 0.996                 /* distance between levels in standard deviations, optimal for normal components */
#define COARSE 127                 /* maximum magnitude of a component of a query */

/* Return the number of bytes in a code of d components. Byte j contains the components j, j + bytes, j + 2 bytes ...,
 * from the lowest bits up. */
static inline int64_t compact_bytes(int64_t d) { return (d + PER_BYTE - 1) / PER_BYTE; }

/* Hadamard transform of p numbers, where p is a power of 2, scaled to preserve lengths. All passes are identical. */
DISPATCHED static void transform(float *values, float *space, int64_t p)
{
    const int64_t half_p = p / 2;
    const float scale = (float)(1 / sqrt((double)p));
    float *from = values, *to = space;
    for (int64_t done = 1; done < p; done *= 2) {
        for (int64_t i = 0; i < half_p; i++) {
            to[2 * i] = from[i] + from[i + half_p];
            to[2 * i + 1] = from[i] - from[i + half_p];
        }
        float *const next = from;
        from = to, to = next;
    }
    for (int64_t i = 0; i < p; i++)
        values[i] = from[i] * scale;
}

/* Rotate ``values`` (d,) by rounds of ``signs`` (ROUNDS, d) and transforms of the first p and the last p numbers.
 * ``space`` has room for d numbers, which is enough because p <= d. */
DISPATCHED static void rotate(float *values, float *space, const float *signs, int64_t d)
{
    int64_t p = d > 0;
    while (p > 0 && 2 * p <= d)
        p *= 2;
    for (int round = 0; round < ROUNDS; round++, signs += d) {
        for (int64_t j = 0; j < d; j++)
            values[j] *= signs[j];
        transform(values, space, p);
        if (p < d)
            transform(values + d - p, space, p);
    }
}

/* Write the code of a rotated row, and the scale of its levels. ``whole`` has room for d numbers. */
DISPATCHED MAYBE_UNUSED static float code_row(const float *row, int64_t d, int16_t *whole, uint8_t *code)
{
    const int64_t bytes = compact_bytes(d);
    int64_t squares = 0, product = 0;
    const float most = largest_size(row, d);
    const double factor = most > 0 ? FINEST / (double)most : 0;
    for (int64_t j = 0; j < d; j++) {
        whole[j] = (int16_t)(most > 0 ? rounded(row[j] * factor) : 0);
        squares += (int32_t)whole[j] * whole[j];
    }
    const double width = STEP * sqrt((double)squares / (double)d);
    memset(code, 0, (size_t)bytes);
    for (int64_t part = 0, j = 0; j < d; part++)
        for (int64_t byte = 0; byte < bytes && j < d; byte++, j++) {
            int level = whole[j] >= 0 ? LEVELS / 2 : LEVELS / 2 - 1;
            for (int step = 1; step < LEVELS / 2; step++)
                level += (whole[j] >= step * width) - (whole[j] < -step * width);
            product += (int64_t)whole[j] * (2 * level - LEVELS + 1);
            code[byte] |= (uint8_t)(level << (part * BITS));
        }
    return product > 0 ? (float)((double)squares / (double)product * ((double)most / FINEST)) : 0;
}

/* Query in 8 bits, in the order of the components in a code. Each part is padded with zeros to ``width`` bytes. */
typedef struct {
    int8_t *numbers; /* (PER_BYTE, width) */
    int64_t width, bytes;
    int32_t sum;
} CompactQuery;

/* Convert a rotated query to a CompactQuery, whose ``numbers`` have room for PER_BYTE * width entries. */
MAYBE_UNUSED static void round_query(const float *query, int64_t d, CompactQuery *out)
{
    const float most = largest_size(query, d);
    const double factor = most > 0 ? COARSE / (double)most : 0;
    out->bytes = compact_bytes(d), out->sum = 0;
    memset(out->numbers, 0, (size_t)(PER_BYTE * out->width));
    for (int64_t j = 0; j < d; j++) {
        const int8_t whole = (int8_t)(most > 0 ? rounded(query[j] * factor) : 0);
        out->numbers[j / out->bytes * out->width + j % out->bytes] = whole;
        out->sum += whole;
    }
}

static inline int64_t compact_width(int64_t d) { return (compact_bytes(d) + LINE - 1) / LINE * LINE; }

/* Compute an estimate from the sum of the levels times numbers. Levels are odd, from 1 - LEVELS to LEVELS - 1. */
static inline float estimate_of(int32_t sum, const CompactQuery *query, float scale)
{
    return (float)(2 * sum - (LEVELS - 1) * query->sum) * scale;
}

DISPATCHED static void estimate_plain(const CompactQuery *query, const uint8_t *codes, const float *scales,
                                      const int64_t *rows, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *code = codes + rows[i] * query->bytes;
        int32_t sum = 0;
        for (int part = 0; part < PER_BYTE; part++) {
            const int8_t *numbers = query->numbers + part * query->width;
            for (int64_t byte = 0; byte < query->bytes; byte++)
                sum += (int16_t)(code[byte] >> (part * BITS) & (LEVELS - 1)) * numbers[byte];
        }
        out[i] = estimate_of(sum, query, scales[rows[i]]);
    }
}

#define SOON 16 /* number of rows to prefetch */

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define WIDE_BYTES __attribute__((target("avx512f,avx512bw,avx512vnni")))

WIDE_BYTES static void estimate_wide(const CompactQuery *query, const uint8_t *codes, const float *scales,
                                     const int64_t *rows, int64_t n, float *out)
{
    const __m512i levels = _mm512_set1_epi8(LEVELS - 1);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *code = codes + rows[i] * query->bytes;
        __m512i sums = _mm512_setzero_si512();
        if (i + SOON < n) {
            for (int64_t byte = 0; byte < query->bytes; byte += LINE)
                PREFETCH(codes + rows[i + SOON] * query->bytes + byte);
            PREFETCH(scales + rows[i + SOON]);
        }
        for (int64_t byte = 0; byte < query->bytes; byte += LINE) {
            const int64_t left = query->bytes - byte;
            const __mmask64 mask = left < LINE ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
            const __m512i packed = _mm512_maskz_loadu_epi8(mask, code + byte);
            for (int part = 0; part < PER_BYTE; part++) {
                const __m512i numbers = _mm512_loadu_si512(query->numbers + part * query->width + byte);
                const __m512i component = _mm512_and_si512(_mm512_srli_epi16(packed, part * BITS), levels);
                sums = _mm512_dpbusd_epi32(sums, component, numbers);
            }
        }
        out[i] = estimate_of(_mm512_reduce_add_epi32(sums), query, scales[rows[i]]);
    }
}
#define HAS_WIDE_BYTES (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"))
#else
#define estimate_wide estimate_plain
#define HAS_WIDE_BYTES 0
#endif

/* Estimate the products of the query with n ``rows``, up to a positive factor that depends only on the query. */
MAYBE_UNUSED static void estimate(const CompactQuery *query, const uint8_t *codes, const float *scales, const int64_t *rows,
                     int64_t n, float *out)
{
    (HAS_WIDE_BYTES ? estimate_wide : estimate_plain)(query, codes, scales, rows, n, out);
}

#endif
