/* One step of training in one pass over the rows: scores, softmax, clip, charges and the sum of all gradients.
 *
 * Step by step what training.py does with NumPy, and equal to the bit. Numbers are whole, and their sums exact in any
 * order, or they are results of one correctly rounded operation. So this must be compiled without contraction.
 *
 * Bounds. A feature is an int8, a weight an int16 of at most 2^15 - 1, an intercept at most 2^14. A segment of 512
 * features has a dot product of at most 512 * 2^7 * (2^15 - 1) < 2^31. What multiplies a row is below 2^27 and is cut
 * into two int16, of which a block adds at most 128 * 2^7 * 2^15 = 2^29. Everything else is int64 or float64.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define UNROLLED __attribute__((always_inline)) inline
#else
#define UNROLLED inline
#endif

enum { BLOCK = 128, SEGMENT = 512, PADDING = 32, MAX_FEATURES = (1 << 17) - 1, MOST_RECORDS = 1 << 20, HALF = 18 };
#define RESIDUAL 0x1p22    /* the grid of residuals */
#define PER_RESIDUAL 16.0  /* of the grid of gradients */
#define TABLE_STEP 256.0
#define SHRINK 0.98
#define MIDDLE (1 << 20)   /* the label of the number 0; that of 1 is twice as large */

typedef struct { const int8_t *at; size_t stride; } Rows;

/* The dot products of features from..end of n rows with every class: dots[class][row]. */
typedef void (*DotsFn)(Rows, int n, const int16_t *weights, size_t from, size_t end, size_t stride, int classes,
                       int32_t *dots);
/* |row|² of n rows. */
typedef void (*SquaresFn)(Rows, int n, size_t padded, double *squared);
/* Adds rows times added[class][row] * 2^shift to total[class][feature]. */
typedef void (*OuterFn)(Rows, int n, const int16_t *added, int shift, int64_t *total, size_t d, size_t lines,
                        int classes);

typedef struct {
    size_t d, padded, n;
    int classes;
    const int8_t *values;     /* [record][feature] */
    const int16_t *weights;   /* [class][feature], zeros up to `padded` */
    const double *intercepts; /* the weight of the intercept for each class */
    const float *table;       /* of whole numbers */
    int table_end;
    double unit, ratio;       /* the value of a weight; intercept over length of a row */
    double bound;             /* above 0: the model says a number, and residuals are cut here */
} Model;

typedef struct {
    Model model;
    const int64_t *labels;  /* of records */
    const int64_t *starts;  /* the first record of each owner, and the end */
    const double *most;     /* the largest squared gradient of each owner */
    const int64_t *limits;
    double per_square, max_units;
    int64_t *charges, *total; /* of owners; [class][feature] with the intercept last */
} Step;

/* What is known about the records of a block, and room for what is added. */
typedef struct {
    int8_t *copy;             /* padded rows, if features are not a multiple of PADDING */
    double *score;            /* [class][row]: scores, then probabilities, then residuals */
    int32_t *added;           /* [class][row]: dot products, then what rows are multiplied by */
    int16_t *low, *high;
    double squared[BLOCK], length[BLOCK], first[BLOCK], second[BLOCK];
    int32_t intercept[BLOCK];
    int32_t *whole, *own;     /* of an owner of many records: [class][record], and their intercepts */
    int64_t *sums;            /* the same owner's gradient */
    size_t many;              /* the most records of one owner */
} Work;

typedef struct Level {
    const char *name;
    DotsFn dots;
    OuterFn outer;
    SquaresFn squares;
    void (*forward)(const struct Level *, const Model *, Rows, int n, Work *);
    void (*residuals)(const Model *, const int64_t *labels, int n, Work *);
    void (*singles)(const Step *, size_t owner, int n, Work *);
    void (*cut)(const Model *, int n, size_t offset, Work *);
    int (*halves)(const int32_t *added, const int32_t *intercept, int n, int16_t *low, int16_t *high, int64_t *last);
    double (*squared)(const int64_t *sums, size_t size);
} Level;

/* At most so many classes at a time, in groups of equal size. */
static inline int group(int classes, int most)
{
    const int groups = (classes + most - 1) / most;
    return (classes + groups - 1) / groups;
}

/* ---- plain C ------------------------------------------------------------------------------------------- */

