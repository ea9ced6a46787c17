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

/* Towards zero, so that no vote becomes longer: votes about numbers have a sign. */
static int64_t shrunk(int64_t vote, double shrink)
{
    return shrink < 1.0 ? (int64_t)((double)vote * shrink) : vote;
}

enum { SOME = 256 };
typedef struct { int64_t left[SOME]; double room[SOME], vote[SOME], units[SOME]; } Ones;

/* The clipped votes of n people with one entry each, and what they cost: `shrink_of`, `limit_of`, `squared_norm` and
   `charge_units` in loops that a compiler can vectorise. Every person takes the same steps, whatever they have left. */
static inline void clip_body(const Settling *s, int n, Ones *o)
{
    const double classes = (double)s->classes, apart = 2.0 * sqrt(classes), rounded = (double)(s->classes / 2);
    const double per_square = s->per_square, per_unit = s->per_unit, slack = s->slack, most = s->most;
    const int contrast = s->contrast;
    for (int i = 0; i < n; i++) {
        const double v = o->vote[i], square = v * v, limit = o->room[i] * per_unit / slack;
        const double left = square - v * v / classes, apart_left = sqrt(limit) - apart;
        const double positive = left > 0.0 ? left : 0.0, half = square > 0.0 ? rounded : 0.0;
        const double norm = contrast ? positive + square * 0x1p-46 + half : square;
        const double closer = apart_left > 0.0 ? apart_left : 0.0, bound = contrast ? closer * closer : limit;
        const double size = norm > 1.0 ? norm : 1.0, ratio = bound / size, least = ratio < 1.0 ? ratio : 1.0;
        o->vote[i] = trunc(v * sqrt(bound >= size ? 1.0 : least));
    }
    for (int i = 0; i < n; i++) {
        const double v = o->vote[i], square = v * v, left = square - v * v / classes;
        const double positive = left > 0.0 ? left : 0.0, half = square > 0.0 ? rounded : 0.0;
        const double units = (contrast ? positive + square * 0x1p-46 + half : square) * per_square;
        o->units[i] = units < most ? ceil(units) : most;
    }
}

static void clip_plain(const Settling *s, int n, Ones *o) { clip_body(s, n, o); }

#if defined(__GNUC__) && defined(__x86_64__)
#define WIDE __builtin_cpu_supports("avx2")
__attribute__((target("avx2"))) static void clip_avx2(const Settling *s, int n, Ones *o) { clip_body(s, n, o); }
#else
#define WIDE 0
#define clip_avx2 clip_plain
#endif

/* One entry each, which is the usual store: those from `first` on, of whom `o->left` says what they have left. */
static void settle_some(const Settling *s, Py_ssize_t first, int n, Ones *o)
{
    const int64_t *label = (const int64_t *)s->label.buf + first, *whole = (const int64_t *)s->vote.buf + first;
    int64_t *votes = s->votes.buf, *charges = (int64_t *)s->charges.buf + first;
    for (int i = 0; i < n; i++) {
        o->room[i] = (double)(o->left[i] > 1 ? o->left[i] - 1 : 0);
        o->vote[i] = (double)whole[i];
    }
    (WIDE ? clip_avx2 : clip_plain)(s, n, o);
    for (int i = 0; i < n; i++) {
        const int64_t charge = (int64_t)o->units[i], pays = charge <= o->left[i];
        charges[i] = pays * charge;
        votes[label[i]] += pays * (int64_t)o->vote[i];
    }
}

static void settle_ones(const Settling *s)
{
    Ones o;
    for (Py_ssize_t first = 0; first < s->entries; first += SOME) {
        const int n = s->entries - first < SOME ? (int)(s->entries - first) : SOME;
        memcpy(o.left, (const int64_t *)s->remaining.buf + first, (size_t)n * sizeof *o.left);
        settle_some(s, first, n, &o);
    }
}

