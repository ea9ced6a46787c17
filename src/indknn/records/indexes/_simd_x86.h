/* The inner loops for x86-64, compiled for newer CPUs than the rest and called only where those are there. */
#ifndef INDKNN_SIMD_X86_H
#define INDKNN_SIMD_X86_H

#include "_simd.h"

/* ---- AVX2 ---------------------------------------------------------------------------------------------- */
#define AVX2 __attribute__((target("avx2,popcnt")))

/* Reads 16 bytes at a time, past the end of a row into the next, where the padded query is zero. The last
 * rows of the store have no next, and go the plain way. */
AVX2 static void dots_avx2(const Rows *rows, const int64_t *slots, int64_t start, int n, const Query *q,
                           int32_t *out)
{
    const size_t steps = (rows->d + 15) / 16;
    for (int i = 0; i < n; i++) {
        const int8_t *x = row_at(rows, slots, start, i);
        fetch_ahead(rows, slots, i + 8, n);
        if ((size_t)(rows->end - x) < steps * 16) {
            out[i] = dot_plain(x, q->narrow, rows->d);
            continue;
        }
        __m256i a = _mm256_setzero_si256(), b = a;
        size_t j = 0;
        for (; j + 2 <= steps; j += 2) {
            if (!slots)
                PREFETCH(x + 16 * j + AHEAD);
            __m256i x0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(x + 16 * j)));
            __m256i x1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(x + 16 * j + 16)));
            a = _mm256_add_epi32(a, _mm256_madd_epi16(x0, _mm256_load_si256((const __m256i *)(q->wide + 16 * j))));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(x1, _mm256_load_si256((const __m256i *)(q->wide + 16 * j + 16))));
        }
        if (j < steps) {
            __m256i x0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(x + 16 * j)));
            a = _mm256_add_epi32(a, _mm256_madd_epi16(x0, _mm256_load_si256((const __m256i *)(q->wide + 16 * j))));
        }
        a = _mm256_add_epi32(a, b);
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
        out[i] = _mm_cvtsi128_si32(s);
    }
}

/* Queries in groups of 16, two features side by side: [group][pair of features][lane][2], widened. */
static void pack_avx2(Panel *p)
{
    int16_t *to = p->packed;
    for (int group = 0; group < p->count; group += 16)
        for (size_t k = 0; k < p->padded; k += 2)
            for (int lane = group; lane < group + 16; lane++, to += 2)
                for (int b = 0; b < 2; b++)
                    to[b] = lane < p->count ? p->queries[lane].narrow[k + b] : 0;
}

AVX2 static void panel_avx2(const Rows *rows, int64_t start, int n, const Panel *p, const float *roots,
                            void *scratch, uint64_t *passed, int32_t *dots)
{
    enum { R = 4 };
    int16_t *wide = scratch;
    const size_t pairs = (p->d + 1) / 2, stride = p->padded;
    memset(passed, 0, (size_t)n * sizeof *passed);
    for (int i = 0; i < n; i += R) {
        const int8_t *row[R];
        for (int r = 0; r < R; r++) {
            row[r] = row_at(rows, NULL, start, i + r < n ? i + r : n - 1);
            for (size_t j = 0; j < p->d; j++)
                wide[r * stride + j] = row[r][j];
            if (p->d & 1)
                wide[r * stride + p->d] = 0;
        }
        for (int group = 0; group < p->count; group += 16) {
            const int16_t *q = (const int16_t *)p->packed + (size_t)group * p->padded;
            __m256i acc[R][2];
            for (int r = 0; r < R; r++)
                acc[r][0] = acc[r][1] = _mm256_setzero_si256();
            for (size_t k = 0; k < pairs; k++, q += 32) {
                const __m256i q0 = _mm256_load_si256((const __m256i *)q), q1 = _mm256_load_si256((const __m256i *)(q + 16));
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    int32_t pair;
                    memcpy(&pair, wide + r * stride + 2 * k, 4);
                    const __m256i x = _mm256_set1_epi32(pair);
                    acc[r][0] = _mm256_add_epi32(acc[r][0], _mm256_madd_epi16(x, q0));
                    acc[r][1] = _mm256_add_epi32(acc[r][1], _mm256_madd_epi16(x, q1));
                }
            }
            for (int r = 0; r < R && i + r < n; r++)
                for (int v = 0; v < 2; v++) {
                    const int lane = group + 8 * v;
                    __m256 least = _mm256_mul_ps(_mm256_set1_ps(roots[i + r]), _mm256_loadu_ps(p->factors + lane));
                    __m256 hit = _mm256_cmp_ps(_mm256_cvtepi32_ps(acc[r][v]), least, _CMP_GE_OQ);
                    passed[i + r] |= (uint64_t)_mm256_movemask_ps(hit) << lane;
                    _mm256_storeu_si256((__m256i *)(dots + (i + r) * LANES + lane), acc[r][v]);
                }
        }
    }
}

