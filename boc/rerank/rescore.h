/* Compute dot products of a query with chosen rows of a matrix of float16, float32 or bytes, without copying the
 * matrix. The product of a row does not depend on other rows. Sums are computed in float32 with 4 accumulators of 8
 * lanes (AVX2) or 4 lanes (NEON), so their error is at most (d / (4 * lanes) + log2(4 * lanes) + 1) * 2**-24 * sum |q_i
 * r_i|, plus 2**-24 of the product for bytes. Conversion from float16 and int8 is exact. Wider vectors are not faster,
 * because reading rows from memory takes most of the time. On other processors, NumPy replaces this module. */

#ifndef BOC_RESCORE_H
#define BOC_RESCORE_H

#include "../_kernels.h"

/* Rows of bytes consist of d int8 components and the bytes of the scale, as written by boc/rerank/storage.py. */
#define SCALE ((int64_t)sizeof(float)) /* bytes per scale */

/* Return the number of items in a row of d components whose items have ``size`` bytes. */
static inline int64_t row_items(int64_t d, int64_t size) { return d + (size == 1 ? SCALE : 0); }

static inline float scale_of(const void *bytes)
{
    float scale;
    memcpy(&scale, bytes, sizeof scale);
    return scale;
}

#define WIDEST 8 /* maximum number of lanes */

#define NO_SCALE(p) 1.0f

typedef uint16_t half;

/* Compute the products of ``query`` (d,), which is padded with zeros to a multiple of WIDEST, with n rows of
 * ``matrix``: the rows ``chosen``, or the first n rows. */
typedef void Kernel(const float *query, const void *matrix, const int64_t *chosen, int64_t n, int64_t d, float *out);

/* ``beside`` is the number of items after the components of a row, which ``scale`` reads. */
#define KERNEL(name, target, type, vector, lanes, zero, widen, floats, multiply_add, add, sum, beside, scale)         \
    target static void name(const float *query, const void *matrix, const int64_t *chosen, int64_t n, int64_t d,      \
                            float *out)                                                                               \
    {                                                                                                                 \
        const type *rows = matrix;                                                                                    \
        const int64_t whole = d - d % (lanes), fours = d - d % (4 * (lanes)), items = d + (beside);                   \
        const int64_t size = items * (int64_t)sizeof(type);                                                           \
        const int64_t ahead = 1 + AHEAD / (size + 1);                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                             \
            const type *row = rows + (chosen ? chosen[i] : i) * items;                                                \
            if (i + ahead < n) {                                                                                      \
                const char *later = (const char *)(rows + (chosen ? chosen[i + ahead] : i + ahead) * items);          \
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
            out[i] = sum(add(add(s0, s1), add(s2, s3))) * scale(row + d);                                             \
        }                                                                                                             \
    }

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define WIDEN(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define WIDEN_BYTES(p) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p))))

AVX2 static inline float sum_of(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

KERNEL(of_halves, AVX2, half, __m256, 8, _mm256_setzero_ps(), WIDEN, _mm256_loadu_ps, _mm256_fmadd_ps, _mm256_add_ps,
       sum_of, 0, NO_SCALE)
KERNEL(of_floats, AVX2, float, __m256, 8, _mm256_setzero_ps(), _mm256_loadu_ps, _mm256_loadu_ps, _mm256_fmadd_ps,
       _mm256_add_ps, sum_of, 0, NO_SCALE)
KERNEL(of_bytes, AVX2, uint8_t, __m256, 8, _mm256_setzero_ps(), WIDEN_BYTES, _mm256_loadu_ps, _mm256_fmadd_ps,
       _mm256_add_ps, sum_of, SCALE, scale_of)
#define RUNS_HERE (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) /* every such processor has F16C */

#elif defined(__GNUC__) && defined(__aarch64__)
#include <arm_neon.h>
#define WIDEN(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define WIDEN_BYTES(p) vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four_of(p)))))))
#define MULTIPLY_ADD(a, b, sum) vfmaq_f32(sum, a, b)

static inline uint32_t four_of(const uint8_t *bytes)
{
    uint32_t four;
    memcpy(&four, bytes, sizeof four);
    return four;
}

KERNEL(of_halves, , half, float32x4_t, 4, vdupq_n_f32(0), WIDEN, vld1q_f32, MULTIPLY_ADD, vaddq_f32, vaddvq_f32, 0,
       NO_SCALE)
KERNEL(of_floats, , float, float32x4_t, 4, vdupq_n_f32(0), vld1q_f32, vld1q_f32, MULTIPLY_ADD, vaddq_f32, vaddvq_f32, 0,
       NO_SCALE)
KERNEL(of_bytes, , uint8_t, float32x4_t, 4, vdupq_n_f32(0), WIDEN_BYTES, vld1q_f32, MULTIPLY_ADD, vaddq_f32, vaddvq_f32,
       SCALE, scale_of)
#define RUNS_HERE 1

#else
#error "neither AVX2 nor NEON: numpy stands in"
#endif

/* Compute the products of ``query`` with n rows: the rows ``chosen``, or the first n rows. Items have ``size`` bytes:
 * 1, 2 (float16) or 4 (float32). ``padded`` has room for d + WIDEST numbers. */
static void multiply_rows(const float *query, const void *rows, int64_t size, const int64_t *chosen, int64_t n, int64_t d,
                          float *padded, float *out)
{
    Kernel *const kernel = size == 1 ? of_bytes : size == sizeof(half) ? of_halves : of_floats;
    memcpy(padded, query, (size_t)d * sizeof *padded);
    memset(padded + d, 0, WIDEST * sizeof *padded);
    kernel(padded, rows, chosen, n, d, out);
}

#endif
