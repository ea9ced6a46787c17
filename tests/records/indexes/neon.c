/* The loops for NEON beside the plain ones, on random rows and on the largest numbers: prints how many differ. */
#include <stdio.h>
#include "_simd.h"

enum { ROWS = 64, QUERIES = 16, MOST = 1100 };
static uint64_t state = 1;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int8_t rows[ROWS * MOST + 64], queries[QUERIES][MOST + 64];

static long compared(size_t d, int extreme)
{
    long wrong = 0;
    int64_t slots[ROWS], found[2][ROWS + 1];
    int32_t dots[2][ROWS + 4];
    static int32_t panels[2][TILE * LANES];
    uint64_t passed[2][TILE];
    Query all[QUERIES];
    Panel panel = {.count = QUERIES, .d = d, .padded = (d + 63) / 64 * 64, .queries = all};
    float roots[ROWS];
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = extreme ? (next() & 1 ? 127 : -128) : (int8_t)next();
    memset(queries, 0, sizeof queries);
    for (int c = 0; c < QUERIES; c++) {
        for (size_t j = 0; j < d; j++)
            queries[c][j] = extreme ? (next() & 1 ? 127 : -128) : (int8_t)next();
        all[c] = (Query){queries[c], NULL, 0};
        panel.factors[c] = (float)(next() % 1000) - 500.0f;
    }
    for (int i = 0; i < ROWS; i++) {
        slots[i] = (int64_t)(next() % ROWS);
        roots[i] = 0.5f + (float)(next() % 64);
    }
    const Rows store = {rows, rows + ROWS * d, d};
    for (int given = 0; given < 2; given++) {
        dots_plain(&store, given ? slots : NULL, 0, ROWS, &all[0], dots[0]);
        dots_neon(&store, given ? slots : NULL, 0, ROWS, &all[0], dots[1]);
        wrong += memcmp(dots[0], dots[1], ROWS * sizeof **dots) != 0;
    }
    panel_plain(&store, 3, TILE, &panel, roots, NULL, passed[0], panels[0]);
    panel_neon(&store, 3, TILE, &panel, roots, NULL, passed[1], panels[1]);
    wrong += memcmp(passed[0], passed[1], sizeof *passed) != 0 || memcmp(panels[0], panels[1], sizeof *panels) != 0;
    const size_t size = (d + 7) / 8 * 8;
    const int64_t cut = (int64_t)size * 4;
    const int n = ROWS - 8;
    const int near[2] = {
        hamming_plain((uint8_t *)rows, size, 0, n, (uint8_t *)queries[1], cut, found[0]),
        hamming_neon((uint8_t *)rows, size, 0, n, (uint8_t *)queries[1], cut, found[1]),
    };
    wrong += near[0] != near[1] || memcmp(found[0], found[1], (size_t)near[0] * sizeof **found) != 0;
    return wrong;
}

int main(void)
{
    long wrong = 0, rounds = 0;
    for (size_t d = 1; d <= MOST; d += d < 70 ? 1 : 205)
        for (int extreme = 0; extreme < 2; extreme++, rounds++)
            wrong += compared(d, extreme);
    printf("%ld rounds, %ld differ\n", rounds, wrong);
    return wrong != 0;
}