AVX2 static int equal_avx2(const uint8_t *codes, size_t size, int pairs, const uint8_t *end, int64_t start, int n,
                           const uint8_t *query, int64_t *out)
{
    const uint8_t *code = codes + (size_t)start * size;
    int found = 0;
    for (int i = 0; i < n; i++, code += size) {
        uint32_t hit = 0;
        PREFETCH(code + AHEAD);
        if ((size_t)(end - code) < size + 31)
            hit = (uint32_t)any_equal(code, query, size, pairs);
        else
            for (size_t j = 0; j < size; j += 32) {
                __m256i a = _mm256_loadu_si256((const __m256i *)(code + j));
                __m256i b = _mm256_loadu_si256((const __m256i *)(query + j));
                __m256i same = pairs ? _mm256_cmpeq_epi16(a, b) : _mm256_cmpeq_epi8(a, b);
                uint32_t valid = size - j < 32 ? (1u << (size - j)) - 1 : 0xffffffffu;
                hit |= (uint32_t)_mm256_movemask_epi8(same) & valid;
            }
        out[found] = start + i;
        found += hit != 0;
    }
    return found;
}

AVX2 static int hamming_avx2(const uint8_t *codes, size_t size, int64_t start, int n, const uint8_t *query,
                             int64_t cut, int64_t *out)
{
    HAMMING_BODY(_mm_popcnt_u64)
}

AVX2 static void pass_avx2(const int32_t *dots, const float *roots, float factor, int n, uint8_t *flags)
{
    pass_body(dots, roots, factor, n, flags);
}

AVX2 static int touch_avx2(const int8_t *at, size_t size) { return touch_body(at, size); }

/* ---- AVX-512 with VNNI --------------------------------------------------------------------------------- */
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,popcnt")))

AVX512 static inline __m128i to_quarter(__m512i a)
{
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* VPDPBUSD multiplies unsigned by signed bytes. A row with its sign bits flipped is the row plus 128, so the
 * sum is the dot product plus 128 * sum(query), which is known beforehand. */
AVX512 static void dots_avx512(const Rows *rows, const int64_t *slots, int64_t start, int n, const Query *q,
                               int32_t *out)
{
    const size_t d = rows->d, whole = d & ~(size_t)63;
    const __mmask64 tail = ((__mmask64)1 << (d & 63)) - 1;
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (int i = 0; i < n; i += 4) {
        const int8_t *x[4];
        __m512i acc[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            x[r] = row_at(rows, slots, start, i + r < n ? i + r : n - 1);
            acc[r] = _mm512_setzero_si512();
            fetch_ahead(rows, slots, i + r + 8, n);
        }
        /* Row after row, so that memory is read in order: the hardware then looks ahead by itself. Four rows side by
         * side with prefetches took twice as long on a Zen 4, where this takes as long as reading alone. */
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
            for (size_t j = 0; j < whole; j += 64) {
                const __m512i a = _mm512_xor_si512(_mm512_loadu_si512(x[r] + j), flip);
                acc[r] = _mm512_dpbusd_epi32(acc[r], a, _mm512_load_si512(q->narrow + j));
            }
        if (tail) {
            const __m512i b = _mm512_load_si512(q->narrow + whole);
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                const __m512i a = _mm512_maskz_loadu_epi8(tail, x[r] + whole);
                acc[r] = _mm512_dpbusd_epi32(acc[r], _mm512_xor_si512(a, flip), b);
            }
        }
        __m128i s01 = _mm_hadd_epi32(to_quarter(acc[0]), to_quarter(acc[1]));
        __m128i s23 = _mm_hadd_epi32(to_quarter(acc[2]), to_quarter(acc[3]));
        __m128i sums = _mm_sub_epi32(_mm_hadd_epi32(s01, s23), _mm_set1_epi32(q->offset));
        _mm_storeu_si128((__m128i *)(out + i), sums);
    }
}

/* So many times four features of a query lie side by side, so that few queries fill a vector too. */
static inline int fours_of(const Panel *p) { return p->count <= 4 ? 4 : p->count <= 8 ? 2 : 1; }

