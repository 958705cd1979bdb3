/* Weights of terms as whole numbers, of a query with the softmax of its cosines: for the one row of a query numpy takes
   ten times as long. boc/codecs/dictionary.py does the same in numpy. */

#include "quantize.h"

static PyObject *quantize(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[] = {{"weights", "f", 2}, {"frequencies", "i", 2, 1}};
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 4)
        return PyErr_Format(PyExc_TypeError, "quantize takes 2 arrays, temperature and top");
    const double temperature = PyFloat_AsDouble(objects[2]);
    const long top = PyLong_AsLong(objects[3]);
    if (PyErr_Occurred())
        return NULL;
    if (!take(arrays, objects, 2)) {
        const int64_t n = arrays[0].view.shape[0], z = arrays[0].view.shape[1];
        if (same_length(arrays[1].view.shape[0], n, "rows") && same_length(arrays[1].view.shape[1], z, "terms")) {
            for (int64_t i = 0; i < n * z; i += z)
                quantize_row((const float *)arrays[0].view.buf + i, z, temperature, (int)top,
                             (int32_t *)arrays[1].view.buf + i);
            result = Py_NewRef(Py_None);
        }
    }
    release(arrays, 2);
    return result;
}

static PyMethodDef methods[] = {{"quantize", (PyCFunction)(void (*)(void))quantize, METH_FASTCALL,
                                 "quantize(weights, frequencies, temperature, top): weights as whole numbers."},
                                {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_quantize", .m_methods = methods};

PyMODINIT_FUNC PyInit__quantize(void) { return PyModuleDef_Init(&definition); }
