/* Karney's exact normal sampler in C: word for word what `_rounded_normal` in noise.py does, for integer scales.
 *
 * Draws are a function of one stream of 64-bit words. When the words given run out in the middle of a draw, or
 * a draw needs longer arithmetic than 128 bits, the draw is left undone and its words are not counted as used:
 * the caller comes again with the same words and more, or does that draw itself. Starting over with other words
 * would favour draws that need few, and so small values.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#ifdef __SIZEOF_INT128__
typedef unsigned __int128 Wide;

enum { DIGITS = 4, MAX_K = 15 };
enum { FINE = 0, DRY = 1, HARD = 2 };

typedef struct { const char *at, *end; int state; } Words;
typedef struct { uint64_t digit[DIGITS]; int known; } Deviate; /* the digits known so far of a uniform number */

static uint64_t word(Words *s)
{
    uint64_t value = 0;
    if (s->end - s->at < 8) {
        if (s->state == FINE)
            s->state = DRY;
        return 0;
    }
    memcpy(&value, s->at, 8);
    s->at += 8;
    return value;
}

static Deviate fresh(Words *s)
{
    Deviate u = {{word(s), 0, 0, 0}, 1};
    return u;
}

/* Whether a < b, drawing further digits of either while the known ones are equal. */
static int less(Words *s, Deviate *a, Deviate *b)
{
    int i = 0;
    while (a->digit[i] == b->digit[i]) {
        if (s->state != FINE)
            return 0;
        if (++i == DIGITS) {
            s->state = HARD;
            return 0;
        }
        if (a->known == i)
            a->digit[a->known++] = word(s);
        if (b->known == i)
            b->digit[b->known++] = word(s);
    }
    return a->digit[i] < b->digit[i];
}

/* True with probability exp(-1/2): the run 1/2 > u1 > u2 > ... has even length. */
static int bernoulli_exp_half(Words *s)
{
    Deviate previous = fresh(s);
    int even = 0;
    if (previous.digit[0] >> 63)
        return 1;
    while (s->state == FINE) {
        Deviate u = fresh(s);
        if (!less(s, &u, &previous))
            return even;
        previous = u;
        even = !even;
    }
    return 0;
}

static uint64_t below(Words *s, uint64_t n)
{
    const uint64_t excess = (UINT64_MAX % n + 1) % n; /* 2^64 mod n */
    uint64_t value;
    do
        value = word(s);
    while (value > UINT64_MAX - excess && s->state == FINE);
    return value % n;
}

/* True with probability exp(-x(2k+x)/(2k+2)). */
static int bernoulli_exp_x(Words *s, uint64_t k, Deviate *x)
{
    Deviate previous, u;
    int even = 1, first = 1;
    while (s->state == FINE) {
        u = fresh(s);
        if (!less(s, &u, first ? x : &previous))
            return even;
        const uint64_t side = below(s, 2 * k + 2);
        if (side > 2 * k)
            return even;
        if (side == 2 * k) {
            Deviate v = fresh(s);
            if (!less(s, &v, x))
                return even;
        }
        previous = u;
        first = 0;
        even = !even;
    }
    return 0;
}

static int64_t rounded_normal(Words *s, uint64_t scale)
{
    uint64_t k;
    Deviate x;
    while (s->state == FINE) {
        int keep = 1;
        for (k = 0; bernoulli_exp_half(s); k++) /* N1 */
            ;
        for (uint64_t i = 0; keep && i < k * (k - 1); i++) /* N2 */
            keep = bernoulli_exp_half(s);
        if (!keep)
            continue;
        x = fresh(s); /* N3 */
        for (uint64_t i = 0; keep && i < k + 1; i++) /* N4 */
            keep = bernoulli_exp_x(s, k, &x);
        if (keep)
            break;
    }
    if (s->state != FINE)
        return 0;
    if (k > MAX_K) {
        s->state = HARD;
        return 0;
    }
    /* k + x lies in [low, low + 1) / 2^64: the nearest integers of both ends, times the scale */
    const Wide low = ((Wide)k << 64) + x.digit[0], half = (Wide)1 << 63;
    const uint64_t bottom = (uint64_t)((low * scale + half) >> 64);
    const uint64_t top = (uint64_t)(((low + 1) * scale + half) >> 64);
    if (bottom != top) {
        s->state = HARD;
        return 0;
    }
    return word(s) & 1 ? -(int64_t)bottom : (int64_t)bottom;
}

static PyObject *draws(PyObject *self, PyObject *args)
{
    Py_buffer words;
    unsigned long long scale;
    Py_ssize_t count, made = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*Kn:draws", &words, &scale, &count))
        return NULL;
    if (scale < 1 || scale >> 59 || count < 0) {
        PyBuffer_Release(&words);
        PyErr_SetString(PyExc_ValueError, "scale must be in [1, 2^59), count not negative");
        return NULL;
    }
    PyObject *body = PyBytes_FromStringAndSize(NULL, count * 8);
    if (!body) {
        PyBuffer_Release(&words);
        return NULL;
    }
    Words s = {words.buf, (const char *)words.buf + words.len, FINE};
    const char *used = s.at;
    for (; made < count; made++) {
        const int64_t value = rounded_normal(&s, scale);
        if (s.state != FINE)
            break;
        memcpy(PyBytes_AS_STRING(body) + made * 8, &value, 8);
        used = s.at;
    }
    const Py_ssize_t consumed = used - (const char *)words.buf;
    PyBuffer_Release(&words);
    return Py_BuildValue("Nnnn", body, made, consumed, (Py_ssize_t)(s.state == HARD));
}

static PyMethodDef METHODS[] = {
    {"draws", draws, METH_VARARGS,
     "draws(words, scale, count) -> (int64 bytes, made, bytes used, hard)\n\n"
     "Up to count values of round(scale·Z). Stops where the words run out, or (hard) at a draw for long arithmetic."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_sampler", "Exact normal draws.", -1, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sampler(void) { return PyModule_Create(&MODULE); }
#else
#error "this sampler needs 128-bit integers; without it the one in Python is used"
#endif
