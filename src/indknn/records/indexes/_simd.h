/* The inner loops of the scan, once per instruction set. `_native.c` has the rest.
 *
 * Every loop computes the same integers. Nothing here saturates: the products of two int8 are widened before
 * they are added, or are added into 32 bits by VNNI, whose sums wrap modulo 2^32 and so come out right for
 * every dot product that fits into 32 bits. The one floating-point step, `(float)dot >= root * factor`, is a
 * conversion, a product and a comparison, each correctly rounded: the same bits in every lane of every CPU.
 */
#ifndef INDKNN_SIMD_H
#define INDKNN_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_X86 1
#include <immintrin.h>
#elif defined(__GNUC__) && defined(__aarch64__)
#define HAVE_NEON 1
#include <arm_neon.h>
#endif

#if defined(__GNUC__)
#define PREFETCH(p) __builtin_prefetch(p)
#define UNROLLED __attribute__((always_inline)) inline
#define COUNT_TRAILING(m) __builtin_ctzll(m)
#else
#define PREFETCH(p) ((void)0)
#define UNROLLED inline
static int COUNT_TRAILING(uint64_t m) { int i = 0; while (!(m & 1)) { m >>= 1; i++; } return i; }
#endif

enum { AHEAD = 4096 }; /* bytes: the hardware looks ahead within a page, this helps it over the edge */
enum { LANES = 64, TILE = 48, BLOCK = 256 }; /* queries per pass; rows per batch tile; rows per single block */

typedef struct { const int8_t *base, *end; size_t d; } Rows;

typedef struct {
    const int8_t *narrow;  /* the query, zero-padded to a multiple of 64 */
    const int16_t *wide;   /* the same, widened */
    int32_t offset;        /* 128 * sum(query): what reading a row as unsigned adds */
} Query;

typedef struct {
    int count;             /* queries in the panel, at most LANES */
    size_t d, padded;      /* features, and features rounded up to a multiple of 64 */
    const Query *queries;
    void *packed;          /* the queries interleaved as the level likes them, or NULL */
    float factors[LANES];  /* +inf in the lanes that hold no query: nothing passes */
    int32_t offsets[LANES];
} Panel;

/* The dot products of n rows: start, start+1, ... or those in `slots`. `out` has room for n rounded up to 4. */
typedef void (*DotsFn)(const Rows *, const int64_t *slots, int64_t start, int n, const Query *, int32_t *out);
/* The dot products of n <= TILE rows with the panel, LANES apart, and a bit per lane where the dot passes. */
typedef void (*PanelFn)(const Rows *, int64_t start, int n, const Panel *, const float *roots, void *scratch,
                        uint64_t *passed, int32_t *dots);
/* Slots in [start, start + n) whose code has any byte (or pair of bytes) equal to the query's. */
typedef int (*EqualFn)(const uint8_t *codes, size_t size, int pairs, const uint8_t *end, int64_t start, int n,
                       const uint8_t *query, int64_t *out);
/* Slots in [start, start + n) whose code differs from the query's in at most `cut` bits; size is 8k. */
typedef int (*HammingFn)(const uint8_t *codes, size_t size, int64_t start, int n, const uint8_t *query,
                         int64_t cut, int64_t *out);
typedef void (*PackFn)(Panel *);
/* Flags of the rows whose dot passes. */
typedef void (*PassFn)(const int32_t *dots, const float *roots, float factor, int n, uint8_t *flags);
/* Read the bytes and tell whether any is not zero. */
typedef int (*TouchFn)(const int8_t *at, size_t size);

typedef struct {
    const char *name;
    DotsFn dots;
    PanelFn panel;
    PackFn pack;           /* NULL: the panel needs no packing */
    EqualFn equal;
    HammingFn hamming;
    PassFn pass;
    TouchFn touch;
} Level;

/* ---- memory that starts on a cache line ---------------------------------------------------------------- */

static void *aligned_new(size_t size)
{
    char *raw = malloc(size + 128);
    if (!raw)
        return NULL;
    char *at = (char *)(((uintptr_t)raw + 64 + sizeof raw) & ~(uintptr_t)63);
    memcpy(at - sizeof raw, &raw, sizeof raw);
    return at;
}

static void aligned_free(void *at)
{
    char *raw;
    if (!at)
        return;
    memcpy(&raw, (char *)at - sizeof raw, sizeof raw);
    free(raw);
}

/* ---- plain C: the oracle of the others, and good enough wherever the compiler vectorises it ------------- */

static int32_t dot_plain(const int8_t *x, const int8_t *q, size_t d)
{
    int32_t total = 0;
    for (size_t j = 0; j < d; j++)
        total += (int32_t)x[j] * q[j];
    return total;
}

static inline const int8_t *row_at(const Rows *rows, const int64_t *slots, int64_t start, int i)
{
    return rows->base + (size_t)(slots ? slots[i] : start + i) * rows->d;
}

/* Candidates lie far apart: ask for a row some rounds before it is needed. */
static inline void fetch_ahead(const Rows *rows, const int64_t *slots, int i, int n)
{
    if (slots && i < n)
        for (size_t j = 0; j < rows->d; j += 64)
            PREFETCH(rows->base + (size_t)slots[i] * rows->d + j);
}

static void dots_plain(const Rows *rows, const int64_t *slots, int64_t start, int n, const Query *q, int32_t *out)
{
    for (int i = 0; i < n; i++)
        out[i] = dot_plain(row_at(rows, slots, start, i), q->narrow, rows->d);
}

