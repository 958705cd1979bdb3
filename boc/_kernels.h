/* Functions shared by the C modules: validation of the caller's arrays, and selection of the k largest values. */

#ifndef BOC_KERNELS_H
#define BOC_KERNELS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Use wide vectors if the processor supports them. Choosing the function at load time requires gcc and glibc. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCHED __attribute__((target_clones("default", "avx2")))
#else
#define DISPATCHED
#endif

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#define MAYBE_UNUSED __attribute__((unused))
#else
#define PREFETCH(address) ((void)(address))
#define MAYBE_UNUSED
#endif

#define LINE 64    /* bytes of a cache line */
#define AHEAD 4096 /* bytes of rows to prefetch */

/* Array of the caller, with the required number of dimensions and item types (format letters of the module struct). */
typedef struct {
    const char *name, *types;
    int ndim, writable;
    Py_buffer view;
} Array;

MAYBE_UNUSED static void release(Array *arrays, int n)
{
    for (int i = 0; i < n; i++)
        if (arrays[i].view.obj)
            PyBuffer_Release(&arrays[i].view);
}

/* Acquire n contiguous arrays in native byte order; "q" means any 8-byte integer. Return -1 and set ValueError for
 * other arrays. In both cases, ``release`` releases the acquired arrays. */
MAYBE_UNUSED static int take(Array *arrays, PyObject *const *objects, int n)
{
    for (Array *array = arrays; array < arrays + n; array++, objects++) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (array->writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(*objects, &array->view, flags))
            return -1;
        const char *format = array->view.format;
        if (format && format[0] && strchr(PY_LITTLE_ENDIAN ? "<=@" : ">=@", format[0]))
            format++;
        char type = format && format[0] && !format[1] ? format[0] : 0;
        if (type == 'l' && array->view.itemsize == 8)
            type = 'q';
        if (array->view.ndim != array->ndim || !type || !strchr(array->types, type)) {
            PyErr_Format(PyExc_ValueError, "%s must have %d dimensions and items of type %s", array->name,
                         array->ndim, array->types);
            return -1;
        }
    }
    return 0;
}

MAYBE_UNUSED static int same_length(Py_ssize_t found, Py_ssize_t wanted, const char *what)
{
    if (found != wanted)
        PyErr_Format(PyExc_ValueError, "%s: %zd for %zd", what, found, wanted);
    return found == wanted;
}

/* Return the nearest integer, with halves rounded to even. Adding 1.5 * 2**52 leaves no bits for fractions. */
static inline double rounded(double value) { return value + 6755399441055744.0 - 6755399441055744.0; }

/* Return the maximum magnitude in a row, or 0 if the row contains NaN or infinity. */
DISPATCHED MAYBE_UNUSED static float largest_size(const float *row, int64_t d)
{
    float most = 0;
    int odd = 0;
    for (int64_t j = 0; j < d; j++) {
        const float size = fabsf(row[j]);
        most = size > most ? size : most;
        odd |= !(size <= FLT_MAX);
    }
    return odd ? 0 : most;
}

/* Return an integer that sorts in the same order as the value. -0 equals 0, and NaN is the maximum or minimum,
 * depending on its sign. */
static inline uint32_t rank_of(float value)
{
    uint32_t bits;
    value += 0.0f;
    memcpy(&bits, &value, sizeof bits);
    return bits ^ (bits >> 31 ? UINT32_MAX : (uint32_t)1 << 31);
}

/* Return the value that such an integer represents. */
MAYBE_UNUSED static inline float value_of(uint32_t rank)
{
    const uint32_t bits = rank ^ (rank >> 31 ? (uint32_t)1 << 31 : UINT32_MAX);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Return the k-th largest of n ranks, or 0 if there are fewer than k. The rank is determined bit by bit, from the
 * highest bit. */
DISPATCHED MAYBE_UNUSED static uint32_t reached(const uint32_t *ranks, size_t n, size_t k)
{
    uint32_t any = 0, kth = 0;
    for (size_t i = 0; i < n; i++)
        any |= ranks[i];
    for (uint32_t bit = (uint32_t)1 << 31; bit; bit >>= 1) {
        const uint32_t tried = kth | bit;
        uint32_t reaching = 0;
        if (tried > any)
            continue;
        for (size_t i = 0; i < n; i++)
            reaching += ranks[i] >= tried;
        kth = reaching >= k ? tried : kth;
        if (reaching == k)
            break;
    }
    return kth;
}

/* Find the places of the k largest of n values, in ascending order, with 1 <= k <= n < 2**31. Among equal values, the
 * first are chosen. ``ranks`` has room for n entries, ``places`` for k + 1. */
DISPATCHED MAYBE_UNUSED static void find_largest(const float *values, int64_t n, int64_t k, uint32_t *ranks, int64_t *places)
{
    uint32_t kth = 0;
    if (k == 1) {
        for (int64_t i = 0; i < n; i++)
            kth = rank_of(values[i]) > kth ? rank_of(values[i]) : kth;
        for (places[0] = 0; rank_of(values[places[0]]) != kth;)
            places[0]++;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        ranks[i] = rank_of(values[i]);
    kth = reached(ranks, (size_t)n, (size_t)k);
    int64_t equal = k, found = 0;
    for (int64_t i = 0; i < n; i++)
        equal -= ranks[i] > kth;
    for (int64_t i = 0; i < n; i++) {
        const int same = ranks[i] == kth;
        places[found] = i;
        found += ranks[i] > kth || (same && equal > 0);
        equal -= same;
    }
}

#endif
