/* A scan: chunks of rows, threads that take them, results put together in order. */
#ifndef INDKNN_SCAN_H
#define INDKNN_SCAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_simd.h"

#if defined(__GNUC__) && !defined(_WIN32)
#define HAVE_THREADS 1
#include <pthread.h>
#endif

enum { CHUNK_BYTES = 1 << 18, CANDIDATES = 2048, MAX_THREADS = 64, MAX_FEATURES = 1 << 17 };
enum { ALL, EQUAL, HAMMING, SIGNS, READ };

typedef struct { int64_t *slots; int32_t *dots; size_t length, capacity; } Found;

typedef struct {
    const Level *level;
    Rows rows;
    int64_t n, chunk, n_chunks;
    Panel panel;
    const float *roots;
    int mode, pairs;
    const uint8_t *codes, *codes_end, *query_codes; /* query codes lie `code_stride` apart, zero-padded */
    size_t code_size, code_stride;
    int64_t cut;
    uint8_t *bits;        /* SIGNS: where lane 0 of row 0 goes */
    size_t bits_stride;
    int threads;
    int64_t next;         /* the next chunk to take; atomic */
    int touched;          /* READ: whether any byte was not zero */
    int failed;           /* out of memory somewhere; only ever set */
    Found *found;         /* [thread][query] */
    int *owner;           /* [chunk]: the thread that did it */
    size_t *from;         /* [chunk][query]: where its results start in the thread's */
} Job;

/* ---- memory -------------------------------------------------------------------------------------------- */

static int reserve(Found *f, size_t extra)
{
    if (f->length + extra <= f->capacity)
        return 1;
    size_t capacity = f->capacity * 2 + extra;
    int64_t *slots = realloc(f->slots, capacity * sizeof *slots);
    if (slots)
        f->slots = slots;
    int32_t *dots = realloc(f->dots, capacity * sizeof *dots);
    if (dots)
        f->dots = dots;
    if (!slots || !dots)
        return 0;
    f->capacity = capacity;
    return 1;
}

/* Append those of n rows in order that pass. Most do not, so eight flags are looked at together. */
static int keep_rows(Found *f, int64_t start, int n, const int32_t *dots, const uint8_t *flags)
{
    if (!reserve(f, (size_t)n))
        return 0;
    for (int i = 0; i < n; i += 8) {
        uint64_t eight;
        memcpy(&eight, flags + i, 8);
        for (int k = i; eight && k < i + 8; k++)
            if (flags[k]) {
                f->slots[f->length] = start + k;
                f->dots[f->length++] = dots[k];
            }
    }
    return 1;
}

/* Append the candidates that pass: every one is written, and the end moves on only for those that do. */
static int keep_candidates(Found *f, const int64_t *slots, int n, const int32_t *dots, const float *roots,
                           float factor)
{
    if (!reserve(f, (size_t)n + 1))
        return 0;
    size_t end = f->length;
    for (int i = 0; i < n; i++) {
        const float least = roots[slots[i]] * factor;
        f->slots[end] = slots[i];
        f->dots[end] = dots[i];
        end += (float)dots[i] >= least;
    }
    f->length = end;
    return 1;
}

/* ---- one chunk ----------------------------------------------------------------------------------------- */

typedef struct { int32_t *dots; uint64_t *passed; int64_t *slots; void *scratch; } Space;

static int scan_single(Job *job, Found *found, Space *s, int64_t low, int64_t high)
{
    for (int64_t at = low; at < high; at += BLOCK) {
        const int n = (int)(high - at < BLOCK ? high - at : BLOCK);
        job->level->dots(&job->rows, NULL, at, n, job->panel.queries, s->dots);
        uint8_t flags[BLOCK + 8];
        memset(flags + n, 0, 8);
        job->level->pass(s->dots, job->roots + at, job->panel.factors[0], n, flags);
        if (!keep_rows(found, at, n, s->dots, flags))
            return 0;
    }
    return 1;
}