static int settle_all(const Settling *s)
{
    const int64_t *who = s->who.buf, *label = s->label.buf, *whole = s->vote.buf, *remaining = s->remaining.buf;
    int64_t *votes = s->votes.buf, *charges = s->charges.buf;
    if (!s->who.len) {
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
    double epsilon;
    int64_t whole, part, before, over;
} Promise; /* of one person; `whole` 0: the public default. See ledger/promises.py */

typedef struct {
    Py_buffer own, shared, promises, slots; /* `shared`, `promises` of no length: nobody has any */
    long long limit, budget, paced, steps; /* so much of the limit is there yet: paced of steps */
    long long now; /* that is so much of it, see `known` */
    int apart; /* the analyst sees nothing that is shared */
} Columns;

/* The part of a limit that is there yet. */
static int64_t there_yet(const Columns *c, int64_t limit)
{
    if (c->paced >= c->steps || limit <= 0)
        return limit;
    return limit / c->steps * c->paced + limit % c->steps * c->paced / c->steps;
}

static inline int64_t left_of(const Columns *c, int64_t slot)
{
    const int64_t spent = ((const int64_t *)c->own.buf)[slot];
    int64_t limit = c->now, budget = c->budget;
    if (c->promises.len) {
        const Promise *own = (const Promise *)c->promises.buf + slot;
        if (own->whole) {
            budget = own->whole < budget ? own->whole : budget;
            const int64_t most = budget - (c->apart ? 0 : own->part);
            limit = there_yet(c, most < c->limit ? most : c->limit);
        }
    }
    const int64_t mine = limit - spent;
    const int64_t whole = budget - (c->shared.len ? ((const int64_t *)c->shared.buf)[slot] : 0) - spent;
    const int64_t least = mine < whole ? mine : whole;
    return least > 0 ? least : 0;
}

/* Whether the columns are of one length, and every slot is one of theirs. */
static int known(Columns *c)
{
    const int64_t *slot = c->slots.buf;
    const Py_ssize_t capacity = c->own.len / 8;
    int fits = !c->shared.len || c->shared.len == c->own.len;
    fits = fits && (!c->promises.len || c->promises.len / (Py_ssize_t)sizeof(Promise) == capacity);
    c->now = there_yet(c, c->limit);
    for (Py_ssize_t i = 0; fits && i < c->slots.len / 8; i++)
        fits = slot[i] >= 0 && slot[i] < capacity;
    return fits;
}

static void release(Columns *c)
{
    PyBuffer_Release(&c->own);
    PyBuffer_Release(&c->shared);
    PyBuffer_Release(&c->promises);
    PyBuffer_Release(&c->slots);
}

static PyObject *room(PyObject *self, PyObject *args)
{
    Columns c;
    Py_buffer out;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*y*LLLLpw*:room", &c.own, &c.shared, &c.promises, &c.slots, &c.limit, &c.budget,
                          &c.paced, &c.steps, &c.apart, &out))
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
    if (!PyArg_ParseTuple(args, "w*y*y*y*LLLLpy*w*:charge", &c.own, &c.shared, &c.promises, &c.slots, &c.limit, &c.budget,
                          &c.paced, &c.steps, &c.apart, &units, &queries))
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

/* Lines 4 and 7 on a ledger: whoever can pay for being counted with m records does. The work is the same for those who
   cannot (rule 3). */
static PyObject *pay(PyObject *self, PyObject *args)
{
    Columns c;
    Py_buffer records, charges, able;
    double grid, per_square;
    long long most;
    int64_t total = 0, payers = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*y*y*y*LLLLpy*w*w*ddL:pay", &c.own, &c.shared, &c.promises, &c.slots, &c.limit,
                          &c.budget, &c.paced, &c.steps, &c.apart, &records, &charges, &able, &grid, &per_square, &most))
        return NULL;
    const Py_ssize_t n = c.slots.len / 8;
    const int64_t *slot = c.slots.buf, *m = records.buf;
    int64_t *charge = charges.buf, *own = c.own.buf;
    const int fits = records.len == c.slots.len && charges.len == c.slots.len && able.len == n && known(&c);
    for (Py_ssize_t i = 0; fits && i < n; i++) {
        const double shift = (double)m[i] * grid;
        charge[i] = charge_units(shift * shift, per_square, (double)most);
        const int64_t pays = left_of(&c, slot[i]) >= charge[i];
        ((uint8_t *)able.buf)[i] = (uint8_t)pays;
        own[slot[i]] += pays * charge[i];
        total += pays * m[i];
        payers += pays;
    }
    release(&c);
    PyBuffer_Release(&records);
    PyBuffer_Release(&charges);
    PyBuffer_Release(&able);
    return Py_BuildValue("OLL", fits ? Py_True : Py_False, (long long)total, (long long)payers);
}

