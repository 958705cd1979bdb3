/* Python module for the search in nearest.h, which finds the nearest centroids of queries. */

#include "nearest.h"

static PyObject *nearest(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"queries", "f", 2}, {"heads", "b", 2},  {"head_scales", "f", 1}, {"starts", "q", 1},
                      {"vectors", "b", 2}, {"scales", "f", 1}, {"numbers", "q", 2, 1},  {"cosines", "f", 2, 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 9)
        return PyErr_Format(PyExc_TypeError, "nearest takes 8 arrays and the number of cells");
    const int64_t cells = PyLong_AsLongLong(objects[8]);
    if (PyErr_Occurred())
        return NULL;
    if (take(arrays, objects, 8))
        goto done;
    const int64_t n = arrays[0].view.shape[0], d = arrays[0].view.shape[1], z = arrays[6].view.shape[1];
    Search s;
    int64_t held;
    if (!take_centroids(&s, arrays + 1, d, &held) ||
        !same_length(arrays[6].view.shape[0], n, "numbers for another number of queries") ||
        !same_length(arrays[7].view.shape[0], n, "cosines for another number of queries") ||
        !same_length(arrays[7].view.shape[1], z, "cosines for another number of nearest") ||
        !set_budgets(&s, held, z, cells))
        goto done;
    int64_t fewest;
    Py_BEGIN_ALLOW_THREADS
    fewest = find_nearest(&s, arrays[0].view.buf, n, arrays[6].view.buf, arrays[7].view.buf);
    Py_END_ALLOW_THREADS
    if (fewest < 0)
        PyErr_NoMemory();
    else if (fewest < z)
        PyErr_Format(PyExc_ValueError, "%zd nearest of %zd in %zd cells; search more of them", (Py_ssize_t)z,
                     (Py_ssize_t)fewest, (Py_ssize_t)cells);
    else
        result = Py_NewRef(Py_None);
done:
    release(arrays, 8);
    return result;
}

static PyMethodDef methods[] = {
    {"nearest", (PyCFunction)(void (*)(void))nearest, METH_FASTCALL,
     "nearest(queries, heads, head_scales, starts, vectors, scales, numbers, cosines, cells): nearest centroids of some "
     "cells, by number."},
    {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_nearest", .m_methods = methods};

PyMODINIT_FUNC PyInit__nearest(void) { return PyModuleDef_Init(&definition); }
