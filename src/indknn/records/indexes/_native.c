/* Scans of the store in C: optional, and bit for bit what `NumpyScanner` computes.
 *
 * A scan cuts the rows into chunks. Threads take the next chunk until none is left, so a slow core does not
 * hold the others up, and the results are put together in the order of the chunks: what comes out does not
 * depend on who did what. The GIL is released throughout. This file is the Python face and the choice of the
 * instruction set; _scan.h runs the scan and _simd*.h hold the inner loops.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_scan.h"
#include "_simd.h"
#ifdef HAVE_X86
#include "_simd_x86.h"
#endif

static Level LEVELS[4];
static int N_LEVELS;

/* What this machine can do, plainest first; the last is used unless another is asked for. */
static int available_levels(Level *levels)
{
    int n = 0;
    levels[n++] = (Level){"scalar", dots_plain, panel_plain, NULL, equal_plain, hamming_plain, pass_plain, touch_plain};
#ifdef HAVE_NEON
    levels[n++] = (Level){"neon", dots_neon, panel_neon, NULL, equal_plain, hamming_neon, pass_plain, touch_plain};
#endif
#ifdef HAVE_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt"))
        levels[n++] = (Level){"avx2", dots_avx2, panel_avx2, pack_avx2, equal_avx2, hamming_avx2, pass_avx2, touch_avx2};
    if (n == 2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
        HammingFn hamming = __builtin_cpu_supports("avx512vpopcntdq") ? hamming_avx512 : hamming_avx2;
        levels[n++] = (Level){"avx512vnni", dots_avx512, panel_avx512, pack_avx512, equal_avx2, hamming, pass_avx2, touch_avx2};
    }
#endif
    return n;
}

/* ---- arguments ----------------------------------------------------------------------------------------- */

static const Level *level_at(int level)
{
    if (level < 0 || level >= N_LEVELS) {
        PyErr_Format(PyExc_ValueError, "level must be in [0, %d), got %d", N_LEVELS, level);
        return NULL;
    }
    return &LEVELS[level];
}

static int refuse(int wrong, const char *message)
{
    if (wrong)
        PyErr_SetString(PyExc_ValueError, message);
    return wrong;
}

/* The arguments that every scan has: rows, n, d, queries, roots, factors, threads, level. */
typedef struct { Py_buffer rows, queries, roots, factors, codes, query_codes; Py_ssize_t n, d; int threads, level; } Args;

static void release(Args *a)
{
    Py_buffer *all[] = {&a->rows, &a->queries, &a->roots, &a->factors, &a->codes, &a->query_codes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->obj)
            PyBuffer_Release(all[i]);
}

static int fill(Job *job, const Args *a)
{
    const Py_ssize_t d = a->d, n = a->n;
    if (!(job->level = level_at(a->level)) ||
        refuse(d < 1 || d > MAX_FEATURES || n < 0, "d must be in [1, 2^17] and n not negative") ||
        refuse(a->rows.len / d < n, "rows holds fewer than n rows") ||
        refuse(a->roots.len / 4 < n, "roots holds fewer than n numbers") ||
        refuse(a->queries.len % d != 0 || a->queries.len / d < 1 || a->queries.len / d > LANES,
               "queries must be 1 to 64 whole rows") ||
        refuse(a->factors.len / 4 < a->queries.len / d, "factors must hold one number per query") ||
        refuse(a->threads < 1, "threads must be at least 1"))
        return 0;
    job->rows = (Rows){a->rows.buf, (const int8_t *)a->rows.buf + a->rows.len, (size_t)d};
    job->n = n;
    job->roots = a->roots.buf;
    job->threads = a->threads > MAX_THREADS ? MAX_THREADS : a->threads;
    return 1;
}

static PyObject *scan(PyObject *self, PyObject *args)
{
    Args a = {0};
    Job job = {0};
    PyObject *result = NULL;
    (void)self;
    if (PyArg_ParseTuple(args, "y*nny*y*y*ii:scan", &a.rows, &a.n, &a.d, &a.queries, &a.roots, &a.factors,
                         &a.threads, &a.level) &&
        fill(&job, &a))
        result = run_job(&job, a.queries.buf, (int)(a.queries.len / a.d), a.factors.buf, (size_t)a.d);
    release(&a);
    return result;
}

