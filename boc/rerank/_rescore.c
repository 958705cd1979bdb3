/* Dot products with stored vectors, and compact codes of them, for Python; see rescore.h and compact.h. */

#include "compact.h"
#include "rescore.h"
#include <stdlib.h>

/* Whether the chosen rows are among those held, and the queries as wide; else an error is set. */
static int fit(int64_t width, const Array *rows, const Array *chosen)
{
    const int64_t held = rows->view.shape[0], n = chosen ? chosen->view.shape[0] : 0;
    const int64_t *numbers = chosen ? chosen->view.buf : NULL;
    for (int64_t i = 0; i < n; i++)
        if (numbers[i] < 0 || numbers[i] >= held)
            return PyErr_Format(PyExc_IndexError, "no row %lld among %lld", (long long)numbers[i], (long long)held), 0;
    return same_length(rows->view.shape[1], row_items(width, rows->view.itemsize), "rows for a query of another width");
}

static PyObject *dot(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"query", "f", 1}, {"rows", "efB", 2}, {"out", "f", 1, 1}, {"chosen", "q", 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 3 && n_objects != 4)
        return PyErr_Format(PyExc_TypeError, "dot takes 3 or 4 arrays");
    if (!take(arrays, objects, (int)n_objects)) {
        const Array *rows = arrays + 1, *out = arrays + 2, *chosen = n_objects == 4 ? arrays + 3 : NULL;
        const int64_t n = (chosen ? chosen : rows)->view.shape[0], d = arrays->view.shape[0];
        float *padded = NULL; /* the query and WIDEST zeros, which the last product of a row reads */
        if (same_length(out->view.shape[0], n, "out for another number of rows") &&
            fit(d, rows, chosen) && !(padded = PyMem_Malloc((size_t)(d + WIDEST) * sizeof *padded)))
            PyErr_NoMemory();
        if (padded) {
            Py_BEGIN_ALLOW_THREADS
            multiply_rows(arrays->view.buf, rows->view.buf, rows->view.itemsize, chosen ? chosen->view.buf : NULL, n, d,
                          padded, out->view.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(padded);
    }
    release(arrays, 4);
    return result;
}

static PyObject *encode(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"rows", "f", 2, 1}, {"signs", "f", 2}, {"codes", "B", 2, 1}, {"scales", "f", 1, 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 4)
        return PyErr_Format(PyExc_TypeError, "encode takes 4 arrays");
    if (!take(arrays, objects, 4)) {
        const int64_t n = arrays[0].view.shape[0], d = arrays[0].view.shape[1];
        float *row = arrays[0].view.buf, *scales = arrays[3].view.buf, *space = NULL;
        uint8_t *code = arrays[2].view.buf;
        if (same_length(arrays[1].view.shape[0], ROUNDS, "rounds of signs") &&
            same_length(arrays[1].view.shape[1], d, "signs of another width") &&
            same_length(arrays[2].view.shape[0], n, "codes for another number of rows") &&
            same_length(arrays[2].view.shape[1], compact_bytes(d), "codes of another width") &&
            same_length(arrays[3].view.shape[0], n, "scales for another number of rows") &&
            /* For transforms of a row, then for its d numbers of 16 bits. */
            !(space = PyMem_Malloc((size_t)(d + 1) * sizeof *space)))
            PyErr_NoMemory();
        if (space) {
            Py_BEGIN_ALLOW_THREADS
            for (int64_t i = 0; i < n; i++, row += d, code += compact_bytes(d)) {
                rotate(row, space, arrays[1].view.buf, d);
                scales[i] = code_row(row, d, (int16_t *)space, code);
            }
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(space);
    }
    release(arrays, 4);
    return result;
}

static PyMethodDef methods[] = {
    {"dot", (PyCFunction)(void (*)(void))dot, METH_FASTCALL,
     "dot(query, rows, out, [chosen]): dot products with all rows, or with the chosen ones, into out."},
    {"encode", (PyCFunction)(void (*)(void))encode, METH_FASTCALL,
     "encode(rows, signs, codes, scales): write compact codes of centred rows, which it rotates in place."},
    {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_rescore", .m_methods = methods};

PyMODINIT_FUNC PyInit__rescore(void)
{
    if (!RUNS_HERE) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
        return NULL;
    }
    return PyModuleDef_Init(&definition);
}
