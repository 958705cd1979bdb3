/* Queries answered from their vectors in one call without the lock of Python: nearest centroids, their weights, posting
   lists of all parts of an index, compact codes, products with the vectors of the candidates. index.py does the same
   step by step. */

#include "fetch.h"
#include "plan.h"

#define PLAN "indexing.embedded._query.plan"

/* What a call is asked for. */
typedef struct {
    const Plan *plan;
    const float *queries;
    int64_t n, z, cells, depth, size, k; /* candidates, and those whose vectors are read */
    int32_t *parts; /* (n, k) of the hits */
    int64_t *rows, *counts;
    float *scores;
} Call;

/* Memory of a call: for the terms of all queries, and the candidates of one. */
typedef struct {
    float *centred, *cosines, *padded, *products, *rotated;
    CompactQuery compact;
    int64_t *numbers;
    int32_t *terms, *weights;
    uint64_t *keys;
    int64_t most, room; /* candidates; keys of one part */
    Candidates found;
} Work;

static void leave(Work *w)
{
    void *const pieces[] = {w->centred, w->cosines, w->padded, w->products, w->rotated, w->compact.numbers,
                            w->numbers, w->terms, w->weights, w->keys, w->found.rows, w->found.parts, w->found.ranks,
                            w->found.dropped, w->found.ranked};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        free(pieces[i]);
}

static int make(Work *w, const Call *call)
{
    const Plan *plan = call->plan;
    const size_t n = (size_t)call->n, d = (size_t)plan->code.d, z = (size_t)call->z;
    int64_t largest = 0;
    w->most = 0;
    for (int64_t i = 0; i < plan->n_parts; i++) {
        const int64_t found = plan->parts[i].postings.n < call->depth ? plan->parts[i].postings.n : call->depth;
        largest = found > largest ? found : largest;
        w->most += found;
    }
    w->room = 2 * largest + LANES;
    const size_t most = (size_t)w->most + 1;
    w->centred = malloc((n * d + 1) * sizeof *w->centred);
    w->cosines = malloc((n * z + 1) * sizeof *w->cosines);
    w->padded = malloc((d + WIDEST) * sizeof *w->padded);
    w->products = malloc(most * sizeof *w->products);
    w->rotated = malloc(2 * d * sizeof *w->rotated + 1);
    w->compact.width = compact_width(plan->code.d);
    w->compact.numbers = malloc((size_t)(PER_BYTE * w->compact.width) + 1);
    w->numbers = malloc((n * z + 1) * sizeof *w->numbers);
    w->terms = malloc((z + 1) * sizeof *w->terms);
    w->weights = malloc((z + 1) * sizeof *w->weights);
    w->keys = malloc(2 * (size_t)w->room * sizeof *w->keys);
    w->found = (Candidates){.ids = plan->n_parts > 1 ? plan->ids : NULL,
                            .rows = malloc(most * sizeof *w->found.rows),
                            .parts = malloc(most * sizeof *w->found.parts),
                            .ranks = malloc(most * sizeof *w->found.ranks),
                            .dropped = calloc(most, sizeof *w->found.dropped),
                            .ranked = malloc(most * sizeof *w->found.ranked)};
    return w->centred && w->cosines && w->padded && w->products && w->rotated && w->compact.numbers &&
           w->numbers && w->terms && w->weights && w->keys &&
           w->found.rows && w->found.parts && w->found.ranks && w->found.dropped && w->found.ranked;
}

/* Find the nearest centroids of all queries; the fewest centroids that one chose from. */
static int64_t encode(const Call *call, Work *w)
{
    const Plan *plan = call->plan;
    Search s = plan->code;
    if (!set_budgets(&s, plan->held, call->z, call->cells))
        return 0;
    centre(call->queries, plan->mean, call->n, s.d, w->centred);
    return find_nearest(&s, w->centred, call->n, w->numbers, w->cosines);
}

/* The terms of query i and their weights; none for a query that is zero. */
static Terms terms_of(const Call *call, Work *w, int64_t i)
{
    const Plan *plan = call->plan;
    const int64_t d = plan->code.d, length = is_zero(w->centred + i * d, d) ? 0 : call->z;
    weigh(w->cosines + i * call->z, call->z, plan->temperature, plan->top, w->weights);
    for (int64_t j = 0; j < length; j++)
        w->terms[j] = (int32_t)w->numbers[i * call->z + j];
    return (Terms){w->terms, w->weights, length};
}