/* [4 * fours features][lane][4 * fours], lanes rounded up to whole vectors. */
static void pack_avx512(Panel *p)
{
    const size_t size = 4 * (size_t)fours_of(p);
    const int lanes = size > 4 ? 64 / (int)size : (p->count + 15) / 16 * 16;
    int8_t *to = p->packed;
    for (size_t k = 0; k < p->padded; k += size)
        for (int lane = 0; lane < lanes; lane++, to += size) {
            if (lane < p->count)
                memcpy(to, p->queries[lane].narrow + k, size);
            else
                memset(to, 0, size);
        }
}

/* A row with its sign bits flipped, and zeros behind it. Between two groups of rows the hardware stops looking ahead by
 * itself: with wide rows a batch took three times as long without the prefetch. */
AVX512 static inline void flip_row(const int8_t *x, size_t d, uint8_t *to)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (size_t j = 0; j < d; j += 64) {
        PREFETCH(x + j + 2 * AHEAD);
        const __mmask64 in = d - j < 64 ? ((__mmask64)1 << (d - j)) - 1 : ~(__mmask64)0;
        _mm512_store_si512(to + j, _mm512_xor_si512(_mm512_maskz_loadu_epi8(in, x + j), flip));
    }
}

/* NV vectors of 16 queries against R rows at a time: NV * R sums stay in registers. The accumulators start
 * at minus what the flipped sign bits will add. */
#define PANEL_AVX512(NV, R)                                                                                   \
    AVX512 static void panel_avx512_##NV(const Rows *rows, int64_t start, int n, const Panel *p,              \
                                         const float *roots, uint8_t *flipped, uint64_t *passed,              \
                                         int32_t *dots)                                                       \
    {                                                                                                         \
        const size_t d = p->d, steps = (d + 3) / 4, stride = p->padded;                                       \
        for (int i = 0; i < n; i += R) {                                                                      \
            for (int r = 0; r < R && i + r < n; r++)                                                          \
                flip_row(row_at(rows, NULL, start, i + r), d, flipped + r * stride);                          \
            const int8_t *q = p->packed;                                                                      \
            __m512i acc[R][NV];                                                                               \
            _Pragma("GCC unroll 16") for (int r = 0; r < R; r++)                                              \
                _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                                          \
                    acc[r][v] = _mm512_sub_epi32(_mm512_setzero_si512(),                                      \
                                                 _mm512_loadu_si512(p->offsets + 16 * v));                    \
            for (size_t k = 0; k < steps; k++, q += 64 * NV) {                                                \
                __m512i b[NV];                                                                                \
                _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                                          \
                    b[v] = _mm512_load_si512(q + 64 * v);                                                     \
                _Pragma("GCC unroll 16") for (int r = 0; r < R; r++) {                                        \
                    int32_t four;                                                                             \
                    memcpy(&four, flipped + r * stride + 4 * k, 4);                                           \
                    const __m512i a = _mm512_set1_epi32(four);                                                \
                    _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                                      \
                        acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], a, b[v]);                                  \
                }                                                                                             \
            }                                                                                                 \
            _Pragma("GCC unroll 16") for (int r = 0; r < R; r++) {                                            \
                if (i + r >= n)                                                                               \
                    break;                                                                                    \
                uint64_t hits = 0;                                                                            \
                _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) {                                        \
                    __m512 least = _mm512_mul_ps(_mm512_set1_ps(roots[i + r]),                                \
                                                 _mm512_loadu_ps(p->factors + 16 * v));                       \
                    hits |= (uint64_t)_mm512_cmp_ps_mask(_mm512_cvtepi32_ps(acc[r][v]), least, _CMP_GE_OQ)    \
                            << (16 * v);                                                                      \
                    _mm512_storeu_si512(dots + (i + r) * LANES + 16 * v, acc[r][v]);                          \
                }                                                                                             \
                passed[i + r] = hits;                                                                         \
            }                                                                                                 \
        }                                                                                                     \
    }

PANEL_AVX512(1, 8)
PANEL_AVX512(2, 8)
PANEL_AVX512(3, 6)
PANEL_AVX512(4, 6)

/* The same for up to 8 queries, in half the time, and up to 4, in a quarter: each step takes FOURS times four features
 * of a row, and the sums that belong to one query, side by side in the vector, are added at the end. */
