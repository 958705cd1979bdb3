/* Weights of terms as whole numbers; boc/codecs/dictionary.py does the same in numpy. */

#ifndef BOC_QUANTIZE_H
#define BOC_QUANTIZE_H

#include "../_kernels.h"
#include <math.h>

/* With a temperature other than 0 a weight w counts as exp((w - the largest of the row) / temperature), in double. */
static void quantize_row(const float *weights, int64_t z, double temperature, int top, int32_t *frequencies)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2**52: sums with it have no places left for fractions */
    float most = weights[0];
    for (int64_t j = 1; j < z; j++)
        most = weights[j] > most ? weights[j] : most;
    for (int64_t j = 0; j < z; j++) {
        double weight = weights[j];
        if (temperature != 0)
            weight = exp((weight - (double)most) / temperature);
        const double whole = weight * top + magic - magic;
        frequencies[j] = whole >= 1 ? whole < top ? (int32_t)whole : top : 1;
    }
}

#endif
