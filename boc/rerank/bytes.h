/* Rows of vectors in 8 bits: the bytes of d int8 components, then those of their scale; boc/rerank/storage.py makes them. */

#ifndef BOC_BYTES_H
#define BOC_BYTES_H

#include "../_kernels.h"

#define SCALE ((int64_t)sizeof(float)) /* bytes of the scale of a row */

/* Items of a row of d components of ``size`` bytes. */
static inline int64_t row_items(int64_t d, int64_t size) { return d + (size == 1 ? SCALE : 0); }

static inline float scale_of(const void *bytes)
{
    float scale;
    memcpy(&scale, bytes, sizeof scale);
    return scale;
}

#endif
