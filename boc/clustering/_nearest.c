/* The nearest centroids of queries, in cells, for Python; nearest.h finds them. */

#include "nearest.h"

static int fit_together(const Array *arrays, int64_t n, int64_t d, int64_t m, int64_t held, int64_t z)
{
    if (d > LONGEST)
        PyErr_Format(PyExc_ValueError, "rows of %zd numbers; at most %d", (Py_ssize_t)d, LONGEST);
    return d <= LONGEST && same_length(arrays[1].view.shape[1], d, "heads for queries of another width") &&
           same_length(arrays[4].view.shape[1], d, "vectors for queries of another width") &&
           same_length(arrays[2].view.shape[0], m, "head_scales for another number of heads") &&
           same_length(arrays[3].view.shape[0], m + 1, "starts for another number of heads") &&
           same_length(arrays[5].view.shape[0], held, "scales for another number of vectors") &&
           same_length(arrays[6].view.shape[0], n, "numbers for another number of queries") &&
           same_length(arrays[7].view.shape[0], n, "cosines for another number of queries") &&
           same_length(arrays[7].view.shape[1], z, "cosines for another number of nearest");
}

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
    const int64_t n = arrays[0].view.shape[0], d = arrays[0].view.shape[1], m = arrays[1].view.shape[0];
    const int64_t held = arrays[4].view.shape[0], z = arrays[6].view.shape[1];
    Search s = {.starts = arrays[3].view.buf, .heads = arrays[1].view.buf, .head_scales = arrays[2].view.buf,
                .vectors = arrays[4].view.buf, .scales = arrays[5].view.buf, .m = m, .d = d, .cells = cells, .z = z};
    if (!fit_together(arrays, n, d, m, held, z))
        goto done;
    if (z < 1 || cells < 1 || cells > m || held > INT32_MAX || !starts_bound(s.starts, m, held, cells, &s.room)) {
        PyErr_Format(PyExc_ValueError, "cells: %zd of %zd, or starts that do not rise within %zd vectors",
                     (Py_ssize_t)cells, (Py_ssize_t)m, (Py_ssize_t)held);
        goto done;
    }
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