static void dots_plain(Rows rows, int n, const int16_t *weights, size_t from, size_t end, size_t stride, int classes,
                       int32_t *dots)
{
    int16_t wide[SEGMENT];
    for (int r = 0; r < n; r++) {
        for (size_t i = from; i < end; i++)
            wide[i - from] = rows.at[(size_t)r * rows.stride + i];
        for (int k = 0; k < classes; k++) {
            const int16_t *w = weights + (size_t)k * stride + from;
            int32_t sum = 0;
            for (size_t i = 0; i < end - from; i++)
                sum += wide[i] * w[i];
            dots[k * BLOCK + r] = sum;
        }
    }
}

static void squares_plain(Rows rows, int n, size_t padded, double *squared)
{
    for (int r = 0; r < n; r++) {
        int32_t sum = 0;
        for (size_t i = 0; i < padded; i++)
            sum += rows.at[(size_t)r * rows.stride + i] * rows.at[(size_t)r * rows.stride + i];
        squared[r] = sum;
    }
}

static void outer_plain(Rows rows, int n, const int16_t *added, int shift, int64_t *total, size_t d, size_t lines,
                        int classes)
{
    for (int k = 0; k < classes; k++)
        for (size_t at = 0; at < d; at += SEGMENT) {
            const size_t width = d - at < SEGMENT ? d - at : SEGMENT;
            int32_t sums[SEGMENT] = {0};
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < width; i++)
                    sums[i] += added[k * BLOCK + r] * rows.at[(size_t)r * rows.stride + at + i];
            for (size_t i = 0; i < width; i++)
                total[(size_t)k * lines + at + i] += (int64_t)sums[i] * (1 << shift);
        }
}

/* The probabilities of every class for n rows, or their numbers. */
static UNROLLED void forward_body(const Level *level, const Model *m, Rows rows, int n, Work *w)
{
    double *top = w->first, *sum = w->second, factor[BLOCK];
    level->squares(rows, n, m->padded, w->squared);
    for (int r = 0; r < n; r++) {
        const double nearest = rint(sqrt(w->squared[r]) * m->ratio), intercept = nearest > 1.0 ? nearest : 1.0;
        w->intercept[r] = (int32_t)intercept;
        w->squared[r] += intercept * intercept;
        w->length[r] = sqrt(w->squared[r]);
        factor[r] = m->unit / w->length[r];
        top[r] = -INFINITY;
        sum[r] = 0.0;
    }
    for (size_t from = 0; from < m->padded; from += SEGMENT) {
        const size_t end = m->padded - from < SEGMENT ? m->padded : from + SEGMENT;
        level->dots(rows, n, m->weights, from, end, m->padded, m->classes, w->added);
        for (int k = 0; k < m->classes; k++)
            for (int r = 0; r < n; r++)
                w->score[k * BLOCK + r] = (from ? w->score[k * BLOCK + r] : 0.0) + w->added[k * BLOCK + r];
    }
    for (int k = 0; k < m->classes; k++) {
        double *score = w->score + k * BLOCK;
        const double last = m->intercepts[k];
        for (int r = 0; r < n; r++) {
            score[r] = (score[r] + w->intercept[r] * last) * factor[r];
            top[r] = score[r] > top[r] ? score[r] : top[r];
        }
    }
    if (m->bound > 0.0)
        return; /* the score is the number */
    for (int k = 0; k < m->classes; k++) {
        double *score = w->score + k * BLOCK;
        int32_t place[BLOCK];
        for (int r = 0; r < n; r++) {
            const double behind = (top[r] - score[r]) * TABLE_STEP;
            place[r] = (int32_t)(behind < m->table_end ? behind : m->table_end);
        }
        for (int r = 0; r < n; r++) {
            score[r] = m->table[place[r]];
            sum[r] += score[r];
        }
    }
    for (int k = 0; k < m->classes; k++)
        for (int r = 0; r < n; r++)
            w->score[k * BLOCK + r] /= sum[r];
}

/* Probabilities minus the label, or a number minus the label's, on the grid, and the sum of their squares for each row. */
static UNROLLED void residuals_body(const Model *m, const int64_t *labels, int n, Work *w)
{
    for (int r = 0; r < n; r++)
        w->first[r] = 0.0;
    if (m->bound > 0.0)
        for (int r = 0; r < n; r++) {
            const double wrong = w->score[r] - (double)(labels[r] - MIDDLE) / MIDDLE;
            const double least = wrong > -m->bound ? wrong : -m->bound;
            w->score[r] = least < m->bound ? least : m->bound;
        }
    else
        for (int r = 0; r < n; r++)
            w->score[labels[r] * BLOCK + r] -= 1.0;
    for (int k = 0; k < m->classes; k++) {
        double *wrong = w->score + k * BLOCK;
        for (int r = 0; r < n; r++) {
            wrong[r] = rint(wrong[r] * RESIDUAL);
            w->first[r] += wrong[r] * wrong[r];
        }
    }
}

