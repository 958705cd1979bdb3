/* Python module for dot products with stored vectors (rescore.h) and for compact codes (compact.h). */

#include "align.h"
#include "compact.h"
#include "rescore.h"
#include <stdlib.h>

/* Return whether the chosen rows exist and queries and rows have the same width; otherwise, set an error. */
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
        float *padded = NULL; /* query, followed by WIDEST zeros that the last product of a row reads */
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
            /* Room for the transforms of a row, followed by its d 16-bit components. */
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

/* Return whether the sets from ``begins`` to ``ends`` lie within n rows, and set ``longest`` to the length of the
 * longest set. */
static int lie_within(const int64_t *begins, const int64_t *ends, int64_t sets, int64_t n, int64_t *longest)
{
    *longest = 1;
    for (int64_t i = 0; i < sets; i++) {
        if (begins[i] < 0 || begins[i] > ends[i] || ends[i] > n) {
            PyErr_SetString(PyExc_ValueError, "sets must lie within their rows");
            return 0;
        }
        *longest = ends[i] - begins[i] > *longest ? ends[i] - begins[i] : *longest;
    }
    return 1;
}

static PyObject *align(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"query", "f", 2},  {"rows", "efb", 2},      {"begins", "q", 1},
                      {"ends", "q", 1}, {"sums", "f", 2, 1}, {"scales", "f", 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 5 && n_objects != 6)
        return PyErr_Format(PyExc_TypeError, "align takes 5 or 6 arrays");
    if (!take(arrays, objects, (int)n_objects)) {
        const int64_t m = arrays[0].view.shape[0], d = arrays[0].view.shape[1], n = arrays[1].view.shape[0];
        const int64_t sets = arrays[2].view.shape[0], size = arrays[1].view.itemsize;
        const int64_t *begins = arrays[2].view.buf, *ends = arrays[3].view.buf;
        const int64_t fours = (m + FOUR - 1) / FOUR * FOUR, width = (d + LANES_OF - 1) / LANES_OF * LANES_OF;
        const char *rows = arrays[1].view.buf;
        const float *scales = n_objects == 6 ? arrays[5].view.buf : NULL;
        float *sums = arrays[4].view.buf, *padded = NULL;
        int64_t longest;
        if (same_length(arrays[1].view.shape[1], d, "rows for a query of another width") &&
            same_length(arrays[3].view.shape[0], sets, "ends for another number of sets") &&
            same_length(arrays[4].view.shape[0], 2, "sums of query and rows") &&
            same_length(arrays[4].view.shape[1], sets, "sums for another number of sets") &&
            (scales == NULL || same_length(arrays[5].view.shape[0], n, "scales for another number of rows")) &&
            lie_within(begins, ends, sets, n, &longest) &&
            /* Room for the query, followed by the maxima of the products and the products of a set. */
            !(padded = PyMem_Calloc((size_t)(fours * (width + 1 + longest + TILE) + LINE), sizeof *padded)))
            PyErr_NoMemory();
        if (padded) {
            Products *const products = products_of(size);
            float *const lined = padded + (LINE - (uintptr_t)padded % LINE) / sizeof *padded; /* no load takes two lines */
            const Set query = {lined, fours, width};
            float *largest = lined + fours * width, *of_set = largest + fours;
            for (int64_t i = 0; i < m; i++)
                memcpy(lined + i * width, (const float *)arrays[0].view.buf + i * d, (size_t)d * sizeof *padded);
            Py_BEGIN_ALLOW_THREADS
            for (int64_t i = 0; i < sets; i++) {
                const int64_t length = ends[i] - begins[i], next = i + 1 < sets ? i + 1 : i;
                sums[i] = sums[sets + i] = 0;
                if (length == 0 || m == 0)
                    continue;
                products(&query, rows + begins[i] * d * size, length, d, rows + begins[next] * d * size,
                         (ends[next] - begins[next]) * d * size, of_set);
                sum_largest(of_set, scales ? scales + begins[i] : NULL, m, fours, length, largest, sums + i,
                            sums + sets + i);
            }
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(padded);
    }
    release(arrays, 6);
    return result;
}

static PyMethodDef methods[] = {
    {"align", (PyCFunction)(void (*)(void))align, METH_FASTCALL,
     "align(query, rows, begins, ends, sums, [scales]): sums (2, n) over the rows of the query, and over those of each "
     "set from begins[i] to ends[i], of their largest product with the other side; times scales."},
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
