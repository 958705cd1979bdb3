/* The k best rows of queries over blocked posting lists, for Python; topk.h finds them. */

#include "topk.h"

static const char *const OUT_OF_MEMORY = "memory";

enum { STARTS, ROWS, FREQUENCIES, PEAKS, OFFSETS, TERMS, WEIGHTS, FOUND_ROWS, FOUND_SCORES, MASK, BUFFERS };

/* Answer the queries and write k results each; `counts` is the number of results, -1 if a query was not answered.
 * Returns an error message, or NULL. */
static const char *answer(const Postings *p, const Py_buffer *at, Py_ssize_t n_queries, Py_ssize_t k, int by_row,
                          int64_t *counts)
{
    const int64_t *offsets = at[OFFSETS].buf;
    int64_t *found_rows = at[FOUND_ROWS].buf;
    double *found_scores = at[FOUND_SCORES].buf;
    const Py_ssize_t room = 2 * k + LANES;
    const char *wrong = NULL;
    uint64_t *keys = malloc(2 * (size_t)room * sizeof *keys);
    if (keys == NULL)
        return OUT_OF_MEMORY;
    for (Py_ssize_t i = 0; i < n_queries && wrong == NULL; i++) {
        const Terms q = {(const int32_t *)at[TERMS].buf + offsets[i], (const int32_t *)at[WEIGHTS].buf + offsets[i],
                         (Py_ssize_t)(offsets[i + 1] - offsets[i])};
        Best best = {keys, 0, k, room, ((uint64_t)1 << 32) - 1, at[MASK].buf};
        counts[i] = -1;
        if ((wrong = check(p, q)) != NULL || !search(p, q, &best, by_row))
            continue;
        counts[i] = best.count;
        for (Py_ssize_t j = 0; j < best.count; j++) {
            found_rows[i * k + j] = (uint32_t)~best.keys[j];
            found_scores[i * k + j] = (double)(best.keys[j] >> 32);
        }
    }
    free(keys);
    return wrong;
}

/* Whether the sizes of the buffers fit the numbers and each other. */
static int fit(const Postings *p, const Py_buffer *at, Py_ssize_t n_queries, Py_ssize_t k)
{
    const int64_t *offsets = at[OFFSETS].buf;
    const Py_ssize_t n_weights = at[WEIGHTS].len / 4, limit = PY_SSIZE_T_MAX / 64;
    int rising = n_queries >= 0 && at[OFFSETS].len == (n_queries + 1) * 8 && offsets[0] >= 0;
    for (Py_ssize_t i = 0; rising && i < n_queries; i++)
        rising = offsets[i] <= offsets[i + 1];
    return rising && offsets[n_queries] <= n_weights && at[TERMS].len == at[WEIGHTS].len && p->n >= 0 &&
           p->n <= INT32_MAX && k >= 1 && k <= limit && n_queries <= limit / k &&
           at[STARTS].len == (p->n_terms * p->blocks + 1) * 4 && at[PEAKS].len == p->n_terms * 4 &&
           at[ROWS].len == p->n_postings * 2 && at[FREQUENCIES].len == p->n_postings * p->width &&
           (p->width == 0 || p->width == 1 || p->width == 2 || p->width == 4) &&
           at[FOUND_ROWS].len == n_queries * k * 8 && at[FOUND_SCORES].len == n_queries * k * 8 &&
           (at[MASK].buf == NULL || at[MASK].len == p->n);
}

PyDoc_STRVAR(top_doc,
             "top(starts, rows, frequencies, peaks, offsets, terms, weights, found_rows, found_scores, mask,"
             " n, k, by_row)\n"
             "\n"
             "Write the k best rows of each query and their scores, the best first or in the order of rows. How many there\n"
             "are of each: -1 if a score may be 2**32 or more. ValueError if the arrays do not fit each other.");

static PyObject *top(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    Py_buffer at[BUFFERS] = {{0}};
    const char *wrong = NULL;
    PyObject *result = NULL;
    int64_t *counts = NULL;
    Py_ssize_t n_queries = 0;
    int taken = 0;
    (void)module;
    if (n_arguments != BUFFERS + 3)
        return PyErr_Format(PyExc_TypeError, "top takes %d arguments", BUFFERS + 3);
    const Py_ssize_t n = PyLong_AsSsize_t(arguments[BUFFERS]), k = PyLong_AsSsize_t(arguments[BUFFERS + 1]);
    const int by_row = PyObject_IsTrue(arguments[BUFFERS + 2]);
    if (PyErr_Occurred())
        return NULL;
    for (; taken < BUFFERS; taken++) {
        const int written = taken == PEAKS || taken == FOUND_ROWS || taken == FOUND_SCORES;
        if (taken == MASK && arguments[taken] == Py_None)
            continue;
        if (PyObject_GetBuffer(arguments[taken], at + taken, written ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            break;
    }
    if (taken == BUFFERS) {
        const Py_ssize_t n_postings = at[ROWS].len / 2;
        n_queries = at[OFFSETS].len / 8 - 1;
        const Postings p = {.scratch = &of_thread,
                            .starts = at[STARTS].buf,
                            .rows = at[ROWS].buf,
                            .frequencies = at[FREQUENCIES].buf,
                            .peaks = at[PEAKS].buf,
                            .width = n_postings > 0 ? (int)(at[FREQUENCIES].len / n_postings) : 0,
                            .n = n,
                            .n_terms = at[PEAKS].len / 4,
                            .n_postings = n_postings,
                            .blocks = n > BLOCK ? (n - 1) / BLOCK + 1 : 1};
        wrong = "the arrays do not fit each other";
        if (fit(&p, at, n_queries, k)) {
            counts = PyMem_Malloc((size_t)n_queries * sizeof *counts + 1);
            wrong = OUT_OF_MEMORY;
            if (counts != NULL) {
                Py_BEGIN_ALLOW_THREADS
                wrong = answer(&p, at, n_queries, k, by_row, counts);
                Py_END_ALLOW_THREADS
            }
        }
    }
    while (taken-- > 0)
        PyBuffer_Release(at + taken);
    if (wrong == OUT_OF_MEMORY)
        PyErr_NoMemory();
    else if (wrong != NULL)
        PyErr_Format(PyExc_ValueError, "%s", wrong);
    if (!PyErr_Occurred())
        result = PyList_New(n_queries);
    for (Py_ssize_t i = 0; result != NULL && i < n_queries; i++) {
        PyObject *count = PyLong_FromLongLong(counts[i]);
        if (count == NULL)
            Py_CLEAR(result);
        else
            PyList_SetItem(result, i, count);
    }
    PyMem_Free(counts);
    return result;
}

static PyMethodDef methods[] = {{"top", (PyCFunction)(void (*)(void))top, METH_FASTCALL, top_doc}, {0}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_topk", .m_doc = "Search in blocked posting lists.", .m_methods = methods};

PyMODINIT_FUNC PyInit__topk(void) { return PyModuleDef_Init(&definition); }