/* What each record of n people is multiplied by, and what these people pay. */
static UNROLLED void singles_body(const Step *s, size_t owner, int n, Work *w)
{
    double *factor = w->first, *squared = w->second;
    for (int r = 0; r < n; r++) {
        const double size = sqrt(w->first[r]) * PER_RESIDUAL;
        const double shrink = sqrt(s->most[owner + r]) / (size > 1e-300 ? size : 1e-300);
        factor[r] = (shrink < 1.0 ? shrink : 1.0) * PER_RESIDUAL / w->length[r];
        squared[r] = 0.0;
    }
    for (int k = 0; k < s->model.classes; k++)
        for (int r = 0; r < n; r++) {
            const int32_t added = (int32_t)(w->score[k * BLOCK + r] * factor[r]);
            w->added[k * BLOCK + r] = added;
            squared[r] += (double)added * added;
        }
    int unable = 0;
    for (int r = 0; r < n; r++) {
        const double units = ceil(w->squared[r] * squared[r] * s->per_square);
        const int64_t charge = (int64_t)(units < s->max_units ? units : s->max_units);
        const int able = charge <= s->limits[owner + r];
        s->charges[owner + r] = able ? charge : 0;
        unable |= !able;
    }
    for (int r = 0; unable && r < n; r++)
        if (!s->charges[owner + r])
            for (int k = 0; k < s->model.classes; k++)
                w->added[k * BLOCK + r] = 0;
}

/* The gradients of records of somebody who has many, before they are clipped. */
static UNROLLED void cut_body(const Model *m, int n, size_t offset, Work *w)
{
    for (int r = 0; r < n; r++)
        w->first[r] = PER_RESIDUAL / w->length[r];
    for (int k = 0; k < m->classes; k++)
        for (int r = 0; r < n; r++)
            w->whole[(size_t)k * w->many + offset + r] = (int32_t)(w->score[k * BLOCK + r] * w->first[r]);
    memcpy(w->own + offset, w->intercept, (size_t)n * sizeof *w->own);
}

/* Cuts numbers into two int16, adds what they give the intercept to `last`, and tells whether any needs the upper one. */
static UNROLLED int halves_body(const int32_t *added, const int32_t *intercept, int n, int16_t *low, int16_t *high,
                                int64_t *last)
{
    int32_t tall = 0;
    int64_t sum = 0;
    for (int r = 0; r < n; r++) {
        low[r] = (int16_t)added[r];
        high[r] = (int16_t)((added[r] - low[r]) / 65536);
        tall |= high[r];
        sum += (int64_t)added[r] * intercept[r];
    }
    *last += sum;
    return tall != 0;
}

/* |sums|² from three exact sums. A number is cut into halves of the same sign, so nothing cancels. Every half is
 * below 2^31, because |sums| of at most 2^20 records is below 2^47. */
static UNROLLED double squared_body(const int64_t *sums, size_t size)
{
    uint64_t high = 0, mixed = 0, low = 0;
    for (size_t i = 0; i < size; i++) {
        const uint64_t u = sums[i] < 0 ? 0 - (uint64_t)sums[i] : (uint64_t)sums[i];
        const uint32_t h = (uint32_t)(u >> HALF), l = (uint32_t)(u & ((1u << HALF) - 1));
        high += (uint64_t)h * h;
        mixed += (uint64_t)h * l;
        low += (uint64_t)l * l;
    }
    return ((double)(int64_t)high * 0x1p36 + (double)(int64_t)mixed * 0x1p19) + (double)(int64_t)low;
}

#define BODIES(name, TARGET)                                                                                         \
    TARGET static void forward_##name(const Level *level, const Model *m, Rows rows, int n, Work *w)                 \
    {                                                                                                                \
        forward_body(level, m, rows, n, w);                                                                          \
    }                                                                                                                \
    TARGET static void residuals_##name(const Model *m, const int64_t *labels, int n, Work *w)                       \
    {                                                                                                                \
        residuals_body(m, labels, n, w);                                                                             \
    }                                                                                                                \
    TARGET static void singles_##name(const Step *s, size_t owner, int n, Work *w) { singles_body(s, owner, n, w); } \
    TARGET static void cut_##name(const Model *m, int n, size_t offset, Work *w) { cut_body(m, n, offset, w); }     \
    TARGET static int halves_##name(const int32_t *added, const int32_t *intercept, int n, int16_t *low,             \
                                    int16_t *high, int64_t *last)                                                    \
    {                                                                                                                \
        return halves_body(added, intercept, n, low, high, last);                                                    \
    }                                                                                                                \
    TARGET static double squared_##name(const int64_t *sums, size_t size) { return squared_body(sums, size); }

