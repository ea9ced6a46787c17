/* Lines 4 and 7 to 9 of Algorithm 3 in one pass over the participants; a ledger's column in one pass over its slots.
 *
 * Step by step what mechanism.py and ledger/memory.py do with NumPy, and equal to the bit:
 * the same float64 operations in the same order. So it must be compiled without contraction (a fused multiply-add
 * rounds once where NumPy rounds twice).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Py_buffer who, label, vote, remaining, votes, charges; /* `who` of no length: one entry each, in order */
    Py_ssize_t entries, owners, classes;
    int contrast;
    double per_square, per_unit, slack; /* charge of a squared shift; squared shift of a unit; room for rounding */
    double most;
} Settling;

/* |F_o|² into norms, or |P F_o|² with the contrast charge; see `_squared_norms`. */
static void squared_norms(const Settling *s, const int64_t *vote, double *norms, double *totals)
{
    const int64_t *who = s->who.buf;
    memset(norms, 0, (size_t)s->owners * sizeof *norms);
    memset(totals, 0, (size_t)s->owners * sizeof *totals);
    for (Py_ssize_t i = 0; i < s->entries; i++) {
        const Py_ssize_t o = s->who.len ? who[i] : i;
        const double v = (double)vote[i];
        norms[o] += v * v;
        totals[o] += v;
    }
    if (!s->contrast)
        return;
    for (Py_ssize_t o = 0; o < s->owners; o++) {
        const double norm = norms[o], left = norm - totals[o] * totals[o] / (double)s->classes;
        const double rounded = norm > 0.0 ? (double)(s->classes / 2) : 0.0;
        norms[o] = (left > 0.0 ? left : 0.0) + norm * 0x1p-46 + rounded;
    }
}

/* What a squared shift is charged: rounded up, at most `most`. */
static int64_t charge_units(double squared, double per_square, double most)
{
    const double units = squared * per_square;
    if (!(units < most))
        return (int64_t)most;
    const int64_t down = (int64_t)units; /* never negative */
    return down + ((double)down < units);
}

/* The largest squared shift that an owner can pay for. */
static double limit_of(const Settling *s, int64_t remaining)
{
    const int64_t room = remaining - 1;
    const double limit = (double)(room > 0 ? room : 0) * s->per_unit / s->slack;
    if (!s->contrast)
        return limit;
    const double less = sqrt(limit) - 2.0 * sqrt((double)s->classes);
    return less > 0.0 ? less * less : 0.0;
}

/* The factor by which an owner's votes shrink. */
static double shrink_of(double limit, double norm)
{
    const double size = norm > 1.0 ? norm : 1.0;
    if (limit >= size)
        return 1.0; /* the usual case, without a division and a root */
    return sqrt(limit / size);
}

static int64_t shrunk(int64_t vote, double shrink)
{
    return shrink < 1.0 ? (int64_t)floor((double)vote * shrink) : vote;
}

/* One entry each and the plain charge: the usual store, in a single pass. */
static void settle_ones(const Settling *s)
{
    const int64_t *label = s->label.buf, *whole = s->vote.buf, *remaining = s->remaining.buf;
    int64_t *votes = s->votes.buf, *charges = s->charges.buf;
    for (Py_ssize_t i = 0; i < s->entries; i++) {
        const double v = (double)whole[i];
        const int64_t vote = shrunk(whole[i], shrink_of(limit_of(s, remaining[i]), v * v));
        charges[i] = charge_units((double)vote * (double)vote, s->per_square, s->most);
        if (charges[i] <= remaining[i])
            votes[label[i]] += vote;
        else
            charges[i] = 0;
    }
}

static int settle_all(const Settling *s)
{
    const int64_t *who = s->who.buf, *label = s->label.buf, *whole = s->vote.buf, *remaining = s->remaining.buf;
    int64_t *votes = s->votes.buf, *charges = s->charges.buf;
    if (!s->who.len && !s->contrast) {
        settle_ones(s);
        return 0;
    }
    double *norms = malloc((size_t)(2 * s->owners + 1) * sizeof *norms);
    int64_t *vote = calloc((size_t)s->entries + 1, sizeof *vote);
    if (!norms || !vote) {
        free(norms);
        free(vote);
        return -1;
    }
    double *totals = norms + s->owners;
    squared_norms(s, whole, norms, totals);
    for (Py_ssize_t o = 0; o < s->owners; o++)
        totals[o] = shrink_of(limit_of(s, remaining[o]), norms[o]);
    for (Py_ssize_t i = 0; i < s->entries; i++)
        vote[i] = shrunk(whole[i], totals[s->who.len ? who[i] : i]);
    squared_norms(s, vote, norms, totals);
    for (Py_ssize_t o = 0; o < s->owners; o++)
        charges[o] = charge_units(norms[o], s->per_square, s->most);
    for (Py_ssize_t i = 0; i < s->entries; i++) {
        const Py_ssize_t o = s->who.len ? who[i] : i;
        if (charges[o] <= remaining[o])
            votes[label[i]] += vote[i];
    }
    for (Py_ssize_t o = 0; o < s->owners; o++)
        if (charges[o] > remaining[o])
            charges[o] = 0;
    free(norms);
    free(vote);
    return 0;
}

static int within(const Settling *s)
{
    const int64_t *who = s->who.buf, *label = s->label.buf;
    if (s->label.len != s->vote.len || s->charges.len != s->remaining.len)
        return 0;
    if (s->who.len ? s->who.len != s->vote.len : s->entries != s->owners)
        return 0;
    for (Py_ssize_t i = 0; i < s->entries; i++)
        if (label[i] < 0 || label[i] >= s->classes || (s->who.len && (who[i] < 0 || who[i] >= s->owners)))
            return 0;
    return 1;
}

