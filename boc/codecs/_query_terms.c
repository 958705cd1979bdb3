/* The terms of queries in one call: for the one row of a query, numpy's steps take longer than the products.
   boc/codecs/dictionary.py does the same in numpy. */

#include "query_terms.h"

/* The terms of n queries, without the lock of Python; those of a zero row have frequency 0. ``zeros`` counts such rows.
   Returns what ``find_nearest`` does. */
static int64_t find_terms(Search *s, const Array *arrays, double temperature, int top, int64_t *zeros)
{
    const int64_t n = arrays[0].view.shape[0], d = s->d, z = s->z;
    int32_t *numbers = arrays[7].view.buf, *frequencies = arrays[8].view.buf;
    float *centred = malloc((size_t)(n * d) * sizeof *centred + 1), *cosines = malloc((size_t)(n * z) * sizeof *cosines + 1);
    int64_t *found = malloc((size_t)(n * z) * sizeof *found + 1), fewest = -1;
    *zeros = 0;
    if (centred && cosines && found) {
        centre(arrays[0].view.buf, arrays[1].view.buf, n, d, centred);
        fewest = find_nearest(s, centred, n, found, cosines);
    }
    for (int64_t i = 0; fewest >= z && i < n; i++) {
        weigh(cosines + i * z, z, temperature, top, frequencies + i * z);
        for (int64_t j = i * z; j < (i + 1) * z; j++)
            numbers[j] = (int32_t)found[j];
        if (is_zero(centred + i * d, d)) {
            memset(frequencies + i * z, 0, (size_t)z * sizeof *frequencies);
            ++*zeros;
        }
    }
    free(centred);
    free(cosines);
    free(found);
    return fewest;
}

static PyObject *query_terms(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"queries", "f", 2}, {"mean", "f", 1},    {"heads", "b", 2},      {"head_scales", "f", 1},
                      {"starts", "q", 1},  {"vectors", "b", 2}, {"scales", "f", 1},     {"numbers", "i", 2, 1},
                      {"frequencies", "i", 2, 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 12)
        return PyErr_Format(PyExc_TypeError, "query_terms takes 9 arrays, the number of cells, temperature and top");
    const int64_t cells = PyLong_AsLongLong(objects[9]);
    const double temperature = PyFloat_AsDouble(objects[10]);
    const int top = (int)PyLong_AsLong(objects[11]);
    if (PyErr_Occurred())
        return NULL;
    if (take(arrays, objects, 9))
        goto done;
    const int64_t n = arrays[0].view.shape[0], d = arrays[0].view.shape[1], z = arrays[7].view.shape[1];
    Search s;
    int64_t held, zeros, fewest;
    if (!take_centroids(&s, arrays + 2, d, &held) ||
        !same_length(arrays[1].view.shape[0], d, "mean of another width") ||
        !same_length(arrays[7].view.shape[0], n, "numbers for another number of queries") ||
        !same_length(arrays[8].view.shape[0], n, "frequencies for another number of queries") ||
        !same_length(arrays[8].view.shape[1], z, "frequencies for another number of terms") ||
        !check_budgets(&s, held, z, cells))
        goto done;
    Py_BEGIN_ALLOW_THREADS
    fewest = find_terms(&s, arrays, temperature, top, &zeros);
    Py_END_ALLOW_THREADS
    if (are_enough(&s, fewest))
        result = PyBool_FromLong(zeros > 0);
done:
    release(arrays, 9);
    return result;
}

static PyMethodDef methods[] = {
    {"query_terms", (PyCFunction)(void (*)(void))query_terms, METH_FASTCALL,
     "query_terms(queries, mean, heads, head_scales, starts, vectors, scales, numbers, frequencies, cells, temperature, "
     "top): the terms of queries; whether some have frequency 0, those of zero rows."},
    {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_query_terms", .m_methods = methods};

PyMODINIT_FUNC PyInit__query_terms(void) { return PyModuleDef_Init(&definition); }