/* A scan of the records whose code is near the query's: any equal byte(s), or few bits apart. */
static PyObject *scan_coded(PyObject *args, const char *format, int mode)
{
    Args a = {0};
    Job job = {0};
    Py_ssize_t size, option;
    uint8_t *padded = NULL;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, format, &a.rows, &a.n, &a.d, &a.queries, &a.roots, &a.factors, &a.threads,
                          &a.level, &a.codes, &a.query_codes, &size, &option) ||
        !fill(&job, &a))
        goto done;
    const Py_ssize_t count = a.queries.len / a.d;
    if (refuse(size < 1 || size > MAX_FEATURES || a.codes.len / size < a.n, "codes holds fewer than n codes") ||
        refuse(a.query_codes.len != count * size, "query_codes must hold one code per query") ||
        refuse(mode == EQUAL && !(option == 1 || (option == 2 && size % 2 == 0)),
               "width must be 1, or 2 with codes of even size") ||
        refuse(mode == HAMMING && size % 8 != 0, "the size of a sketch must be a multiple of 8 bytes"))
        goto done;
    job.mode = mode, job.pairs = mode == EQUAL && option == 2, job.cut = option;
    job.codes = a.codes.buf, job.codes_end = job.codes + a.codes.len, job.code_size = (size_t)size;
    job.code_stride = ((size_t)size + 63) / 64 * 64;
    padded = calloc((size_t)count, job.code_stride);
    if (!padded) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t c = 0; c < count; c++)
        memcpy(padded + (size_t)c * job.code_stride, (const char *)a.query_codes.buf + c * size, (size_t)size);
    job.query_codes = padded;
    result = run_job(&job, a.queries.buf, (int)count, a.factors.buf, (size_t)size);
done:
    free(padded);
    release(&a);
    return result;
}

static PyObject *scan_equal(PyObject *self, PyObject *args)
{
    (void)self;
    return scan_coded(args, "y*nny*y*y*iiy*y*nn:scan_equal", EQUAL);
}

static PyObject *scan_hamming(PyObject *self, PyObject *args)
{
    (void)self;
    return scan_coded(args, "y*nny*y*y*iiy*y*nn:scan_hamming", HAMMING);
}

/* ---- sign bits ----------------------------------------------------------------------------------------- */

/* A few records: every plane is read once per record. */
static int signs_of_few(const Level *level, const int8_t *rows, Py_ssize_t n, Rows planes, Py_ssize_t n_planes,
                        uint8_t *bits)
{
    int32_t dots[BLOCK + 4];
    for (Py_ssize_t i = 0; i < n; i++, bits += n_planes / 8) {
        Panel one;
        void *block = prepare(&one, level, rows + (size_t)i * planes.d, 1, planes.d, NULL);
        if (!block)
            return 0;
        for (Py_ssize_t at = 0; at < n_planes; at += BLOCK) {
            const int m = (int)(n_planes - at < BLOCK ? n_planes - at : BLOCK);
            level->dots(&planes, NULL, at, m, one.queries, dots);
            for (int b = 0; b < m; b++)
                bits[(at + b) / 8] |= (uint8_t)((dots[b] >= 0) << (b & 7));
        }
        aligned_free(block);
    }
    return 1;
}

