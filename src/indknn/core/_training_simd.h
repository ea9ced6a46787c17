/* The two products of a step for one instruction set. `_training_x86.h` includes this once for each, after it has defined
 *
 *   NAME(f), TARGET   the name of a function, and for which CPU it is compiled
 *   VECTOR, ZERO      a register of 2 * LANES int16 or LANES int32
 *   WIDE(p)           2 * LANES int8 at p, as int16
 *   LOAD(p)           2 * LANES int16 at p
 *   PAIR(p)           the two int16 at p, again and again
 *   ADD_PRODUCTS(s, a, b)   s plus a*b, where neighbouring products are added
 *   INTERLEAVE(p, q, low, high)   2 * LANES int8 at p and at q as pairs of int16, in order
 *   SUM(s), STORE(p, s)     the sum of all int32; all int32 to p
 *   STORE_SUMS(p, s)        the sums of s[0] to s[3] to p
 *   MANY                    how many sums stay in registers, beside what is added to them
 *
 * Nothing here saturates: |products| <= 2^7 * 2^15, and neighbours are added in 32 bits. `_training.c` says why no sum
 * leaves 32 bits. Loops over constants are unrolled, so that sums stay in registers.
 */
#define UNROLL _Pragma("GCC unroll 16")

/* C weights with R rows. */
TARGET static UNROLLED void NAME(few_dots)(const Rows rows, const int16_t *weights, size_t from, size_t end,
                                           size_t stride, int r, int k, int32_t *dots, const int R, const int C)
{
    VECTOR sums[5][4];
    UNROLL for (int i = 0; i < R; i++)
        UNROLL for (int j = 0; j < C; j++)
            sums[j][i] = ZERO;
    for (size_t at = from; at < end; at += 2 * LANES) {
        VECTOR x[4];
        UNROLL for (int i = 0; i < R; i++)
            x[i] = WIDE(rows.at + (size_t)(r + i) * rows.stride + at);
        UNROLL for (int j = 0; j < C; j++) {
            const VECTOR w = LOAD(weights + (size_t)(k + j) * stride + at);
            UNROLL for (int i = 0; i < R; i++)
                sums[j][i] = ADD_PRODUCTS(sums[j][i], x[i], w);
        }
        if (!k) /* the same rows of the next block, which are needed soon */
            UNROLL for (int i = 0; i < R; i++)
                __builtin_prefetch(rows.at + (size_t)(BLOCK + r + i) * rows.stride + at, 0, 2);
    }
    UNROLL for (int j = 0; j < C; j++) {
        int32_t *line = dots + (k + j) * BLOCK + r;
        if (R == 4)
            STORE_SUMS(line, sums[j]);
        else
            UNROLL for (int i = 0; i < R; i++)
                line[i] = SUM(sums[j][i]);
    }
}

TARGET static UNROLLED void NAME(dots_of)(const Rows rows, int n, const int16_t *weights, size_t from, size_t end,
                                          size_t stride, int k, int32_t *dots, const int C)
{
    const int R = 4 * C <= MANY ? 4 : 2;
    int r = 0;
    for (; r + R <= n; r += R)
        NAME(few_dots)(rows, weights, from, end, stride, r, k, dots, R, C);
    for (; r < n; r++)
        NAME(few_dots)(rows, weights, from, end, stride, r, k, dots, 1, C);
}

TARGET static void NAME(dots)(const Rows rows, int n, const int16_t *weights, size_t from, size_t end, size_t stride,
                              int classes, int32_t *dots)
{
    for (int k = 0, some; k < classes; k += some)
        switch (some = group(classes - k, 5)) {
#define CASE(C) case C: NAME(dots_of)(rows, n, weights, from, end, stride, k, dots, C); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#undef CASE
        }
}

TARGET static UNROLLED void NAME(few_squares)(const int8_t *at, size_t stride, size_t padded, double *squared,
                                              const int R)
{
    VECTOR sums[4];
    int32_t found[4];
    UNROLL for (int i = 0; i < 4; i++)
        sums[i] = ZERO;
    for (size_t j = 0; j < padded; j += 2 * LANES)
        UNROLL for (int i = 0; i < R; i++) {
            const VECTOR x = WIDE(at + (size_t)i * stride + j);
            sums[i] = ADD_PRODUCTS(sums[i], x, x);
        }
    STORE_SUMS(found, sums);
    UNROLL for (int i = 0; i < R; i++)
        squared[i] = found[i];
}

TARGET static void NAME(squares)(const Rows rows, int n, size_t padded, double *squared)
{
    int r = 0;
    for (; r + 4 <= n; r += 4)
        NAME(few_squares)(rows.at + (size_t)r * rows.stride, rows.stride, padded, squared + r, 4);
    for (; r < n; r++)
        NAME(few_squares)(rows.at + (size_t)r * rows.stride, rows.stride, padded, squared + r, 1);
}

/* Rows times C columns of numbers, into C lines of the total. */
TARGET static UNROLLED void NAME(outer_of)(const Rows rows, int n, const int16_t *added, int shift, int64_t *total,
                                           size_t d, size_t lines, int k, const int C)
{
    for (size_t at = 0; at < d; at += 2 * LANES) {
        VECTOR sums[MANY / 2][2];
        UNROLL for (int j = 0; j < C; j++)
            sums[j][0] = sums[j][1] = ZERO;
        for (int r = 0; r < n; r += 2) {
            const int8_t *x = rows.at + (size_t)r * rows.stride + at;
            VECTOR low, high;
            INTERLEAVE(x, r + 1 < n ? x + rows.stride : x, low, high);
            UNROLL for (int j = 0; j < C; j++) {
                const VECTOR a = PAIR(added + (k + j) * BLOCK + r);
                sums[j][0] = ADD_PRODUCTS(sums[j][0], low, a);
                sums[j][1] = ADD_PRODUCTS(sums[j][1], high, a);
            }
        }
        const size_t width = d - at < 2 * LANES ? d - at : 2 * LANES;
        UNROLL for (int j = 0; j < C; j++) {
            int32_t found[2 * LANES];
            STORE(found, sums[j][0]);
            STORE(found + LANES, sums[j][1]);
            int64_t *line = total + (size_t)(k + j) * lines + at;
            for (size_t i = 0; i < width; i++)
                line[i] += (int64_t)found[i] * (1 << shift);
        }
    }
}

TARGET static void NAME(outer)(const Rows rows, int n, const int16_t *added, int shift, int64_t *total, size_t d,
                               size_t lines, int classes)
{
    for (int k = 0, some; k < classes; k += some)
        switch (some = group(classes - k, MANY / 2)) {
#define CASE(C) case C: NAME(outer_of)(rows, n, added, shift, total, d, lines, k, C); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if LANES == 16
            CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
        }
}

#undef UNROLL
#undef TARGET
#undef NAME
#undef LANES
#undef VECTOR
#undef ZERO
#undef WIDE
#undef LOAD
#undef PAIR
#undef ADD_PRODUCTS
#undef INTERLEAVE
#undef STORE
#undef SUM
#undef STORE_SUMS
#undef MANY