/* Lines 8 and 9 on a ledger, for people with one entry each: clip, charge and add up. */
static PyObject *vote(PyObject *self, PyObject *args)
{
    Columns c;
    Settling s = {.who = {.len = 0}};
    Py_buffer queries;
    long long most;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*y*y*y*LLLLpy*y*w*w*w*pdddL:vote", &c.own, &c.shared, &c.promises, &c.slots,
                          &c.limit, &c.budget, &c.paced, &c.steps, &c.apart, &s.label, &s.vote, &s.votes, &s.charges,
                          &queries, &s.contrast, &s.per_square, &s.per_unit, &s.slack, &most))
        return NULL;
    const Py_ssize_t n = s.entries = c.slots.len / 8;
    const int64_t *slot = c.slots.buf, *label = s.label.buf, *charges = s.charges.buf;
    int64_t *own = c.own.buf;
    s.classes = s.votes.len / 8;
    s.most = (double)most;
    int fits = s.label.len == c.slots.len && s.vote.len == c.slots.len && s.charges.len == c.slots.len &&
               queries.len * 2 == c.own.len && known(&c);
    for (Py_ssize_t i = 0; fits && i < n; i++)
        fits = label[i] >= 0 && label[i] < s.classes;
    Ones o;
    for (Py_ssize_t first = 0; fits && first < n; first += SOME) {
        const int some = n - first < SOME ? (int)(n - first) : SOME;
        for (int i = 0; i < some; i++)
            o.left[i] = left_of(&c, slot[first + i]);
        settle_some(&s, first, some, &o);
        for (Py_ssize_t i = first; i < first + some; i++) {
            own[slot[i]] += charges[i];
            ((int32_t *)queries.buf)[slot[i]]++;
        }
    }
    release(&c);
    Py_buffer *all[] = {&s.label, &s.vote, &s.votes, &s.charges, &queries};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        PyBuffer_Release(all[i]);
    return PyBool_FromLong(fits);
}

static int bytes_of(uint64_t most)
{
    int width = 1;
    while (width < 8 && most >> (8 * width))
        width++;
    return width;
}

static uint8_t *put(uint8_t *to, uint64_t value, int width)
{
    for (int b = 0; b < width; b++)
        *to++ = (uint8_t)(value >> (8 * b));
    return to;
}

static PyObject *blocks_of(const int64_t *slot, Py_ssize_t n, int64_t block)
{
    PyObject *blocks = PyList_New(0);
    int64_t last = -1;
    for (Py_ssize_t i = 0; blocks && i < n; i++)
        if (slot[i] / block != last) {
            PyObject *number = PyLong_FromLongLong(last = slot[i] / block);
            if (!number || PyList_Append(blocks, number))
                Py_CLEAR(blocks);
            Py_XDECREF(number);
        }
    return blocks;
}

/* Debits as they are written down (`Debits.encode`), their sum, and the blocks of balances that they are in. */
static PyObject *pack(PyObject *self, PyObject *args)
{
    Py_buffer slots, units;
    long long block;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*L:pack", &slots, &units, &block))
        return NULL;
    const int64_t *slot = slots.buf, *unit = units.buf;
    const Py_ssize_t n = slots.len / 8 < units.len / 8 ? slots.len / 8 : units.len / 8;
    uint64_t total = 0, widest = 0, least = n ? (uint64_t)unit[0] : 0, most = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint64_t gap = (uint64_t)(slot[i] - (i ? slot[i - 1] : 0)), paid = (uint64_t)unit[i];
        total = total >> 62 ? (uint64_t)1 << 63 : total + paid;
        widest = gap > widest ? gap : widest;
        least = paid < least ? paid : least;
        most = paid > most ? paid : most;
    }
    const int gaps = bytes_of(widest), amounts = bytes_of(most - least);
    PyObject *body = PyBytes_FromStringAndSize(NULL, n ? 10 + n * (gaps + amounts) : 0);
    PyObject *blocks = body ? blocks_of(slot, n, block) : NULL;
    if (blocks && n) {
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(body);
        to = put(put(put(to, (uint64_t)gaps, 1), (uint64_t)amounts, 1), least, 8);
        for (Py_ssize_t i = 0; i < n; i++)
            to = put(to, (uint64_t)(slot[i] - (i ? slot[i - 1] : 0)), gaps);
        for (Py_ssize_t i = 0; i < n; i++)
            to = put(to, (uint64_t)unit[i] - least, amounts);
    }
    PyBuffer_Release(&slots);
    PyBuffer_Release(&units);
    if (!blocks) {
        Py_XDECREF(body);
        return NULL;
    }
    return Py_BuildValue("NLN", body, total >> 62 ? -1LL : (long long)total, blocks);
}

/* The dot products of one int8 vector with each of n rows, as float64. With fewer than 2^17 features a sum fits. */
static inline void dots_of(const int8_t *q, const int8_t *row, Py_ssize_t n, Py_ssize_t d, double *out)
{
    for (Py_ssize_t i = 0; i < n; i++, row += d) {
        int32_t sum = 0;
        for (Py_ssize_t j = 0; j < d; j++)
            sum += (int16_t)q[j] * (int16_t)row[j];
        out[i] = sum;
    }
}

