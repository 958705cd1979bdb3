/* Reading chosen strings from columns of UTF-8. */

#include "../../boc/_kernels.h"

#define COLUMNS 4 /* maximum number of columns per call */

typedef struct {
    const char *data;
    const int64_t *offsets;
    int64_t size, held;
} Column;

/* Whether a column has this row and its offsets lie within its data. */
static int is_there(const Column *c, int64_t row)
{
    return row >= 0 && row < c->held && c->offsets[row] >= 0 && c->offsets[row] <= c->offsets[row + 1] &&
           c->offsets[row + 1] <= c->size;
}

/* The strings of chosen rows. */
static PyObject *strings_of(const Column *c, const int64_t *rows, Py_ssize_t n)
{
    PyObject *found = PyList_New(n);
    for (Py_ssize_t i = 0; found != NULL && i < n; i++) {
        PyObject *text = NULL;
        if (is_there(c, rows[i]))
            text = PyUnicode_DecodeUTF8(c->data + c->offsets[rows[i]],
                                        (Py_ssize_t)(c->offsets[rows[i] + 1] - c->offsets[rows[i]]), NULL);
        else
            PyErr_Format(PyExc_ValueError, "no string %lld of %lld", (long long)rows[i], (long long)c->held);
        if (text == NULL)
            Py_CLEAR(found);
        else
            PyList_SetItem(found, i, text);
    }
    return found;
}

static PyObject *strings(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    Py_buffer at[2 * COLUMNS + 1] = {{0}};
    Column columns[COLUMNS];
    PyObject *found = NULL;
    Py_ssize_t taken = 0;
    const Py_ssize_t n_columns = n_arguments / 2;
    (void)module;
    if (n_arguments % 2 == 0 || n_columns > COLUMNS)
        return PyErr_Format(PyExc_TypeError, "strings takes rows, and data and offsets of at most %d columns", COLUMNS);
    while (taken < n_arguments && PyObject_GetBuffer(arguments[taken], at + taken, PyBUF_SIMPLE) == 0)
        taken++;
    if (taken == n_arguments) {
        const int64_t *rows = at[0].buf;
        const Py_ssize_t n = at[0].len / 8;
        for (Py_ssize_t j = 0; j < n_columns; j++) {
            const Py_buffer *data = at + 1 + 2 * j, *offsets = data + 1;
            columns[j] = (Column){data->buf, offsets->buf, data->len, offsets->len / 8 - 1};
        }
        /* Prefetch all scattered strings before the first is read. */
        for (Py_ssize_t j = 0; j < n_columns; j++)
            for (Py_ssize_t i = 0; i < n; i++)
                if (rows[i] >= 0 && rows[i] < columns[j].held)
                    PREFETCH(columns[j].offsets + rows[i]);
        for (Py_ssize_t j = 0; j < n_columns; j++)
            for (Py_ssize_t i = 0; i < n; i++)
                if (is_there(columns + j, rows[i]))
                    PREFETCH(columns[j].data + columns[j].offsets[rows[i]]);
        found = PyList_New(n_columns);
        for (Py_ssize_t j = 0; found != NULL && j < n_columns; j++) {
            PyObject *texts = strings_of(columns + j, rows, n);
            if (texts == NULL)
                Py_CLEAR(found);
            else
                PyList_SetItem(found, j, texts);
        }
    }
    while (taken-- > 0)
        PyBuffer_Release(at + taken);
    return found;
}

static PyMethodDef methods[] = {
    {"strings", (PyCFunction)(void (*)(void))strings, METH_FASTCALL,
     "strings(rows, data, offsets, ...): of each column the strings of some rows, UTF-8 in "
     "data[offsets[row]:offsets[row + 1]]. ValueError if there are none such."},
    {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_strings", .m_methods = methods};

PyMODINIT_FUNC PyInit__strings(void) { return PyModuleDef_Init(&definition); }
