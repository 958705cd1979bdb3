/* Columns of UTF-8 strings: reading chosen strings, and numbering the distinct words of a text.

   ``words`` numbers words in the order in which they come first. Its table has open addressing with linear probing, is
   at most half full, and holds the number of a word plus one; the word itself is where it came first in the text. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

#define SLOTS 1024 /* first size of the hash table */

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

PyDoc_STRVAR(strings_doc,
             "strings(rows, data, offsets, ...)\n"
             "\n"
             "Of each column the strings, UTF-8 in data[offsets[row]:offsets[row + 1]], of some rows. ValueError if there\n"
             "are none such.");

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

typedef struct {
    uint32_t hash, length;
    size_t start;
} Word;

typedef struct {
    const unsigned char *text;
    Word *distinct;
    uint32_t *slots;
    size_t n_slots, count;
} Table;

/* Allocate or double the slots; 0 without memory. */
static int grow(Table *t)
{
    const size_t n = t->n_slots ? 2 * t->n_slots : SLOTS;
    Word *distinct = realloc(t->distinct, n / 2 * sizeof *distinct);
    uint32_t *slots = calloc(n, sizeof *slots);
    if (distinct != NULL)
        t->distinct = distinct;
    if (distinct == NULL || slots == NULL) {
        free(slots);
        return 0;
    }
    for (size_t i = 0; i < t->count; i++) {
        size_t at = distinct[i].hash & (n - 1);
        while (slots[at])
            at = (at + 1) & (n - 1);
        slots[at] = (uint32_t)i + 1;
    }
    free(t->slots);
    t->slots = slots;
    t->n_slots = n;
    return 1;
}

/* The number of a word, added if it is new; -1 without memory. */
static int64_t number_of(Table *t, Word word)
{
    if (2 * t->count >= t->n_slots && !grow(t))
        return -1;
    size_t at = word.hash & (t->n_slots - 1);
    for (; t->slots[at]; at = (at + 1) & (t->n_slots - 1)) {
        const Word *there = t->distinct + t->slots[at] - 1;
        if (there->hash == word.hash && there->length == word.length &&
            memcmp(t->text + there->start, t->text + word.start, word.length) == 0)
            return (int64_t)t->slots[at] - 1;
    }
    t->distinct[t->count] = word;
    t->slots[at] = (uint32_t)++t->count;
    return (int64_t)t->count - 1;
}

/* Write the number of each word and the word count of each line; return the number of words, -1 without memory. */
static int64_t number_all(Table *t, size_t n, uint32_t *numbers, uint32_t *lengths)
{
    int64_t found = 0, before = 0;
    size_t line = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i == n || t->text[i] == '\n') {
            lengths[line++] = (uint32_t)(found - before);
            before = found;
        } else if (t->text[i] != ' ') {
            uint32_t hash = 2166136261u; /* FNV-1a */
            const size_t start = i;
            for (; i < n && t->text[i] != ' ' && t->text[i] != '\n'; i++)
                hash = (hash ^ t->text[i]) * 16777619u;
            const int64_t number = number_of(t, (Word){hash ^ hash >> 15, (uint32_t)(i - start), start});
            if (number < 0)
                return -1;
            numbers[found++] = (uint32_t)number;
            i--;
        }
    }
    return found;
}

PyDoc_STRVAR(words_doc,
             "words(text)\n"
             "\n"
             "The words of a text of UTF-8, which stand between spaces and in lines: of all their numbers, how many each\n"
             "line has, both uint32, and the distinct words in the order of their numbers, between spaces.");

static PyObject *words(PyObject *module, PyObject *object)
{
    Py_buffer text;
    Table table = {0};
    PyObject *result = NULL, *distinct = NULL;
    (void)module;
    if (PyObject_GetBuffer(object, &text, PyBUF_SIMPLE) < 0)
        return NULL;
    const size_t n = (size_t)text.len;
    uint32_t *numbers = NULL, *lengths = NULL;
    size_t lines = 1, size = 0;
    int64_t found = -1;
    if (n >= UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a text of 4 GB or more");
        goto done;
    }
    table.text = text.buf;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < n; i++)
        lines += table.text[i] == '\n';
    numbers = malloc((n / 2 + 1) * sizeof *numbers);
    lengths = malloc(lines * sizeof *lengths);
    if (numbers != NULL && lengths != NULL)
        found = number_all(&table, n, numbers, lengths);
    Py_END_ALLOW_THREADS
    if (found < 0) {
        PyErr_NoMemory();
        goto done;
    }
    for (size_t i = 0; i < table.count; i++)
        size += table.distinct[i].length + 1;
    distinct = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size ? size - 1 : 0));
    if (distinct == NULL)
        goto done;
    char *to = PyBytes_AsString(distinct);
    for (size_t i = 0; i < table.count; i++) {
        if (i)
            *to++ = ' ';
        memcpy(to, table.text + table.distinct[i].start, table.distinct[i].length);
        to += table.distinct[i].length;
    }
    result = Py_BuildValue("(y#y#N)", (char *)numbers, (Py_ssize_t)(found * 4), (char *)lengths,
                           (Py_ssize_t)(lines * 4), distinct);
done:
    free(numbers);
    free(lengths);
    free(table.slots);
    free(table.distinct);
    PyBuffer_Release(&text);
    return result;
}

static PyMethodDef methods[] = {{"strings", (PyCFunction)(void (*)(void))strings, METH_FASTCALL, strings_doc},
                                {"words", words, METH_O, words_doc},
                                {0}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_strings", .m_doc = "Strings and words of UTF-8.", .m_methods = methods};

PyMODINIT_FUNC PyInit__strings(void) { return PyModuleDef_Init(&definition); }