#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2"))) static void dots_avx2(const int8_t *q, const int8_t *row, Py_ssize_t n, Py_ssize_t d,
                                                      double *out)
{
    dots_of(q, row, n, d, out);
}
#else
#define dots_avx2 dots_of
#endif

static PyObject *dots(PyObject *self, PyObject *args)
{
    Py_buffer query, rows, out;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*w*:dots", &query, &rows, &out))
        return NULL;
    const Py_ssize_t d = query.len, n = out.len / 8;
    const int fits = rows.len == n * d && d < 1 << 17;
    if (fits)
        (WIDE ? dots_avx2 : dots_of)(query.buf, rows.buf, n, d, out.buf);
    PyBuffer_Release(&query);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    return PyBool_FromLong(fits);
}

typedef struct { const int32_t *squared; const float *roots; double root_q; } Lengths; /* `squared` may be NULL */

/* |x| as `Slots.root_norm` has it, and the cosine as `kernels.Cosine.values` has it. */
static inline void cosines_body(const Lengths *l, const int64_t *slot, const int32_t *dot, int n, double grid,
                                double *kappa)
{
    double root[SOME];
    for (int i = 0; i < n; i++)
        root[i] = l->squared ? (double)l->squared[slot[i]] : (double)l->roots[slot[i]];
    if (!l->squared)
        for (int i = 0; i < n; i++)
            root[i] = rint(root[i] * root[i]);
    for (int i = 0; i < n; i++) {
        const double on_grid = rint((double)dot[i] / (sqrt(root[i]) * l->root_q) * grid);
        const double positive = on_grid > 0.0 ? on_grid : 0.0;
        kappa[i] = positive < grid ? positive : grid;
    }
}

static void cosines_plain(const Lengths *l, const int64_t *slot, const int32_t *dot, int n, double grid, double *kappa)
{
    cosines_body(l, slot, dot, n, grid, kappa);
}

#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2"))) static void cosines_avx2(const Lengths *l, const int64_t *slot, const int32_t *dot,
                                                         int n, double grid, double *kappa)
{
    cosines_body(l, slot, dot, n, grid, kappa);
}
#else
#define cosines_avx2 cosines_plain
#endif

/* The records whose cosine reaches tau on the grid, among those with these slots and dot products. */
static PyObject *cosines(PyObject *self, PyObject *args)
{
    Py_buffer slots, dots, squared, roots;
    double root_q, grid, kappa[SOME];
    long long tau;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*y*ddL:cosines", &slots, &dots, &squared, &roots, &root_q, &grid, &tau))
        return NULL;
    const Py_ssize_t n = slots.len / 8, known = roots.len / 4;
    const int64_t *slot = slots.buf;
    const int32_t *dot = dots.buf;
    int fits = dots.len == n * 4 && (!squared.len || squared.len == roots.len);
    for (Py_ssize_t i = 0; fits && i < n; i++)
        fits = slot[i] >= 0 && slot[i] < known;
    PyObject *near = fits ? PyBytes_FromStringAndSize(NULL, n * 8) : NULL;
    PyObject *values = fits ? PyBytes_FromStringAndSize(NULL, n * 8) : NULL;
    Py_ssize_t found = 0;
    if (near && values) {
        int64_t *to = (int64_t *)PyBytes_AS_STRING(near), *value = (int64_t *)PyBytes_AS_STRING(values);
        const Lengths lengths = {squared.len ? squared.buf : NULL, roots.buf, root_q};
        for (Py_ssize_t first = 0; first < n; first += SOME) {
            const int some = n - first < SOME ? (int)(n - first) : SOME;
            (WIDE ? cosines_avx2 : cosines_plain)(&lengths, slot + first, dot + first, some, grid, kappa);
            for (int i = 0; i < some; i++) {
                to[found] = slot[first + i];
                value[found] = (int64_t)kappa[i];
                found += value[found] >= tau;
            }
        }
    }
    PyBuffer_Release(&slots);
    PyBuffer_Release(&dots);
    PyBuffer_Release(&squared);
    PyBuffer_Release(&roots);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "every slot must be there, with a dot product");
    if (near && values)
        return Py_BuildValue("NNn", near, values, found);
    Py_XDECREF(near);
    Py_XDECREF(values);
    return NULL;
}

/* A number of 1, 2 or 4 bytes; see `records.by_slot.BySlot`. */
static inline int64_t number_at(const Py_buffer *column, Py_ssize_t width, int64_t slot)
{
    if (width == 1)
        return ((const int8_t *)column->buf)[slot];
    return width == 2 ? ((const int16_t *)column->buf)[slot] : ((const int32_t *)column->buf)[slot];
}