/* The factor of a lane without a query is +inf, so a negative root would pass there: such lanes are not looked at. */
static int scan_panel(Job *job, Found *found, Space *s, int64_t low, int64_t high)
{
    const uint64_t asked = job->panel.count < LANES ? ((uint64_t)1 << job->panel.count) - 1 : ~(uint64_t)0;
    for (int64_t at = low; at < high; at += TILE) {
        const int n = (int)(high - at < TILE ? high - at : TILE);
        job->level->panel(&job->rows, at, n, &job->panel, job->roots + at, s->scratch, s->passed, s->dots);
        for (int i = 0; i < n; i++)
            for (uint64_t left = s->passed[i] & asked; left; left &= left - 1) {
                const int lane = COUNT_TRAILING(left);
                Found *f = &found[lane];
                if (!reserve(f, 1))
                    return 0;
                f->slots[f->length] = at + i;
                f->dots[f->length++] = s->dots[i * LANES + lane];
            }
    }
    return 1;
}

static int scan_candidates(Job *job, Found *found, Space *s, int64_t low, int64_t high)
{
    for (int64_t at = low; at < high; at += CANDIDATES) {
        const int n = (int)(high - at < CANDIDATES ? high - at : CANDIDATES);
        for (int c = 0; c < job->panel.count; c++) {
            const uint8_t *code = job->query_codes + (size_t)c * job->code_stride;
            const int m = job->mode == EQUAL
                              ? job->level->equal(job->codes, job->code_size, job->pairs, job->codes_end, at, n,
                                                  code, s->slots)
                              : job->level->hamming(job->codes, job->code_size, at, n, code, job->cut, s->slots);
            job->level->dots(&job->rows, s->slots, 0, m, &job->panel.queries[c], s->dots);
            if (!keep_candidates(&found[c], s->slots, m, s->dots, job->roots, job->panel.factors[c]))
                return 0;
        }
    }
    return 1;
}

static int write_signs(Job *job, Space *s, int64_t low, int64_t high)
{
    for (int64_t at = low; at < high; at += TILE) {
        const int n = (int)(high - at < TILE ? high - at : TILE);
        job->level->panel(&job->rows, at, n, &job->panel, job->roots, s->scratch, s->passed, s->dots);
        for (int i = 0; i < n; i++)
            for (int b = 0; b < job->panel.count; b += 8)
                job->bits[(size_t)(at + i) * job->bits_stride + b / 8] = (uint8_t)(s->passed[i] >> b);
    }
    return 1;
}

/* Only read: what the benchmarks measure a scan against. */
static int read_rows(Job *job, int64_t low, int64_t high)
{
    const size_t d = job->rows.d;
    if (job->level->touch(job->rows.base + (size_t)low * d, (size_t)(high - low) * d))
        job->touched = 1; /* so that the reading is not optimised away */
    return 1;
}

static void work(Job *job, int id)
{
    const int count = job->panel.count;
    Found *found = job->found + (size_t)id * count;
    const size_t cells = TILE * LANES > CANDIDATES ? TILE * LANES : CANDIDATES;
    Space s = {aligned_new((cells + 64) * sizeof(int32_t)), aligned_new(TILE * sizeof(uint64_t)),
               aligned_new((CANDIDATES + 64) * sizeof(int64_t)), aligned_new(job->panel.padded * 16 + 64)};
    int ok = s.dots && s.passed && s.slots && s.scratch;
    while (ok) {
#ifdef HAVE_THREADS
        const int64_t c = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
#else
        const int64_t c = job->next++;
#endif
        if (c >= job->n_chunks)
            break;
        const int64_t low = c * job->chunk, high = low + job->chunk < job->n ? low + job->chunk : job->n;
        job->owner[c] = id;
        for (int q = 0; q < count; q++)
            job->from[(size_t)c * count + q] = found[q].length;
        if (job->mode == SIGNS)
            ok = write_signs(job, &s, low, high);
        else if (job->mode == READ)
            ok = read_rows(job, low, high);
        else if (job->mode != ALL)
            ok = scan_candidates(job, found, &s, low, high);
        else
            ok = count == 1 ? scan_single(job, found, &s, low, high) : scan_panel(job, found, &s, low, high);
    }
    if (!ok)
        job->failed = 1;
    aligned_free(s.dots);
    aligned_free(s.passed);
    aligned_free(s.slots);
    aligned_free(s.scratch);
}

