/* Makes many instances of a class without calling it: for small classes the call takes most of the time. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define COLUMNS 8 /* maximum number of attributes */

/* An instance, made by tp_new of object, whose attributes are entry i of each column. */
static PyObject *instance(newfunc new, PyTypeObject *kind, PyObject *nothing, PyObject *names, PyObject *const *columns, Py_ssize_t i)
{
    PyObject *made = new(kind, nothing, NULL);
    for (Py_ssize_t j = 0; made != NULL && j < PyTuple_Size(names); j++)
        if (PyObject_GenericSetAttr(made, PyTuple_GetItem(names, j), PyList_GetItem(columns[j], i)) < 0)
            Py_CLEAR(made);
    return made;
}

PyDoc_STRVAR(of_doc,
             "of(kind, names, *columns)\n"
             "\n"
             "An instance of a class for each place of the columns, lists of equal length, which hold its attributes.\n"
             "Neither its __init__ nor its __setattr__ is called.");

static PyObject *of(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    const Py_ssize_t n_columns = n_arguments - 2;
    (void)module;
    if (n_columns < 1 || n_columns > COLUMNS || !PyType_Check(arguments[0]) || !PyTuple_Check(arguments[1]) ||
        PyTuple_Size(arguments[1]) != n_columns)
        return PyErr_Format(PyExc_TypeError, "of takes a class, names and as many columns, %d at most", COLUMNS);
    PyTypeObject *kind = (PyTypeObject *)arguments[0];
    const newfunc new = (newfunc)PyType_GetSlot(&PyBaseObject_Type, Py_tp_new);
    if ((newfunc)PyType_GetSlot(kind, Py_tp_new) != new)
        return PyErr_Format(PyExc_TypeError, "%R makes its instances in another way than most classes do", kind);
    PyObject *const *columns = arguments + 2;
    for (Py_ssize_t j = 0; j < n_columns; j++)
        if (!PyList_Check(columns[j]) || PyList_Size(columns[j]) != PyList_Size(columns[0]))
            return PyErr_Format(PyExc_ValueError, "the columns must be lists of equal length");
    const Py_ssize_t n = PyList_Size(columns[0]);
    PyObject *found = PyList_New(n), *nothing = PyTuple_New(0);
    for (Py_ssize_t i = 0; found != NULL && nothing != NULL && i < n; i++) {
        PyObject *made = instance(new, kind, nothing, arguments[1], columns, i);
        if (made == NULL)
            Py_CLEAR(found);
        else
            PyList_SetItem(found, i, made);
    }
    if (nothing == NULL)
        Py_CLEAR(found);
    Py_XDECREF(nothing);
    return found;
}

static PyMethodDef methods[] = {{"of", (PyCFunction)(void (*)(void))of, METH_FASTCALL, of_doc}, {0}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_instances", .m_doc = "Many instances at once.", .m_methods = methods};

PyMODINIT_FUNC PyInit__instances(void) { return PyModuleDef_Init(&definition); }
