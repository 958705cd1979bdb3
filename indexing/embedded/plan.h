/* What all queries of a code share: the arrays of the code and of the parts of an index, checked once. */

#ifndef BOC_PLAN_H
#define BOC_PLAN_H

#include "../../boc/codecs/query_terms.h"
#include "../../boc/rerank/compact.h"
#include "../../boc/rerank/rescore.h"
#include "ranking.h"

enum { MEAN, HEADS, HEAD_SCALES, STARTS, CENTROIDS, SCALES, SIGNS, CODE_ARRAYS };
enum { LISTS, ROWS, FREQUENCIES, PEAKS, VECTORS, ID_BYTES, ID_OFFSETS, MASK, COMPACT, COMPACT_SCALES, PART_ARRAYS };

typedef struct {
    Postings postings;
    const uint8_t *mask;
    const void *vectors;
    int64_t item; /* bytes of an item of a vector, see rescore.h */
    const uint8_t *compact;
    const float *compact_scales;
} Part;

typedef struct {
    Search code;
    const float *mean, *signs; /* signs only if all parts have compact codes */
    double temperature;
    int top, n_arrays;
    int64_t held, n_parts; /* centroids and parts */
    Array *arrays;
    Part *parts;
    Ids *ids;
} Plan;

static void drop(Plan *plan)
{
    release(plan->arrays, plan->n_arrays);
    PyMem_Free(plan->arrays);
    PyMem_Free(plan->parts);
    PyMem_Free(plan->ids);
    PyMem_Free(plan);
}

/* Take the arrays of the code; -1 and an error if they do not fit each other. */
static int take_code(Plan *plan, PyObject *arrays)
{
    const Array wanted[CODE_ARRAYS] = {{"mean", "f", 1},   {"heads", "b", 2},   {"head_scales", "f", 1},
                                       {"starts", "q", 1}, {"vectors", "b", 2}, {"scales", "f", 1},
                                       {"signs", "f", 2}};
    Array *a = plan->arrays;
    for (int i = 0; i < CODE_ARRAYS; i++) {
        PyObject *array = PyTuple_GetItem(arrays, i);
        a[i] = wanted[i];
        if (array == NULL || ((i != SIGNS || array != Py_None) && take(a + i, &array, 1)))
            return -1;
    }
    const int64_t d = a[MEAN].view.shape[0];
    plan->mean = a[MEAN].view.buf;
    plan->signs = a[SIGNS].view.buf;
    const int fits = take_centroids(&plan->code, a + HEADS, d, &plan->held) &&
                     (plan->signs == NULL || (same_length(a[SIGNS].view.shape[0], ROUNDS, "rounds of signs") &&
                                              same_length(a[SIGNS].view.shape[1], d, "signs of another width")));
    return fits ? 0 : -1;
}

/* Take the arrays of part i; -1 and an error if they do not fit each other. */
static int take_part(Plan *plan, PyObject *arrays, int64_t i)
{
    const Array wanted[PART_ARRAYS] = {{"starts", "I", 1},   {"rows", "H", 1},        {"frequencies", "BHi", 1},
                                       {"peaks", "I", 1, 1}, {"vectors", "efB", 2},   {"ids", "B", 1},
                                       {"offsets", "q", 1},  {"mask", "B", 1},         {"compact", "B", 2},
                                       {"compact_scales", "f", 1}};
    Array *a = plan->arrays + CODE_ARRAYS + i * PART_ARRAYS;
    for (int j = 0; j < PART_ARRAYS; j++) {
        PyObject *array = PyTuple_GetItem(arrays, j);
        a[j] = wanted[j];
        if (array == NULL || ((j < MASK || array != Py_None) && take(a + j, &array, 1)))
            return -1;
    }
    const Py_ssize_t n = a[VECTORS].view.shape[0], n_postings = a[ROWS].view.len / 2;
    const Py_ssize_t n_terms = a[PEAKS].view.len / 4, blocks = n > BLOCK ? (n - 1) / BLOCK + 1 : 1;
    plan->parts[i] = (Part){.mask = a[MASK].view.buf, .vectors = a[VECTORS].view.buf,
                            .item = a[VECTORS].view.itemsize, .compact = a[COMPACT].view.buf,
                            .compact_scales = a[COMPACT_SCALES].view.buf};
    plan->parts[i].postings = (Postings){.starts = a[LISTS].view.buf, .rows = a[ROWS].view.buf,
                                         .frequencies = a[FREQUENCIES].view.buf, .peaks = a[PEAKS].view.buf,
                                         .width = a[FREQUENCIES].view.len ? (int)a[FREQUENCIES].view.itemsize : 0,
                                         .n = n, .n_terms = n_terms, .n_postings = n_postings, .blocks = blocks};
    plan->ids[i] = (Ids){a[ID_BYTES].view.buf, a[ID_OFFSETS].view.buf, a[ID_BYTES].view.len};
    const Py_ssize_t frequencies = plan->parts[i].postings.width ? n_postings : 0, d = plan->code.d;
    int fits = same_length(a[LISTS].view.len / 4, n_terms * blocks + 1, "starts for another number of terms or rows") &&
               same_length(a[FREQUENCIES].view.shape[0], frequencies, "frequencies for another number of rows") &&
               same_length(n_terms, plan->held, "postings of another number of terms") &&
               same_length(a[VECTORS].view.shape[1], row_items(d, plan->parts[i].item), "vectors of another width") &&
               same_length(a[ID_OFFSETS].view.shape[0], n + 1, "offsets of ids for another number of rows");
    if (fits && a[MASK].view.obj)
        fits = same_length(a[MASK].view.shape[0], n, "mask for another number of rows");
    if (fits && plan->signs != NULL && n > 0)
        fits = same_length(a[COMPACT].view.len, n * compact_bytes(d), "compact codes for another number of bytes") &&
               same_length(a[COMPACT_SCALES].view.len / 4, n, "compact_scales for another number of rows");
    if (fits && n > INT32_MAX)
        PyErr_Format(PyExc_ValueError, "%zd rows in a part; at most %d", n, INT32_MAX);
    return PyErr_Occurred() ? -1 : 0;
}

#endif
