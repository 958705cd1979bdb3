/* Instances of a class, many at once, without calling it: for small ones the call takes longer than all else. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define COLUMNS 8 /* attributes of an instance, at most */

/* An instance with the attributes number i of the columns. */
static PyObject *instance(PyTypeObject *kind, PyObject *nothing, PyObject *names, PyObject *const *columns, Py_ssize_t i)
{
    PyObject *made = PyBaseObject_Type.tp_new(kind, nothing, NULL);
    for (Py_ssize_t j = 0; made != NULL && j < PyTuple_GET_SIZE(names); j++)
        if (PyObject_GenericSetAttr(made, PyTuple_GET_ITEM(names, j), PyList_GET_ITEM(columns[j], i)) < 0)
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
        PyTuple_GET_SIZE(arguments[1]) != n_columns)
        return PyErr_Format(PyExc_TypeError, "of takes a class, names and as many columns, %d at most", COLUMNS);
    if (((PyTypeObject *)arguments[0])->tp_new != PyBaseObject_Type.tp_new)
        return PyErr_Format(PyExc_TypeError, "%s makes its instances in another way than most classes do",
                            ((PyTypeObject *)arguments[0])->tp_name);
    PyObject *const *columns = arguments + 2;
    for (Py_ssize_t j = 0; j < n_columns; j++)
        if (!PyList_Check(columns[j]) || PyList_GET_SIZE(columns[j]) != PyList_GET_SIZE(columns[0]))
            return PyErr_Format(PyExc_ValueError, "the columns must be lists of equal length");
    const Py_ssize_t n = PyList_GET_SIZE(columns[0]);
    PyObject *found = PyList_New(n), *nothing = PyTuple_New(0);
    for (Py_ssize_t i = 0; found != NULL && nothing != NULL && i < n; i++) {
        PyObject *made = instance((PyTypeObject *)arguments[0], nothing, arguments[1], columns, i);
        if (made == NULL)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, i, made);
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