static PyObject *settle(PyObject *self, PyObject *args)
{
    Settling s;
    long long most;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*w*pdddL:settle", &s.who, &s.label, &s.vote, &s.remaining, &s.votes,
                          &s.charges, &s.contrast, &s.per_square, &s.per_unit, &s.slack, &most))
        return NULL;
    s.entries = s.vote.len / 8;
    s.owners = s.remaining.len / 8;
    s.classes = s.votes.len / 8;
    s.most = (double)most;
    const int fits = within(&s), failed = fits && settle_all(&s);
    Py_buffer *all[] = {&s.who, &s.label, &s.vote, &s.remaining, &s.votes, &s.charges};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        PyBuffer_Release(all[i]);
    if (failed)
        return PyErr_NoMemory();
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "entries must be of the owners and classes given");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* What being counted with m records costs; whether everybody can pay, and how many records that makes. */
static PyObject *count(PyObject *self, PyObject *args)
{
    Py_buffer records, remaining, charges;
    double grid, per_square;
    long long most;
    int64_t total = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*w*ddL:count", &records, &remaining, &charges, &grid, &per_square, &most))
        return NULL;
    const Py_ssize_t n = records.len / 8;
    const int64_t *m = records.buf, *left = remaining.buf;
    int64_t *charge = charges.buf;
    int able = remaining.len == records.len && charges.len == records.len;
    for (Py_ssize_t i = 0; able && i < n; i++) {
        const double shift = (double)m[i] * grid;
        charge[i] = charge_units(shift * shift, per_square, (double)most);
        able = left[i] >= charge[i];
        total += m[i];
    }
    PyBuffer_Release(&records);
    PyBuffer_Release(&remaining);
    PyBuffer_Release(&charges);
    return Py_BuildValue("OL", able ? Py_True : Py_False, (long long)total);
}

typedef struct {
    Py_buffer own, shared, slots; /* `shared` of no length: nobody was charged there */
    long long limit, budget;
} Columns;

static int64_t left_of(const Columns *c, int64_t slot)
{
    const int64_t spent = ((const int64_t *)c->own.buf)[slot];
    const int64_t mine = c->limit - spent;
    const int64_t whole = c->budget - (c->shared.len ? ((const int64_t *)c->shared.buf)[slot] : 0) - spent;
    const int64_t least = mine < whole ? mine : whole;
    return least > 0 ? least : 0;
}

/* Whether the columns are of one length, and every slot is one of theirs. */
static int known(const Columns *c)
{
    const int64_t *slot = c->slots.buf;
    const Py_ssize_t capacity = c->own.len / 8;
    int fits = !c->shared.len || c->shared.len == c->own.len;
    for (Py_ssize_t i = 0; fits && i < c->slots.len / 8; i++)
        fits = slot[i] >= 0 && slot[i] < capacity;
    return fits;
}

static void release(Columns *c)
{
    PyBuffer_Release(&c->own);
    PyBuffer_Release(&c->shared);
    PyBuffer_Release(&c->slots);
}

static PyObject *room(PyObject *self, PyObject *args)
{
    Columns c;
    Py_buffer out;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*LLw*:room", &c.own, &c.shared, &c.slots, &c.limit, &c.budget, &out))
        return NULL;
    const int fits = out.len == c.slots.len && known(&c);
    for (Py_ssize_t i = 0; fits && i < c.slots.len / 8; i++)
        ((int64_t *)out.buf)[i] = left_of(&c, ((const int64_t *)c.slots.buf)[i]);
    release(&c);
    PyBuffer_Release(&out);
    return PyBool_FromLong(fits);
}

static PyObject *charge(PyObject *self, PyObject *args)
{
    Columns c;
    Py_buffer units, queries;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*y*y*LLy*w*:charge", &c.own, &c.shared, &c.slots, &c.limit, &c.budget, &units,
                          &queries))
        return NULL;
    const Py_ssize_t n = c.slots.len / 8;
    const int64_t *slot = c.slots.buf, *unit = units.buf;
    int fits = units.len == c.slots.len && (!queries.len || queries.len * 2 == c.own.len) && known(&c);
    for (Py_ssize_t i = 0; fits && i < n; i++)
        fits = unit[i] >= 0 && unit[i] <= left_of(&c, slot[i]);
    for (Py_ssize_t i = 0; fits && i < n; i++)
        ((int64_t *)c.own.buf)[slot[i]] += unit[i];
    for (Py_ssize_t i = 0; fits && queries.len && i < n; i++)
        ((int32_t *)queries.buf)[slot[i]]++;
    release(&c);
    PyBuffer_Release(&units);
    PyBuffer_Release(&queries);
    return PyBool_FromLong(fits);
}

static PyMethodDef METHODS[] = {
    {"settle", settle, METH_VARARGS,
     "settle(who, label, vote, remaining, votes, charges, contrast, per_square, per_unit, slack, most)\n\n"
     "Adds clipped votes to votes and sets charges."},
    {"count", count, METH_VARARGS,
     "count(m, remaining, charges, grid, per_square, most) -> (able, total)\n\nSets charges while all are able."},
    {"room", room, METH_VARARGS,
     "room(own, shared, slots, limit, budget, out) -> bool\n\nSets what is left; False if a slot is not there."},
    {"charge", charge, METH_VARARGS,
     "charge(own, shared, slots, limit, budget, units, queries) -> bool\n\n"
     "Adds units to the slots of a column, and one to their queries: all if all fit, or none."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_votes", "Votes and charges in one pass.", -1, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__votes(void) { return PyModule_Create(&MODULE); }
