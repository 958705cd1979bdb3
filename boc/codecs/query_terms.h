/* The terms of a query from its nearest centroids; boc/codecs/dictionary.py does the same in numpy. */

#ifndef BOC_QUERY_TERMS_H
#define BOC_QUERY_TERMS_H

#include "../clustering/nearest.h"
#include <math.h>

/* The n rows of ``queries`` less the mean. */
static void centre(const float *queries, const float *mean, int64_t n, int64_t d, float *centred)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j++)
            centred[i * d + j] = queries[i * d + j] - mean[j];
}

/* Whether a row is zero: then it has no terms. */
static int is_zero(const float *row, int64_t d)
{
    int64_t j = 0;
    while (j < d && row[j] == 0)
        j++;
    return j == d;
}

/* The frequencies of a query's z terms: exp((cosine - the largest) / temperature) times ``top`` in double, rounded to 1 to
   ``top``, halves to even. */
static void weigh(const float *cosines, int64_t z, double temperature, int top, int32_t *frequencies)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2**52: sums with it have no places left for fractions */
    float most = cosines[0];
    for (int64_t j = 1; j < z; j++)
        most = cosines[j] > most ? cosines[j] : most;
    for (int64_t j = 0; j < z; j++) {
        const double whole = exp(((double)cosines[j] - (double)most) / temperature) * top + magic - magic;
        frequencies[j] = whole >= 1 ? whole < top ? (int32_t)whole : top : 1;
    }
}

#endif