/* The candidates of all parts. An error message, or NULL; ``answered`` is 0 if a score may be 2**32 or more. */
static const char *find_candidates(const Call *call, Work *w, Terms terms, int *answered)
{
    Candidates *found = &w->found;
    found->n = 0;
    for (int64_t part = 0; part < call->plan->n_parts; part++) {
        Postings p = call->plan->parts[part].postings;
        p.scratch = &of_thread;
        const int64_t k = p.n < call->depth ? p.n : call->depth;
        Best best = {w->keys, 0, k > 0 ? k : 1, w->room, ((uint64_t)1 << 32) - 1, call->plan->parts[part].mask};
        const char *wrong = check(&p, terms);
        if (wrong != NULL)
            return wrong;
        if (!search(&p, terms, &best, 1)) {
            *answered = 0;
            return NULL;
        }
        for (int64_t i = 0; i < best.count; i++, found->n++) {
            found->rows[found->n] = (uint32_t)~best.keys[i];
            found->ranks[found->n] = (uint32_t)(best.keys[i] >> 32);
            found->parts[found->n] = (int32_t)part;
        }
    }
    keep_largest(found, call->depth);
    return NULL;
}

/* The part of the candidates from ``first`` on, and their ``end``. */
static const Part *part_from(const Call *call, const Candidates *found, int64_t first, int64_t *end)
{
    for (*end = first; *end < found->n && found->parts[*end] == found->parts[first];)
        ++*end;
    return call->plan->parts + found->parts[first];
}

/* Keep the candidates of query i that have the largest estimates by compact codes. */
static void shorten(const Call *call, Work *w, int64_t i)
{
    const int64_t d = call->plan->code.d;
    Candidates *found = &w->found;
    if (call->plan->signs == NULL || found->n <= call->size)
        return;
    memcpy(w->rotated, call->queries + i * d, (size_t)d * sizeof *w->rotated);
    rotate(w->rotated, w->rotated + d, call->plan->signs, d);
    round_query(w->rotated, d, &w->compact);
    for (int64_t first = 0, end = 0; first < found->n; first = end) {
        const Part *part = part_from(call, found, first, &end);
        fetch_rows(part->compact, w->compact.bytes, found->rows + first, end - first);
        estimate(&w->compact, part->compact, part->compact_scales, found->rows + first, end - first,
                 w->products + first);
    }
    for (int64_t j = 0; j < found->n; j++)
        found->ranks[j] = rank_of(w->products[j]);
    keep_largest(found, call->size);
}

/* Products of query i with the vectors of its candidates. */
static void multiply_candidates(const Call *call, Work *w, int64_t i)
{
    const int64_t d = call->plan->code.d;
    Candidates *found = &w->found;
    for (int64_t first = 0, end = 0; first < found->n; first = end) {
        const Part *part = part_from(call, found, first, &end);
        fetch_rows(part->vectors, row_items(d, part->item) * part->item, found->rows + first, end - first);
        multiply_rows(call->queries + i * d, part->vectors, part->item, found->rows + first, end - first, d,
                      w->padded, w->products + first);
    }
    for (int64_t j = 0; j < found->n; j++)
        found->ranks[j] = rank_of(w->products[j]);
}

/* The k best candidates of query i, the best first. */
static void give(const Call *call, Work *w, int64_t i)
{
    Candidates *found = &w->found;
    keep_largest(found, call->k);
    order(found);
    for (int64_t j = 0; j < found->n; j++) {
        const int64_t place = found->ranked[j].place, at = i * call->k + j;
        call->parts[at] = found->parts[place];
        call->rows[at] = found->rows[place];
        call->scores[at] = value_of(found->ranks[place]);
    }
    call->counts[i] = found->n;
}

static const char *const OUT_OF_MEMORY = "memory";

/* Answer all queries. An error message, or NULL; ``answered`` is 0 if a score may be 2**32 or more. */
static const char *answer(const Call *call, int *answered)
{
    Work w;
    const char *wrong = make(&w, call) ? NULL : OUT_OF_MEMORY;
    const int64_t fewest = wrong == NULL ? encode(call, &w) : 0;
    if (wrong == NULL && fewest < call->z)
        wrong = fewest < 0 ? OUT_OF_MEMORY : "the centroids are damaged: too few lie in the cells; index again";
    for (int64_t i = 0; i < call->n && wrong == NULL && *answered; i++) {
        wrong = find_candidates(call, &w, terms_of(call, &w, i), answered);
        if (wrong != NULL || !*answered)
            break;
        shorten(call, &w, i);
        multiply_candidates(call, &w, i);
        give(call, &w, i);
    }
    leave(&w);
    return wrong;
}

static void drop_capsule(PyObject *capsule) { drop(PyCapsule_GetPointer(capsule, PLAN)); }