#define FEW_AVX512(FOURS, LOAD, EACH)                                                                         \
    AVX512 static void panel_avx512_few_##FOURS(const Rows *rows, int64_t start, int n, const Panel *p,       \
                                                const float *roots, uint8_t *flipped, uint64_t *passed,       \
                                                int32_t *dots)                                                \
    {                                                                                                         \
        enum { R = 8, SIZE = 4 * FOURS };                                                                     \
        const size_t d = p->d, steps = (d + SIZE - 1) / SIZE, stride = p->padded;                             \
        const __m256i offsets = _mm256_loadu_si256((const __m256i *)p->offsets);                              \
        const __m256 factors = _mm256_loadu_ps(p->factors);                                                   \
        for (int i = 0; i < n; i += R) {                                                                      \
            for (int r = 0; r < R && i + r < n; r++)                                                          \
                flip_row(row_at(rows, NULL, start, i + r), d, flipped + r * stride);                          \
            const int8_t *q = p->packed;                                                                      \
            __m512i acc[R];                                                                                   \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                               \
                acc[r] = _mm512_setzero_si512();                                                              \
            for (size_t k = 0; k < steps; k++, q += 64) {                                                     \
                const __m512i b = _mm512_load_si512(q);                                                       \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                           \
                    acc[r] = _mm512_dpbusd_epi32(acc[r], LOAD(flipped + r * stride + SIZE * k), b);           \
            }                                                                                                 \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                             \
                if (i + r >= n)                                                                               \
                    break;                                                                                    \
                __m512i sums = _mm512_add_epi32(acc[r], _mm512_shuffle_epi32(acc[r], 0xb1));                  \
                if (FOURS == 4)                                                                               \
                    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, 0x4e));                          \
                sums = _mm512_maskz_compress_epi32(EACH, sums);                                               \
                const __m256i dot = _mm256_sub_epi32(_mm512_castsi512_si256(sums), offsets);                  \
                const __m256 least = _mm256_mul_ps(_mm256_set1_ps(roots[i + r]), factors);                    \
                passed[i + r] = _mm256_cmp_ps_mask(_mm256_cvtepi32_ps(dot), least, _CMP_GE_OQ);               \
                _mm256_storeu_si256((__m256i *)(dots + (i + r) * LANES), dot);                                \
            }                                                                                                 \
        }                                                                                                     \
    }

#define EIGHT_BYTES(from) _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(from)))
#define SIXTEEN_BYTES(from) _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(from)))
FEW_AVX512(2, EIGHT_BYTES, 0x5555)
FEW_AVX512(4, SIXTEEN_BYTES, 0x1111)

static void panel_avx512(const Rows *rows, int64_t start, int n, const Panel *p, const float *roots,
                         void *scratch, uint64_t *passed, int32_t *dots)
{
    if (fours_of(p) > 1) {
        (fours_of(p) == 4 ? panel_avx512_few_4 : panel_avx512_few_2)(rows, start, n, p, roots, scratch, passed, dots);
        return;
    }
    switch ((p->count + 15) / 16) {
    case 1: panel_avx512_1(rows, start, n, p, roots, scratch, passed, dots); break;
    case 2: panel_avx512_2(rows, start, n, p, roots, scratch, passed, dots); break;
    case 3: panel_avx512_3(rows, start, n, p, roots, scratch, passed, dots); break;
    default: panel_avx512_4(rows, start, n, p, roots, scratch, passed, dots); break;
    }
}

__attribute__((target("avx512f,avx512vpopcntdq"))) static int
hamming_avx512(const uint8_t *codes, size_t size, int64_t start, int n, const uint8_t *query, int64_t cut,
               int64_t *out)
{
    const __mmask8 last = size & 63 ? (__mmask8)((1u << (size & 63) / 8) - 1) : 0xff;
    int found = 0;
    for (int i = 0; i < n; i++) {
        const uint8_t *code = codes + (size_t)(start + i) * size;
        __m512i bits = _mm512_setzero_si512();
        for (size_t j = 0; j < size; j += 64) {
            PREFETCH(code + j + AHEAD);
            const __mmask8 in = size - j < 64 ? last : 0xff;
            __m512i a = _mm512_maskz_loadu_epi64(in, code + j), b = _mm512_maskz_loadu_epi64(in, query + j);
            bits = _mm512_add_epi64(bits, _mm512_popcnt_epi64(_mm512_xor_si512(a, b)));
        }
        out[found] = start + i;
        found += _mm512_reduce_add_epi64(bits) <= cut;
    }
    return found;
}

#endif
