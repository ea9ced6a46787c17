/* The parts of a step of training for x86-64, compiled for newer CPUs than the rest, and called only where those are
 * there. `_training.c` includes this once. `_training_simd.h` holds the loops, for one instruction set after the other.
 */
#include <immintrin.h>

static inline int32_t two_at(const int16_t *p)
{
    int32_t two;
    memcpy(&two, p, sizeof two);
    return two;
}

#define TARGET __attribute__((target("avx2")))
#define NAME(function) function##_avx2
#define LANES 8
#define VECTOR __m256i
#define ZERO _mm256_setzero_si256()
#define WIDE(p) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p)))
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define PAIR(p) _mm256_set1_epi32(two_at(p))
#define ADD_PRODUCTS(s, a, b) _mm256_add_epi32(s, _mm256_madd_epi16(a, b))
#define INTERLEAVE(p, q, low, high)                                                                                  \
    do {                                                                                                             \
        const __m128i a = _mm_loadu_si128((const __m128i *)(p)), b = _mm_loadu_si128((const __m128i *)(q));          \
        low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));                                                         \
        high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));                                                        \
    } while (0)
#define STORE(p, s) _mm256_storeu_si256((__m256i *)(p), s)
#define SUM(s) sum_avx2(s)
#define STORE_SUMS(p, s) _mm_storeu_si128((__m128i *)(p), sums_avx2((s)[0], (s)[1], (s)[2], (s)[3]))
#define MANY 12

TARGET static inline int32_t sum_avx2(__m256i s)
{
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

TARGET static inline __m128i sums_avx2(__m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

BODIES(avx2, TARGET)
#include "_training_simd.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2")))
#define NAME(function) function##_avx512
#define LANES 16
#define VECTOR __m512i
#define ZERO _mm512_setzero_si512()
#define WIDE(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(p)))
#define LOAD(p) _mm512_loadu_si512(p)
#define PAIR(p) _mm512_set1_epi32(two_at(p))
#define ADD_PRODUCTS(s, a, b) _mm512_dpwssd_epi32(s, a, b) /* wraps, and does not saturate */
#define INTERLEAVE(p, q, low, high)                                                                                  \
    do {                                                                                                             \
        const __m256i a = _mm256_loadu_si256((const __m256i *)(p)), b = _mm256_loadu_si256((const __m256i *)(q));    \
        const __m256i even = _mm256_unpacklo_epi8(a, b), odd = _mm256_unpackhi_epi8(a, b);                           \
        low = _mm512_cvtepi8_epi16(_mm256_permute2x128_si256(even, odd, 0x20));                                      \
        high = _mm512_cvtepi8_epi16(_mm256_permute2x128_si256(even, odd, 0x31));                                     \
    } while (0)
#define STORE(p, s) _mm512_storeu_si512(p, s)
#define SUM(s) _mm512_reduce_add_epi32(s)
#define HALVES(s) _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1))
#define STORE_SUMS(p, s)                                                                                             \
    _mm_storeu_si128((__m128i *)(p), sums_avx2(HALVES((s)[0]), HALVES((s)[1]), HALVES((s)[2]), HALVES((s)[3])))
#define MANY 24

BODIES(avx512, TARGET)
#include "_training_simd.h"
