/* Re-ranking of candidates, for Python; rescore.h multiplies. */

#include "rescore.h"
#include <stdlib.h>

/* Whether the chosen rows are among those held, and the queries as wide; else an error is set. */
static int fit(int64_t width, const Array *rows, const Array *chosen)
{
    const int64_t held = rows->view.shape[0], n = chosen ? chosen->view.shape[0] : 0;
    const int64_t *numbers = chosen ? chosen->view.buf : NULL;
    for (int64_t i = 0; i < n; i++)
        if (numbers[i] < 0 || numbers[i] >= held)
            return PyErr_Format(PyExc_IndexError, "no row %lld among %lld", (long long)numbers[i], (long long)held), 0;
    return same_length(rows->view.shape[1], row_items(width, rows->view.itemsize), "rows for a query of another width");
}

/* The products of a query (d,) with n rows, those ``chosen`` or the first; ``padded`` has room for d and WIDEST. */
static void multiply(const float *query, int64_t d, const Array *rows, const int64_t *chosen, int64_t n, float *padded,
                     float *out)
{
    multiply_rows(query, rows->view.buf, rows->view.itemsize, chosen, n, d, padded, out);
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
        float *padded = NULL;
        if (same_length(out->view.shape[0], n, "out for another number of rows") &&
            fit(d, rows, chosen) && !(padded = PyMem_Malloc((size_t)(d + WIDEST) * sizeof *padded)))
            PyErr_NoMemory();
        if (padded) {
            Py_BEGIN_ALLOW_THREADS
            multiply(arrays->view.buf, d, rows, chosen ? chosen->view.buf : NULL, n, padded, out->view.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(padded);
    }
    release(arrays, 4);
    return result;
}

/* A chosen row: the sort key of its product, and its place among the chosen. */
typedef struct {
    uint32_t rank, place;
} Ranked;

static int best_first(const void *one, const void *other)
{
    const Ranked a = *(const Ranked *)one, b = *(const Ranked *)other;
    return a.rank != b.rank ? (a.rank < b.rank) - (a.rank > b.rank) : (a.place > b.place) - (a.place < b.place);
}

/* What ranking the candidates of one query needs: for n products, of which k are kept, and a query of width d. */
typedef struct {
    float *products, *padded;
    uint32_t *ranks;
    int64_t *places;
    Ranked *ranked;
} Room;

static void leave(Room *room)
{
    free(room->products);
    free(room->padded);
    free(room->ranks);
    free(room->places);
    free(room->ranked);
}

static int make(Room *room, int64_t n, int64_t k, int64_t d)
{
    *room = (Room){malloc((size_t)(n + 1) * sizeof *room->products), malloc((size_t)(d + WIDEST) * sizeof *room->padded),
                   malloc((size_t)(n + 1) * sizeof *room->ranks), malloc((size_t)(k + 1) * sizeof *room->places),
                   malloc((size_t)(k + 1) * sizeof *room->ranked)};
    return room->products && room->padded && room->ranks && room->places && room->ranked;
}

/* The k best of n products, the best first. */
static void rank(const Room *room, const int64_t *chosen, int64_t n, int64_t k, int64_t *found, float *scores)
{
    find_largest(room->products, n, k, room->ranks, room->places);
    for (int64_t i = 0; i < k; i++)
        room->ranked[i] = (Ranked){room->ranks[room->places[i]], (uint32_t)room->places[i]};
    qsort(room->ranked, (size_t)k, sizeof *room->ranked, best_first);
    for (int64_t i = 0; i < k; i++) {
        found[i] = chosen[room->ranked[i].place];
        scores[i] = room->products[room->ranked[i].place];
    }
}

enum { QUERIES, MATRIX, OFFSETS, CHOSEN, FOUND, SCORES, ARRAYS };

/* The largest number of candidates of a query; -1, with an error set, if the arrays do not fit each other. */
static int64_t most_of(const Array *arrays)
{
    const int64_t q = arrays[QUERIES].view.shape[0], total = arrays[CHOSEN].view.shape[0];
    const int64_t *offsets = arrays[OFFSETS].view.buf;
    int64_t most = 0;
    if (!same_length(arrays[OFFSETS].view.shape[0], q + 1, "offsets for another number of queries") ||
        !same_length(arrays[FOUND].view.shape[0], q, "found for another number of queries") ||
        !same_length(arrays[SCORES].view.shape[0], q, "scores for another number of queries") ||
        !same_length(arrays[SCORES].view.shape[1], arrays[FOUND].view.shape[1], "scores for another number of rows") ||
        !fit(arrays[QUERIES].view.shape[1], arrays + MATRIX, arrays + CHOSEN))
        return -1;
    int rising = offsets[0] == 0 && offsets[q] == total && total <= INT32_MAX;
    for (int64_t i = 0; i < q && rising; i++) {
        rising = offsets[i] <= offsets[i + 1];
        most = offsets[i + 1] - offsets[i] > most ? offsets[i + 1] - offsets[i] : most;
    }
    if (!rising)
        PyErr_Format(PyExc_ValueError, "offsets must rise from 0 to %lld", (long long)total);
    return rising ? most : -1;
}

static PyObject *best(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    Array arrays[ARRAYS] = {{"queries", "f", 2}, {"rows", "efB", 2},    {"offsets", "q", 1},
                            {"chosen", "q", 1},  {"found", "q", 2, 1}, {"scores", "f", 2, 1}};
    PyObject *result = NULL;
    int64_t most;
    (void)module;
    if (n_objects != ARRAYS)
        return PyErr_Format(PyExc_TypeError, "best takes %d arrays", ARRAYS);
    if (!take(arrays, objects, ARRAYS) && (most = most_of(arrays)) >= 0) {
        const int64_t q = arrays[QUERIES].view.shape[0], d = arrays[QUERIES].view.shape[1];
        const int64_t k = arrays[FOUND].view.shape[1], *offsets = arrays[OFFSETS].view.buf;
        const float *queries = arrays[QUERIES].view.buf;
        Room room;
        const int enough = make(&room, most, k, d);
        Py_BEGIN_ALLOW_THREADS
        for (int64_t i = 0; enough && i < q; i++) {
            const int64_t n = offsets[i + 1] - offsets[i], *chosen = (int64_t *)arrays[CHOSEN].view.buf + offsets[i];
            multiply(queries + i * d, d, arrays + MATRIX, chosen, n, room.padded, room.products);
            if (n && k)
                rank(&room, chosen, n, k < n ? k : n, (int64_t *)arrays[FOUND].view.buf + i * k,
                     (float *)arrays[SCORES].view.buf + i * k);
        }
        Py_END_ALLOW_THREADS
        leave(&room);
        if (enough)
            result = Py_NewRef(Py_None);
        else
            PyErr_NoMemory();
    }
    release(arrays, ARRAYS);
    return result;
}

static PyMethodDef methods[] = {
    {"dot", (PyCFunction)(void (*)(void))dot, METH_FASTCALL,
     "dot(query, rows, out, [chosen]): dot products with all rows, or with the chosen ones, into out."},
    {"best", (PyCFunction)(void (*)(void))best, METH_FASTCALL,
     "best(queries, rows, offsets, chosen, found, scores): of the rows chosen for each query those of the largest "
     "products, the largest first, of equal ones the one chosen first. If fewer are chosen, the rest stays as it is."},
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