/* This thread works from the first moment, and whoever comes to help takes what is left. A helper that comes
 * when all is done is sent away and not waited for: on a busy machine that may be milliseconds later. No helper
 * outlives its call by more than that, so a fork between queries is harmless. */
#ifdef HAVE_THREADS
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t idle;
    Job *job;              /* NULL once the work is done */
    int holders, active, next_id;
} Crew;

/* Called with the lock held; the last to leave puts out the light. */
static void leave(Crew *crew)
{
    const int last = --crew->holders == 0;
    pthread_mutex_unlock(&crew->lock);
    if (last) {
        pthread_mutex_destroy(&crew->lock);
        pthread_cond_destroy(&crew->idle);
        free(crew);
    }
}

static void *help(void *arg)
{
    Crew *crew = arg;
    pthread_mutex_lock(&crew->lock);
    Job *job = crew->job;
    if (job) {
        const int id = crew->next_id++;
        crew->active++;
        pthread_mutex_unlock(&crew->lock);
        work(job, id);
        pthread_mutex_lock(&crew->lock);
        if (--crew->active == 0)
            pthread_cond_signal(&crew->idle);
    }
    leave(crew);
    return NULL;
}

static void run(Job *job)
{
    Crew *crew = job->threads > 1 ? malloc(sizeof *crew) : NULL;
    if (!crew) {
        work(job, 0);
        return;
    }
    *crew = (Crew){.job = job, .holders = 1, .next_id = 1};
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->idle, NULL);
    for (int t = 1; t < job->threads; t++) {
        pthread_t helper;
        pthread_mutex_lock(&crew->lock);
        crew->holders++;
        if (pthread_create(&helper, NULL, help, crew)) {
            crew->holders--;
            t = job->threads; /* no more threads to be had: what there is must do */
        } else
            pthread_detach(helper);
        pthread_mutex_unlock(&crew->lock);
    }
    work(job, 0);
    pthread_mutex_lock(&crew->lock);
    crew->job = NULL;
    while (crew->active > 0)
        pthread_cond_wait(&crew->idle, &crew->lock);
    leave(crew);
}
#else
static void run(Job *job) { work(job, 0); }
#endif

/* ---- queries ------------------------------------------------------------------------------------------- */

/* Pad, widen and pack the queries. The one block that holds it all is returned, to be freed. */
static void *prepare(Panel *p, const Level *level, const int8_t *queries, int count, size_t d,
                     const float *factors)
{
    const size_t padded = (d + 63) / 64 * 64, lanes = (size_t)(count + 15) / 16 * 16;
    const size_t head = (sizeof(Query) * (size_t)count + 63) / 64 * 64;
    char *block = aligned_new(head + (size_t)count * padded * 3 + (count > 1 ? lanes * padded * 2 : 0) + 64);
    if (!block)
        return NULL;
    Query *q = (Query *)block;
    int8_t *narrow = (int8_t *)block + head;
    int16_t *wide = (int16_t *)(narrow + (size_t)count * padded);
    p->count = count, p->d = d, p->padded = padded, p->queries = q, p->packed = wide + (size_t)count * padded;
    for (int c = 0; c < count; c++, narrow += padded, wide += padded) {
        int32_t sum = 0;
        memcpy(narrow, queries + (size_t)c * d, d);
        memset(narrow + d, 0, padded - d);
        for (size_t j = 0; j < padded; j++) {
            wide[j] = narrow[j];
            sum += narrow[j];
        }
        q[c] = (Query){narrow, wide, 128 * sum};
        p->factors[c] = factors ? factors[c] : 0.0f;
        p->offsets[c] = 128 * sum;
    }
    for (int c = count; c < LANES; c++) {
        p->factors[c] = (float)Py_HUGE_VAL;
        p->offsets[c] = 0;
    }
    if (count > 1 && level->pack)
        level->pack(p);
    return block;
}

