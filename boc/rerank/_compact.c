/* Compact codes of vectors, for Python; compact.h makes and compares them. */

#include "bytes.h"
#include "compact.h"
#include <stdlib.h>

/* The number of a half as a float, exact. */
static float widened(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half >> 15) << 31, rest = half & 0x7fff;
    uint32_t bits = sign | ((rest << 13) + ((uint32_t)112 << 23));
    float value;
    if (rest >= 0x7c00) /* infinity, and what is no number */
        bits = sign | rest << 13 | (uint32_t)255 << 23;
    if (rest < 0x0400) { /* zero, and smaller than 2**-14 */
        value = (float)rest / 16777216;
        return sign ? -value : value;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

enum { VECTORS, WHICH, MEANS, SIGNS, CODES, SCALES, ENCODED };

static void encode_rows(const Array *at, float *row, float *space, int16_t *whole)
{
    const int64_t n = at[VECTORS].view.shape[0], d = at[MEANS].view.shape[1];
    const uint8_t *which = at[WHICH].view.buf;
    for (int64_t i = 0; i < n; i++) {
        const float *mean = (const float *)at[MEANS].view.buf + which[i] * d;
        if (at[VECTORS].view.itemsize == 2)
            for (int64_t j = 0; j < d; j++)
                row[j] = widened(((const uint16_t *)at[VECTORS].view.buf)[i * d + j]) - mean[j];
        else if (at[VECTORS].view.itemsize == 1) {
            const uint8_t *bytes = (const uint8_t *)at[VECTORS].view.buf + i * (d + SCALE);
            const float scale = scale_of(bytes + d);
            for (int64_t j = 0; j < d; j++)
                row[j] = (float)(int8_t)bytes[j] * scale - mean[j];
        } else
            for (int64_t j = 0; j < d; j++)
                row[j] = ((const float *)at[VECTORS].view.buf)[i * d + j] - mean[j];
        rotate(row, space, at[SIGNS].view.buf, d);
        uint8_t *code = (uint8_t *)at[CODES].view.buf + i * compact_bytes(d);
        ((float *)at[SCALES].view.buf)[i] = code_row(row, d, whole, code);
    }
}

static PyObject *encode(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array at[ENCODED] = {{"vectors", "efB", 2}, {"which", "B", 1},   {"means", "f", 2},
                         {"signs", "f", 2},    {"codes", "B", 2, 1}, {"scales", "f", 1, 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != ENCODED)
        return PyErr_Format(PyExc_TypeError, "encode takes %d arrays", ENCODED);
    if (!take(at, objects, ENCODED)) {
        const Py_ssize_t n = at[VECTORS].view.shape[0], d = at[MEANS].view.shape[1];
        int fits = same_length(at[WHICH].view.shape[0], n, "which for other rows") &&
                   same_length(at[VECTORS].view.shape[1], row_items(d, at[VECTORS].view.itemsize), "vectors of another width") &&
                   same_length(at[SIGNS].view.shape[0], ROUNDS, "rounds of signs") &&
                   same_length(at[SIGNS].view.shape[1], d, "signs of another width") &&
                   same_length(at[CODES].view.shape[0], n, "codes for other rows") &&
                   same_length(at[CODES].view.shape[1], compact_bytes(d), "codes of another width") &&
                   same_length(at[SCALES].view.shape[0], n, "scales for other rows");
        for (Py_ssize_t i = 0; fits && i < n; i++)
            if (((const uint8_t *)at[WHICH].view.buf)[i] >= at[MEANS].view.shape[0])
                fits = (PyErr_SetString(PyExc_IndexError, "a row of a mean that is none"), 0);
        float *row = fits ? malloc((size_t)(d + 1) * (2 * sizeof *row + sizeof(int16_t))) : NULL;
        if (row != NULL) {
            Py_BEGIN_ALLOW_THREADS
            encode_rows(at, row, row + d, (int16_t *)(row + 2 * d));
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        } else if (fits)
            PyErr_NoMemory();
        free(row);
    }
    release(at, ENCODED);
    return result;
}

static PyObject *estimates(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    enum { QUERY, TURNS, STORED, LENGTHS, ROWS, OUT, ARRAYS };
    Array at[ARRAYS] = {{"query", "f", 1},  {"signs", "f", 2}, {"codes", "B", 2},
                        {"scales", "f", 1}, {"rows", "q", 1},  {"out", "f", 1, 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != ARRAYS)
        return PyErr_Format(PyExc_TypeError, "estimate takes %d arrays", ARRAYS);
    if (!take(at, objects, ARRAYS)) {
        const Py_ssize_t d = at[QUERY].view.shape[0], n = at[ROWS].view.shape[0], held = at[STORED].view.shape[0];
        const int64_t *rows = at[ROWS].view.buf, width = compact_width(d);
        int fits = same_length(at[TURNS].view.shape[0], ROUNDS, "rounds of signs") &&
                   same_length(at[TURNS].view.shape[1], d, "signs of another width") &&
                   same_length(at[STORED].view.shape[1], compact_bytes(d), "codes of another width") &&
                   same_length(at[LENGTHS].view.shape[0], held, "scales for other rows") &&
                   same_length(at[OUT].view.shape[0], n, "out for another number of rows");
        for (Py_ssize_t i = 0; fits && i < n; i++)
            if (rows[i] < 0 || rows[i] >= held) {
                PyErr_Format(PyExc_IndexError, "no row %lld among %lld", (long long)rows[i], (long long)held);
                fits = 0;
            }
        float *row = fits ? malloc((size_t)(2 * d + 1) * sizeof *row) : NULL;
        CompactQuery query = {fits ? malloc((size_t)(PER_BYTE * width) + 1) : NULL, width, 0, 0};
        if (row != NULL && query.numbers != NULL) {
            Py_BEGIN_ALLOW_THREADS
            memcpy(row, at[QUERY].view.buf, (size_t)d * sizeof *row);
            rotate(row, row + d, at[TURNS].view.buf, d);
            round_query(row, d, &query);
            estimate(&query, at[STORED].view.buf, at[LENGTHS].view.buf, rows, n, at[OUT].view.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        } else if (fits)
            PyErr_NoMemory();
        free(row);
        free(query.numbers);
    }
    release(at, ARRAYS);
    return result;
}

static PyMethodDef methods[] = {
    {"encode", (PyCFunction)(void (*)(void))encode, METH_FASTCALL,
     "encode(vectors, which, means, signs, codes, scales): codes of vectors less the mean that is theirs."},
    {"estimate", (PyCFunction)(void (*)(void))estimates, METH_FASTCALL,
     "estimate(query, signs, codes, scales, rows, out): estimates of products with rows, times a constant of the query."},
    {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_compact", .m_methods = methods};

PyMODINIT_FUNC PyInit__compact(void) { return PyModuleDef_Init(&definition); }