BODIES(plain, )

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_X86
#include "_training_x86.h"
#endif

static Level LEVELS[3];
static int N_LEVELS;

/* What this machine can do, plainest first. */
static int available_levels(Level *levels)
{
    int n = 0;
    levels[n++] = (Level){"scalar", dots_plain, outer_plain, squares_plain, forward_plain, residuals_plain, singles_plain, cut_plain, halves_plain, squared_plain};
#ifdef HAVE_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        levels[n++] = (Level){"avx2", dots_avx2, outer_avx2, squares_avx2, forward_avx2, residuals_avx2, singles_avx2, cut_avx2, halves_avx2, squared_avx2};
    if (n == 2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
        levels[n++] = (Level){"avx512vnni",   dots_avx512,      outer_avx512,   squares_avx512,
                              forward_avx512, residuals_avx512, singles_avx512, cut_avx512, halves_avx512, squared_avx512};
#endif
    return n;
}

/* ---- a block of rows, and an owner of many --------------------------------------------------------------- */

static Rows rows_at(const Model *m, size_t first, int n, Work *w)
{
    const int8_t *at = m->values + first * m->d;
    if (m->d == m->padded)
        return (Rows){at, m->d};
    for (int r = 0; r < n; r++)
        memcpy(w->copy + (size_t)r * m->padded, at + (size_t)r * m->d, m->d); /* what follows stays zero */
    return (Rows){w->copy, m->padded};
}

/* Adds rows times added[class][row] to total, intercepts included.
 *
 * Few blocks have a number above 2^15, which needs a second product, so the time depends on private rows. It may: no
 * row is left out (rule 3), and one person decides it for at most the blocks that hold their records, which are a
 * bounded number, for some microseconds each. That is no more than a record more or less takes. Nobody sees when a step
 * ends: a model shows at a moment that was fixed from the released count (rule 17).
 */
static void add_rows(const Level *level, const Model *m, Rows rows, int n, const int32_t *added, size_t stride,
                     const int32_t *intercept, int64_t *total, Work *w)
{
    int tall = 0;
    for (int k = 0; k < m->classes; k++) {
        int16_t *low = w->low + k * BLOCK, *high = w->high + k * BLOCK;
        int64_t *last = total + (size_t)k * (m->d + 1) + m->d;
        tall |= level->halves(added + (size_t)k * stride, intercept, n, low, high, last);
        if (n % 2)
            low[n] = high[n] = 0; /* the last row has no neighbour */
    }
    level->outer(rows, n, w->low, 0, total, m->d, m->d + 1, m->classes);
    if (tall)
        level->outer(rows, n, w->high, 16, total, m->d, m->d + 1, m->classes);
}

/* Sets w->sums to the rows of an owner times what is in w->whole, made smaller by `shrink`. */
static double summed(const Level *level, const Model *m, size_t first, size_t count, double shrink, Work *w)
{
    const size_t size = (size_t)m->classes * (m->d + 1);
    memset(w->sums, 0, size * sizeof *w->sums);
    for (size_t at = 0; at < count; at += BLOCK) {
        const int n = (int)(count - at < BLOCK ? count - at : BLOCK);
        for (int k = 0; k < m->classes; k++)
            for (int r = 0; r < n; r++)
                w->added[k * BLOCK + r] = (int32_t)((double)w->whole[(size_t)k * w->many + at + r] * shrink);
        add_rows(level, m, rows_at(m, first + at, n, w), n, w->added, BLOCK, w->own + at, w->sums, w);
    }
    return level->squared(w->sums, size);
}

/* The gradient of an owner of many records. Rounding can lengthen a sum a little. Then a little less is added. */
static void add_owner(const Level *level, const Step *s, size_t owner, Work *w)
{
    const Model *m = &s->model;
    const size_t first = (size_t)s->starts[owner], count = (size_t)s->starts[owner + 1] - first;
    const size_t size = (size_t)m->classes * (m->d + 1);
    const double most = s->most[owner];
    if (count > MOST_RECORDS)
        return;
    double squared = summed(level, m, first, count, 1.0, w);
    double shrink = sqrt(most) / (sqrt(squared) + sqrt((double)size));
    shrink = shrink < 1.0 ? shrink : 1.0;
    for (int tries = 0; tries < 8; tries++, shrink *= SHRINK) {
        if (shrink < 1.0) /* otherwise nothing changes */
            squared = summed(level, m, first, count, shrink, w);
        if (squared <= most) {
            const double units = ceil(squared * s->per_square);
            const int64_t charge = (int64_t)(units < s->max_units ? units : s->max_units);
            if (charge > s->limits[owner])
                return;
            s->charges[owner] = charge;
            for (size_t i = 0; i < size; i++)
                s->total[i] += w->sums[i];
            return;
        }
    }
}

/* The gradients of the owners from `owner` to `end`. */
static void add_owners(const Level *level, const Step *s, size_t owner, size_t end, Work *w)
{
    const Model *m = &s->model;
    while (owner < end) {
        const size_t first = (size_t)s->starts[owner];
        const size_t count = (size_t)s->starts[owner + 1] - first;
        size_t next = owner + 1;
        if (count > 1) {
            for (size_t at = 0; at < count; at += BLOCK) {
                const int n = (int)(count - at < BLOCK ? count - at : BLOCK);
                level->forward(level, m, rows_at(m, first + at, n, w), n, w);
                level->residuals(m, s->labels + first + at, n, w);
                level->cut(m, n, at, w);
            }
            add_owner(level, s, owner, w);
        } else {
            while (next < end && next - owner < BLOCK && s->starts[next + 1] - s->starts[next] == 1)
                next++;
            const int n = (int)(next - owner);
            const Rows rows = rows_at(m, first, n, w);
            level->forward(level, m, rows, n, w);
            level->residuals(m, s->labels + first, n, w);
            level->singles(s, owner, n, w);
            add_rows(level, m, rows, n, w->added, BLOCK, w->intercept, s->total, w);
        }
        owner = next;
    }
}

/* ---- the Python face ------------------------------------------------------------------------------------ */

static void free_work(Work *w)
{
    if (!w)
        return;
    void *all[] = {w->copy, w->score, w->added, w->low, w->high, w->whole, w->own, w->sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(w);
}

/* Room for blocks, and for an owner of `many` records if that is above 1. */
static Work *make_work(const Model *m, size_t many)
{
    const size_t cells = (size_t)m->classes * BLOCK;
    Work *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->many = many;
    w->copy = calloc(m->d == m->padded ? 1 : BLOCK, m->padded);
    w->score = malloc(cells * sizeof *w->score);
    w->added = malloc(cells * sizeof *w->added);
    w->low = malloc(cells * sizeof *w->low);
    w->high = malloc(cells * sizeof *w->high);
    if (many > 1) {
        w->whole = malloc((size_t)m->classes * many * sizeof *w->whole);
        w->own = malloc(many * sizeof *w->own);
        w->sums = malloc((size_t)m->classes * (m->d + 1) * sizeof *w->sums);
    }
    if (w->copy && w->score && w->added && w->low && w->high && (many < 2 || (w->whole && w->own && w->sums)))
        return w;
    free_work(w);
    return NULL;
}

/* The buffers that describe rows and a model: values, weights, intercepts, table. */
static const char *read_model(Model *m, const Py_buffer *b, Py_ssize_t d, int level)
{
    if (d < 1 || d > MAX_FEATURES || b[0].len % d || level < 0 || level >= N_LEVELS)
        return "values must be rows of 1 to 2^17 - 1 features, and level one of levels()";
    m->d = (size_t)d, m->padded = (size_t)(d + PADDING - 1) / PADDING * PADDING, m->n = (size_t)(b[0].len / d);
    m->classes = (int)(b[2].len / 8), m->table_end = (int)(b[3].len / 4) - 1;
    m->values = b[0].buf, m->weights = b[1].buf, m->intercepts = b[2].buf, m->table = b[3].buf;
    if (!(m->bound >= 0.0 && m->bound <= 1.0) || (m->bound > 0.0 && m->classes != 1))
        return "a bound must be at most 1, and is for one column";
    if (m->classes < 1 || (size_t)b[1].len != (size_t)m->classes * m->padded * 2 || m->table_end < 0)
        return "weights must be int16, one padded line for each of the intercepts";
    return NULL;
}

static const char *read_step(Step *s, const Py_buffer *b, Py_ssize_t owner, Py_ssize_t end, size_t *many)
{
    const Py_ssize_t owners = b[6].len / 8;
    s->labels = b[4].buf, s->starts = b[5].buf, s->most = b[6].buf, s->limits = b[7].buf;
    s->total = b[8].buf, s->charges = b[9].buf;
    if ((size_t)b[4].len != s->model.n * 8 || b[5].len != (owners + 1) * 8 || b[7].len != owners * 8 ||
        b[9].len != owners * 8 || (size_t)b[8].len != (size_t)s->model.classes * (s->model.d + 1) * 8 || owner < 0 ||
        end > owners)
        return "records and owners must have one entry each in what describes them";
    for (Py_ssize_t o = owner; o < end; o++) {
        const int64_t first = s->starts[o], next = s->starts[o + 1];
        if (first < 0 || next <= first || (size_t)next > s->model.n)
            return "every owner must have records of those given";
        for (int64_t i = first; i < next; i++)
            if (s->labels[i] < 0 || s->labels[i] > (s->model.bound > 0.0 ? 2 * MIDDLE : s->model.classes - 1))
                return "labels must be of the classes given";
        *many = (size_t)(next - first) > *many ? (size_t)(next - first) : *many;
    }
    return NULL;
}

static PyObject *finish(Py_buffer *buffers, size_t n, const char *wrong, int failed)
{
    for (size_t i = 0; i < n; i++)
        PyBuffer_Release(&buffers[i]);
    if (failed)
        return PyErr_NoMemory();
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *gradient(PyObject *self, PyObject *args)
{
    Step s = {0};
    Py_buffer b[10];
    Py_ssize_t d, owner, end;
    size_t many = 0;
    int level, failed = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "ny*y*y*y*dddy*y*y*y*ddw*w*nni:gradient", &d, &b[0], &b[1], &b[2], &b[3],
                          &s.model.unit, &s.model.ratio, &s.model.bound, &b[4], &b[5], &b[6], &b[7], &s.per_square,
                          &s.max_units, &b[8], &b[9], &owner, &end, &level))
        return NULL;
    const char *wrong = read_model(&s.model, b, d, level);
    Py_BEGIN_ALLOW_THREADS
    if (!wrong && !(wrong = read_step(&s, b, owner, end, &many))) {
        Work *work = make_work(&s.model, many);
        if (!(failed = !work))
            add_owners(&LEVELS[level], &s, (size_t)owner, (size_t)(end > owner ? end : owner), work);
        free_work(work);
    }
    Py_END_ALLOW_THREADS
    return finish(b, 10, wrong, failed);
}

static PyObject *probabilities(PyObject *self, PyObject *args)
{
    Model m = {0};
    Py_buffer b[5];
    Py_ssize_t d;
    int level, failed = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "ny*y*y*y*dddw*i:probabilities", &d, &b[0], &b[1], &b[2], &b[3], &m.unit, &m.ratio,
                          &m.bound, &b[4], &level))
        return NULL;
    const char *wrong = read_model(&m, b, d, level);
    if (!wrong && (size_t)b[4].len != m.n * (size_t)m.classes * 8)
        wrong = "the result must have one row for each record";
    Py_BEGIN_ALLOW_THREADS
    Work *work = wrong ? NULL : make_work(&m, 0);
    failed = !wrong && !work;
    double *out = b[4].buf;
    for (size_t first = 0; work && first < m.n; first += BLOCK) {
        const int n = (int)(m.n - first < BLOCK ? m.n - first : BLOCK);
        LEVELS[level].forward(&LEVELS[level], &m, rows_at(&m, first, n, work), n, work);
        for (int r = 0; r < n; r++)
            for (int k = 0; k < m.classes; k++)
                *out++ = work->score[k * BLOCK + r];
    }
    free_work(work);
    Py_END_ALLOW_THREADS
    return finish(b, 5, wrong, failed);
}

#include "_levels.h"

static PyMethodDef METHODS[] = {
    {"gradient", gradient, METH_VARARGS,
     "gradient(d, values, weights, intercepts, table, unit, ratio, bound, labels, starts, most, limits, per_square, max_units,\n"
     "total, charges, owner, end, level)\n\nAdds the gradients of some owners to total and sets their charges."},
    {"probabilities", probabilities, METH_VARARGS,
     "probabilities(d, values, weights, intercepts, table, unit, ratio, bound, out, level)\n\nSets out to the softmax."},
    LEVELS_METHOD,
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_training", "A step of training in one pass.", -1, METHODS,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__training(void)
{
    N_LEVELS = available_levels(LEVELS);
    return PyModule_Create(&MODULE);
}