static void panel_by_dots(DotsFn dots_of, const Rows *rows, int64_t start, int n, const Panel *p,
                          const float *roots, uint64_t *passed, int32_t *dots)
{
    int32_t column[TILE + 4];
    memset(passed, 0, (size_t)n * sizeof *passed);
    for (int c = 0; c < p->count; c++) {
        dots_of(rows, NULL, start, n, &p->queries[c], column);
        for (int i = 0; i < n; i++) {
            float least = roots[i] * p->factors[c];
            dots[i * LANES + c] = column[i];
            passed[i] |= (uint64_t)((float)column[i] >= least) << c;
        }
    }
}

static void panel_plain(const Rows *rows, int64_t start, int n, const Panel *p, const float *roots, void *scratch,
                        uint64_t *passed, int32_t *dots)
{
    (void)scratch;
    panel_by_dots(dots_plain, rows, start, n, p, roots, passed, dots);
}

static int any_equal(const uint8_t *code, const uint8_t *query, size_t size, int pairs)
{
    int hit = 0;
    if (pairs)
        for (size_t j = 0; j < size; j += 2)
            hit |= (code[j] == query[j]) & (code[j + 1] == query[j + 1]);
    else
        for (size_t j = 0; j < size; j++)
            hit |= code[j] == query[j];
    return hit;
}

static int equal_plain(const uint8_t *codes, size_t size, int pairs, const uint8_t *end, int64_t start, int n,
                       const uint8_t *query, int64_t *out)
{
    int found = 0;
    (void)end;
    for (int i = 0; i < n; i++) {
        out[found] = start + i;
        found += any_equal(codes + (size_t)(start + i) * size, query, size, pairs);
    }
    return found;
}

static inline int bits_plain(uint64_t x)
{
    x -= (x >> 1) & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
    return (int)((((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u) >> 56);
}

#define HAMMING_BODY(BITS)                                                                 \
    int found = 0;                                                                         \
    for (int i = 0; i < n; i++) {                                                          \
        const uint8_t *code = codes + (size_t)(start + i) * size;                          \
        int64_t distance = 0;                                                              \
        PREFETCH(code + AHEAD);                                                            \
        for (size_t j = 0; j < size; j += 8) {                                             \
            uint64_t a, b;                                                                 \
            memcpy(&a, code + j, 8);                                                       \
            memcpy(&b, query + j, 8);                                                      \
            distance += BITS(a ^ b);                                                       \
        }                                                                                  \
        out[found] = start + i;                                                            \
        found += distance <= cut;                                                          \
    }                                                                                      \
    return found;

static UNROLLED void pass_body(const int32_t *dots, const float *roots, float factor, int n, uint8_t *flags)
{
    for (int i = 0; i < n; i++)
        flags[i] = (float)dots[i] >= roots[i] * factor;
}

static void pass_plain(const int32_t *dots, const float *roots, float factor, int n, uint8_t *flags)
{
    pass_body(dots, roots, factor, n, flags);
}

static UNROLLED int touch_body(const int8_t *at, size_t size)
{
    uint64_t word[8], seen[8] = {0};
    for (; size >= sizeof word; at += sizeof word, size -= sizeof word) {
        PREFETCH(at + AHEAD);
        memcpy(word, at, sizeof word);
        for (int k = 0; k < 8; k++)
            seen[k] |= word[k];
    }
    for (; size > 0; size--)
        seen[0] |= (uint64_t)*at++;
    return (seen[0] | seen[1] | seen[2] | seen[3] | seen[4] | seen[5] | seen[6] | seen[7]) != 0;
}

static int touch_plain(const int8_t *at, size_t size) { return touch_body(at, size); }

static int hamming_plain(const uint8_t *codes, size_t size, int64_t start, int n, const uint8_t *query,
                         int64_t cut, int64_t *out)
{
    HAMMING_BODY(bits_plain)
}

/* ---- NEON ---------------------------------------------------------------------------------------------- */
#ifdef HAVE_NEON
static void dots_neon(const Rows *rows, const int64_t *slots, int64_t start, int n, const Query *q, int32_t *out)
{
    const size_t whole = rows->d & ~(size_t)15;
    for (int i = 0; i < n; i++) {
        const int8_t *x = row_at(rows, slots, start, i);
        fetch_ahead(rows, slots, i + 8, n);
        int32x4_t acc = vdupq_n_s32(0);
        for (size_t j = 0; j < whole; j += 16) {
            int8x16_t a = vld1q_s8(x + j), b = vld1q_s8(q->narrow + j);
#ifdef __ARM_FEATURE_DOTPROD
            acc = vdotq_s32(acc, a, b);
#else
            acc = vpadalq_s16(acc, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            acc = vpadalq_s16(acc, vmull_s8(vget_high_s8(a), vget_high_s8(b)));
#endif
        }
        out[i] = vaddvq_s32(acc) + dot_plain(x + whole, q->narrow + whole, rows->d - whole);
    }
}

static void panel_neon(const Rows *rows, int64_t start, int n, const Panel *p, const float *roots, void *scratch,
                       uint64_t *passed, int32_t *dots)
{
    (void)scratch;
    panel_by_dots(dots_neon, rows, start, n, p, roots, passed, dots);
}

static inline int bits_neon(uint64_t x) { return vaddv_u8(vcnt_u8(vcreate_u8(x))); }

static int hamming_neon(const uint8_t *codes, size_t size, int64_t start, int n, const uint8_t *query, int64_t cut,
                        int64_t *out)
{
    HAMMING_BODY(bits_neon)
}
#endif /* HAVE_NEON */

#endif