static PyObject *signs(PyObject *self, PyObject *args)
{
    Args a = {0};
    PyObject *result = NULL;
    float ones[TILE];
    (void)self;
    if (!PyArg_ParseTuple(args, "y*nny*ii:signs", &a.rows, &a.n, &a.d, &a.queries, &a.threads, &a.level))
        goto done;
    const Level *level = level_at(a.level);
    if (!level || refuse(a.d < 1 || a.d > MAX_FEATURES || a.n < 0, "d must be in [1, 2^17] and n not negative") ||
        refuse(a.rows.len / a.d < a.n, "rows holds fewer than n rows") ||
        refuse(a.queries.len % (8 * a.d) != 0, "planes must be a multiple of 8 whole rows") ||
        refuse(a.threads < 1, "threads must be at least 1"))
        goto done;
    const Py_ssize_t n_planes = a.queries.len / a.d;
    for (int i = 0; i < TILE; i++)
        ones[i] = 1.0f;
    result = PyBytes_FromStringAndSize(NULL, a.n * (n_planes / 8));
    if (!result)
        goto done;
    uint8_t *bits = (uint8_t *)PyBytes_AS_STRING(result);
    int ok = 1;
    if (a.n <= 4) {
        const Rows planes = {a.queries.buf, (const int8_t *)a.queries.buf + a.queries.len, (size_t)a.d};
        memset(bits, 0, (size_t)(a.n * (n_planes / 8)));
        if (!(ok = signs_of_few(level, a.rows.buf, a.n, planes, n_planes, bits)))
            PyErr_NoMemory();
    } else {
        for (Py_ssize_t at = 0; ok && at < n_planes; at += LANES) {
            Job job = {0};
            const int m = (int)(n_planes - at < LANES ? n_planes - at : LANES);
            job.level = level, job.mode = SIGNS, job.n = a.n, job.roots = ones;
            job.rows = (Rows){a.rows.buf, (const int8_t *)a.rows.buf + a.rows.len, (size_t)a.d};
            job.threads = a.threads > MAX_THREADS ? MAX_THREADS : a.threads;
            job.bits = bits + at / 8, job.bits_stride = (size_t)n_planes / 8;
            PyObject *done = run_job(&job, (const int8_t *)a.queries.buf + at * a.d, m, NULL, (size_t)a.d);
            ok = done != NULL;
            Py_XDECREF(done);
        }
    }
    if (!ok)
        Py_CLEAR(result);
done:
    release(&a);
    return result;
}

/* Read n rows and do nothing with them, in the same chunks and threads as a scan. */
static PyObject *read_only(PyObject *self, PyObject *args)
{
    Args a = {0};
    Job job = {0};
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*nni:read", &a.rows, &a.n, &a.d, &a.threads))
        return NULL;
    if (!refuse(a.d < 1 || a.n < 0 || a.rows.len / a.d < a.n || a.threads < 1, "rows must hold n rows of d bytes")) {
        job.level = &LEVELS[N_LEVELS - 1], job.mode = READ, job.n = a.n;
        job.rows = (Rows){a.rows.buf, (const int8_t *)a.rows.buf + a.rows.len, (size_t)a.d};
        job.threads = a.threads > MAX_THREADS ? MAX_THREADS : a.threads;
        result = run_job(&job, a.rows.buf, a.n > 0, NULL, (size_t)a.d);
    }
    release(&a);
    return result;
}

#include "../../core/_levels.h"

static PyMethodDef METHODS[] = {
    {"scan", scan, METH_VARARGS,
     "scan(rows, n, d, queries, roots, factors, threads, level) -> (counts, slots, dots)\n\n"
     "For each query the rows with float32(dot) >= roots[row] * factors[query], as bytes: int64 counts, int64\n"
     "slots and int32 dots, query after query. A NaN root never passes."},
    {"scan_equal", scan_equal, METH_VARARGS,
     "scan_equal(..., codes, query_codes, size, width): the same among rows with any equal unit of the code."},
    {"scan_hamming", scan_hamming, METH_VARARGS,
     "scan_hamming(..., codes, query_codes, size, cut): the same among rows at most cut bits away."},
    {"signs", signs, METH_VARARGS,
     "signs(rows, n, d, planes, threads, level) -> bytes: bit p of row i is dot(row i, plane p) >= 0."},
    {"read", read_only, METH_VARARGS, "read(rows, n, d, threads): read the rows, for benchmarks."},
    LEVELS_METHOD,
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native", "Integer scans of int8 records.", -1, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    N_LEVELS = available_levels(LEVELS);
    return PyModule_Create(&MODULE);
}