static PyObject *plan(PyObject *module, PyObject *arguments)
{
    PyObject *code, *parts, *capsule = NULL;
    double temperature;
    int top;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!diO!", &PyTuple_Type, &code, &temperature, &top, &PyTuple_Type, &parts))
        return NULL;
    const Py_ssize_t n = PyTuple_Size(parts), n_arrays = CODE_ARRAYS + n * PART_ARRAYS;
    Plan *made = PyMem_Calloc(1, sizeof *made);
    if (made == NULL)
        return PyErr_NoMemory();
    made->temperature = temperature, made->top = top, made->n_parts = n, made->n_arrays = (int)n_arrays;
    made->arrays = PyMem_Calloc((size_t)n_arrays, sizeof *made->arrays);
    made->parts = PyMem_Calloc((size_t)n + 1, sizeof *made->parts);
    made->ids = PyMem_Calloc((size_t)n + 1, sizeof *made->ids);
    if (made->arrays == NULL || made->parts == NULL || made->ids == NULL)
        PyErr_NoMemory();
    else if (!take_code(made, code))
        for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++)
            take_part(made, PyTuple_GetItem(parts, i), i);
    if (PyErr_Occurred() || (capsule = PyCapsule_New(made, PLAN, drop_capsule)) == NULL)
        drop(made);
    return capsule;
}

static PyObject *search_vectors(PyObject *module, PyObject *const *objects, Py_ssize_t n_objects)
{
    enum { QUERIES, PARTS_OUT, ROWS_OUT, SCORES_OUT, COUNTS, ARRAYS };
    Array arrays[ARRAYS] = {{"queries", "f", 2}, {"parts", "i", 2, 1}, {"rows", "q", 2, 1}, {"scores", "f", 2, 1},
                            {"counts", "q", 1, 1}};
    int64_t numbers[4];
    PyObject *result = NULL;
    (void)module;
    if (n_objects != 1 + ARRAYS + 4)
        return PyErr_Format(PyExc_TypeError, "answer takes a plan, %d arrays, z, cells, depth and size", ARRAYS);
    const Plan *made = PyCapsule_GetPointer(objects[0], PLAN);
    for (int i = 0; i < 4; i++)
        numbers[i] = PyLong_AsLongLong(objects[1 + ARRAYS + i]);
    if (PyErr_Occurred())
        return NULL;
    if (!take(arrays, objects + 1, ARRAYS)) {
        const Py_ssize_t n = arrays[QUERIES].view.shape[0], k = arrays[SCORES_OUT].view.shape[1];
        const Call call = {made, arrays[QUERIES].view.buf, n, numbers[0], numbers[1], numbers[2], numbers[3], k,
                           arrays[PARTS_OUT].view.buf, arrays[ROWS_OUT].view.buf, arrays[COUNTS].view.buf,
                           arrays[SCORES_OUT].view.buf};
        int fits = same_length(arrays[QUERIES].view.shape[1], made->code.d, "queries of another width") &&
                   same_length(arrays[COUNTS].view.shape[0], n, "counts for another number of queries");
        for (int i = PARTS_OUT; fits && i <= SCORES_OUT; i++)
            fits = same_length(arrays[i].view.shape[0], n, "results for another number of queries") &&
                   same_length(arrays[i].view.shape[1], k, "results of another width");
        if (fits && (k < 1 || call.depth < 1 || call.depth > INT32_MAX || call.size < 1 || call.z < 1 ||
                     call.z > made->held || call.cells < 1 || call.cells > made->code.m))
            fits = (PyErr_SetString(PyExc_ValueError, "k, z, cells, depth and size must be within their limits"), 0);
        if (fits) {
            const char *wrong;
            int answered = 1;
            Py_BEGIN_ALLOW_THREADS
            wrong = answer(&call, &answered);
            Py_END_ALLOW_THREADS
            if (wrong == OUT_OF_MEMORY)
                PyErr_NoMemory();
            else if (wrong != NULL)
                PyErr_SetString(PyExc_ValueError, wrong);
            else
                result = PyBool_FromLong(answered);
        }
    }
    release(arrays, ARRAYS);
    return result;
}

static PyMethodDef methods[] = {
    {"plan", plan, METH_VARARGS,
     "plan((mean, heads, head_scales, starts, vectors, scales, signs or None), temperature, top, parts): what ``answer`` "
     "needs. A part is (starts, rows, frequencies, peaks, vectors, bytes of ids, their offsets, mask, compact codes, "
     "their scales), of which the last three may be None."},
    {"answer", (PyCFunction)(void (*)(void))search_vectors, METH_FASTCALL,
     "answer(plan, queries, parts, rows, scores, counts, z, cells, depth, size): the best of ``depth`` candidates of each "
     "query, of which ``size`` are compared with vectors, the best first, and how many. False if a score may be 2**32."},
    {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_query", .m_methods = methods};

PyMODINIT_FUNC PyInit__query(void)
{
    if (!RUNS_HERE) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
        return NULL;
    }
    return PyModuleDef_Init(&definition);
}