/* Results of all threads, in the order of the chunks: (how many per query, slots, dots) as bytes. */
static PyObject *collect(const Job *job)
{
    const int count = job->panel.count;
    PyObject *totals = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8), *slots = NULL, *dots = NULL;
    size_t all = 0;
    if (!totals)
        return NULL;
    for (int q = 0; q < count; q++) {
        int64_t total = 0;
        for (int t = 0; t < job->threads; t++)
            total += (int64_t)job->found[(size_t)t * count + q].length;
        memcpy(PyBytes_AS_STRING(totals) + q * 8, &total, 8);
        all += (size_t)total;
    }
    slots = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(all * 8));
    dots = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(all * 4));
    if (slots && dots) {
        char *to_slots = PyBytes_AS_STRING(slots), *to_dots = PyBytes_AS_STRING(dots);
        for (int q = 0; q < count; q++) {
            size_t done[MAX_THREADS] = {0}; /* a thread's chunks ascend: its next starts where its last ended */
            for (int64_t c = 0; c < job->n_chunks;) {
                const int t = job->owner[c];
                const Found *f = &job->found[(size_t)t * count + q];
                while (c < job->n_chunks && job->owner[c] == t)
                    c++;
                int64_t next = c; /* the thread's next chunk tells where this run of chunks ends */
                while (next < job->n_chunks && job->owner[next] != t)
                    next++;
                const size_t end = next < job->n_chunks ? job->from[(size_t)next * count + q] : f->length;
                const size_t m = end - done[t];
                if (m) {
                    memcpy(to_slots, f->slots + done[t], m * 8);
                    memcpy(to_dots, f->dots + done[t], m * 4);
                }
                to_slots += m * 8, to_dots += m * 4;
                done[t] = end;
            }
        }
    }
    PyObject *result = slots && dots ? PyTuple_Pack(3, totals, slots, dots) : NULL;
    Py_XDECREF(totals);
    Py_XDECREF(slots);
    Py_XDECREF(dots);
    return result;
}

/* Everything but the arguments: prepare, run without the GIL, collect. */
static PyObject *run_job(Job *job, const int8_t *queries, int count, const float *factors, size_t row_bytes)
{
    PyObject *result = NULL;
    job->chunk = CHUNK_BYTES / (int64_t)(row_bytes ? row_bytes : 1);
    job->chunk = job->chunk < BLOCK ? BLOCK : job->chunk / BLOCK * BLOCK;
    job->n_chunks = (job->n + job->chunk - 1) / job->chunk;
    if (job->threads > job->n_chunks)
        job->threads = job->n_chunks < 1 ? 1 : (int)job->n_chunks;
    void *block = prepare(&job->panel, job->level, queries, count, job->rows.d, factors);
    job->found = calloc((size_t)job->threads * count, sizeof(Found));
    job->owner = malloc((size_t)(job->n_chunks + 1) * sizeof(int));
    job->from = malloc((size_t)(job->n_chunks + 1) * count * sizeof(size_t));
    if (block && job->found && job->owner && job->from) {
        Py_BEGIN_ALLOW_THREADS
        run(job);
        Py_END_ALLOW_THREADS
        if (job->failed)
            PyErr_NoMemory();
        else
            result = job->mode == SIGNS || job->mode == READ ? Py_NewRef(Py_None) : collect(job);
    } else
        PyErr_NoMemory();
    for (int i = 0; job->found && i < job->threads * count; i++) {
        free(job->found[i].slots);
        free(job->found[i].dots);
    }
    free(job->found);
    free(job->owner);
    free(job->from);
    aligned_free(block);
    return result;
}

#endif