/* Whose the records in these slots are and what they say, without those whose date has passed. No dates: nobody's. */
static PyObject *ballots(PyObject *self, PyObject *args)
{
    Py_buffer slots, kappa, owners, labels, until;
    Py_ssize_t label_width, until_width, found = 0;
    long long hour;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*y*ny*nL:ballots", &slots, &kappa, &owners, &labels, &label_width, &until,
                          &until_width, &hour))
        return NULL;
    const Py_ssize_t n = slots.len / 8, dated = until.len / until_width, labelled = labels.len / label_width;
    const int64_t *slot = slots.buf, *value = kappa.buf;
    Py_ssize_t known = owners.len / 4 < labelled ? owners.len / 4 : labelled;
    known = until.len && dated < known ? dated : known;
    int fits = kappa.len == slots.len;
    for (Py_ssize_t i = 0; fits && i < n; i++)
        fits = slot[i] >= 0 && slot[i] < known;
    PyObject *parts[3] = {NULL, NULL, NULL};
    for (int k = 0; fits && k < 3; k++)
        fits = (parts[k] = PyBytes_FromStringAndSize(NULL, n * 8)) != NULL;
    if (fits) {
        int64_t *owner = (int64_t *)PyBytes_AS_STRING(parts[0]), *label = (int64_t *)PyBytes_AS_STRING(parts[1]);
        int64_t *vote = (int64_t *)PyBytes_AS_STRING(parts[2]);
        for (Py_ssize_t i = 0; i < n; i++) {
            owner[found] = ((const int32_t *)owners.buf)[slot[i]];
            label[found] = number_at(&labels, label_width, slot[i]);
            vote[found] = value[i];
            found += !until.len || number_at(&until, until_width, slot[i]) > hour;
        }
    }
    Py_buffer *all[] = {&slots, &kappa, &owners, &labels, &until};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        PyBuffer_Release(all[i]);
    if (fits)
        return Py_BuildValue("NNNn", parts[0], parts[1], parts[2], found);
    for (int k = 0; k < 3; k++)
        Py_XDECREF(parts[k]);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "every slot must be in all columns");
    return NULL;
}

static PyMethodDef METHODS[] = {
    {"settle", settle, METH_VARARGS,
     "settle(who, label, vote, remaining, votes, charges, contrast, per_square, per_unit, slack, most)\n\n"
     "Adds clipped votes to votes and sets charges."},
    {"count", count, METH_VARARGS,
     "count(m, remaining, charges, grid, per_square, most) -> (able, total)\n\nSets charges while all are able."},
    {"room", room, METH_VARARGS,
     "room(own, shared, promises, slots, limit, budget, paced, steps, apart, out) -> bool\n\n"
     "Sets what is left; False if a slot is not there."},
    {"charge", charge, METH_VARARGS,
     "charge(own, shared, promises, slots, limit, budget, paced, steps, apart, units, queries) -> bool\n\n"
     "Adds units to the slots of a column, and one to their queries: all if all fit, or none."},
    {"pay", pay, METH_VARARGS,
     "pay(own, shared, promises, slots, limit, budget, paced, steps, apart, m, charges, grid, per_square, most) -> (able, total)\n\n"
     "Sets what being counted costs and charges it, if all are able."},
    {"vote", vote, METH_VARARGS,
     "vote(own, shared, promises, slots, limit, budget, paced, steps, apart, label, vote, votes, charges, queries, contrast,\n"
     "per_square, per_unit, slack, most) -> bool\n\nAdds clipped votes of one entry each to votes, sets charges and charges them."},
    {"pack", pack, METH_VARARGS,
     "pack(slots, units, block) -> (body, total, blocks)\n\nOf ascending slots; total is -1 if it is above 2^62."},
    {"ballots", ballots, METH_VARARGS,
     "ballots(slots, kappa, owners, labels, width, until, width, hour) -> (owners, labels, kappa, n)\n\n"
     "The first n of these int64 bytes are about records whose date has not passed."},
    {"cosines", cosines, METH_VARARGS,
     "cosines(slots, dots, squared, roots, root_q, grid, tau) -> (slots, kappa, n)\n\n"
     "The first n of these int64 bytes are the records whose cosine reaches tau."},
    {"dots", dots, METH_VARARGS, "dots(query, rows, out) -> bool\n\nSets dot products of int8 vectors, if the sizes fit."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_votes", "Votes and charges in one pass.", -1, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__votes(void) { return PyModule_Create(&MODULE); }
