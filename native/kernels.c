/* The arithmetic: rank-ordered reductions of every element type, with scaling.
 *
 * out = ((pre*in[0] op pre*in[1] op ...) / divisor) * post, always in rank order, so the bits are the same on every rank
 * and in every run. Half types are summed in float and rounded once; integers are summed in 64 bits (a Sum wraps as the
 * type does, an Average does not overflow) and divided toward zero; bool is any (Sum, Max) or all (Product, Min).
 * No fused multiply-add (the build says -ffp-contract=off): the same sums on every machine.
 *
 * A result that is inf or nan is noticed where it is stored, in the same pass: reduce() says whether there was one. Since
 * no sum of an inf or nan is finite, a finite result means finite inputs, and nobody has to look at those.
 */
#include "core.h"
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif
#if defined(__x86_64__) && !defined(HORA_PORTABLE) /* HORA_PORTABLE: as on any other processor, for a test */
#define X86
#include <immintrin.h>
#endif

const uint8_t item_bytes[DTYPES] = {1, 1, 2, 4, 8, 2, 2, 4, 8, 1};

enum { BLOCK = 1024 }; /* elements at a time: the accumulator stays in the first-level cache */

/* ---- copying ---- */

#ifdef X86
__attribute__((target("avx2"))) static void copy_avx2(char *to, const char *from, uint64_t bytes) {
    for (; bytes >= 128; to += 128, from += 128, bytes -= 128) {
        __m256i a = _mm256_loadu_si256((const __m256i *)from), b = _mm256_loadu_si256((const __m256i *)(from + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(from + 64)), d = _mm256_loadu_si256((const __m256i *)(from + 96));
        _mm256_storeu_si256((__m256i *)to, a), _mm256_storeu_si256((__m256i *)(to + 32), b);
        _mm256_storeu_si256((__m256i *)(to + 64), c), _mm256_storeu_si256((__m256i *)(to + 96), d);
    }
    memcpy(to, from, bytes);
}
#endif

/* memcpy for a chunk on its way through the cache. The C library's may use string instructions, which are several times
 * slower on some processors where source and target are aligned alike, as they are here. */
void copy(char *to, const char *from, uint64_t bytes) {
#ifdef X86
    if (bytes >= 1024 && __builtin_cpu_supports("avx2")) {
        copy_avx2(to, from, bytes);
        return;
    }
#endif
    memcpy(to, from, bytes);
}

/* ---- what is not finite: no bits if it is, some if not; to be or-ed over many ---- */

static inline uint32_t float_bad(float f) {
    float rest = f - f; /* 0, or nan for inf and nan */
    uint32_t bits;
    memcpy(&bits, &rest, 4);
    return bits;
}

static inline uint64_t double_bad(double f) {
    double rest = f - f;
    uint64_t bits;
    memcpy(&bits, &rest, 8);
    return bits;
}

static inline uint16_t bf16_bad(uint16_t h) { return (h & 0x7f80) == 0x7f80; }
static inline uint16_t f16_bad(uint16_t h) { return (h & 0x7c00) == 0x7c00; }

/* The first element that is inf or nan, from `at` on; `count` if all are finite. */
uint64_t first_not_finite(const void *in, uint64_t at, uint64_t count, int dtype) {
    switch (dtype) {
    case FLOAT16: while (at < count && !f16_bad(((const uint16_t *)in)[at])) at++; return at;
    case BFLOAT16: while (at < count && !bf16_bad(((const uint16_t *)in)[at])) at++; return at;
    case FLOAT32: while (at < count && !float_bad(((const float *)in)[at])) at++; return at;
    case FLOAT64: while (at < count && !double_bad(((const double *)in)[at])) at++; return at;
    default: return count;
    }
}

bool any_not_finite(const uint16_t *in, uint64_t count, int dtype) {
    uint16_t exponent = dtype == FLOAT16 ? 0x7c00 : 0x7f80, bad = 0;
    for (uint64_t i = 0; i < count; i++) bad |= (in[i] & exponent) == exponent;
    return bad;
}

/* ---- half types <-> float ---- */

static inline float bf16_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t float_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16; /* to nearest, ties to even */
    return (bits & 0x7fffffff) > 0x7f800000 ? (uint16_t)(bits >> 16 | 0x40) : (uint16_t)rounded;
}

static float f16_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else { /* subnormal: exact in float */
        float f = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t float_to_f16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00 | (uint16_t)(bits >> 13 & 0x3ff);
    if (bits >= 0x477ff000) return sign | 0x7c00; /* rounds to infinity */
    if (bits < 0x38800000) {                      /* subnormal or zero: let the float unit round */
        float a;
        memcpy(&a, &bits, 4);
        a += 0x1p-1f; /* 0.5: the last place of the sum is 2^-24 */
        memcpy(&bits, &a, 4);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    return sign | (uint16_t)((bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13);
}

#ifdef X86
__attribute__((target("avx,f16c"))) static void f16_load_fast(float *out, const uint16_t *in, uint64_t n) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
    for (; i < n; i++) out[i] = f16_to_float(in[i]);
}
__attribute__((target("avx,f16c"))) static void f16_add_fast(float *acc, const uint16_t *in, uint64_t n) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i)));
        _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), x));
    }
    for (; i < n; i++) acc[i] += f16_to_float(in[i]);
}
__attribute__((target("avx,f16c"))) static bool f16_store_fast(uint16_t *out, const float *in, uint64_t n) {
    const __m128i magnitude = _mm_set1_epi16(0x7fff), largest = _mm_set1_epi16(0x7bff);
    __m128i most = _mm_setzero_si128();
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(out + i), half);
        most = _mm_max_epi16(most, _mm_and_si128(half, magnitude));
    }
    uint16_t bad = (uint16_t)_mm_movemask_epi8(_mm_cmpgt_epi16(most, largest));
    for (; i < n; i++) bad |= f16_bad(out[i] = float_to_f16(in[i]));
    return bad;
}
#endif

static void f16_load(float *out, const uint16_t *in, uint64_t n) {
#ifdef X86
    if (__builtin_cpu_supports("f16c")) { f16_load_fast(out, in, n); return; }
#endif
    for (uint64_t i = 0; i < n; i++) out[i] = f16_to_float(in[i]);
}

static void f16_add(float *acc, const uint16_t *in, uint64_t n) {
#ifdef X86
    if (__builtin_cpu_supports("f16c")) { f16_add_fast(acc, in, n); return; }
#endif
    for (uint64_t i = 0; i < n; i++) acc[i] += f16_to_float(in[i]);
}

static bool f16_store(uint16_t *out, const float *in, uint64_t n) {
#ifdef X86
    if (__builtin_cpu_supports("f16c")) return f16_store_fast(out, in, n);
#endif
    uint16_t bad = 0;
    for (uint64_t i = 0; i < n; i++) bad |= f16_bad(out[i] = float_to_f16(in[i]));
    return bad;
}

CLONES static void bf16_load(float *restrict out, const uint16_t *restrict in, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) out[i] = bf16_to_float(in[i]);
}

CLONES static void bf16_add(float *restrict acc, const uint16_t *restrict in, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) acc[i] += bf16_to_float(in[i]);
}

CLONES static bool bf16_store(uint16_t *restrict out, const float *restrict in, uint64_t n) {
    uint16_t bad = 0;
    for (uint64_t i = 0; i < n; i++) bad |= bf16_bad(out[i] = float_to_bf16(in[i]));
    return bad;
}

/* ---- accumulators: float, double, int64 ---- */

#define COMBINE(A, name)                                                                                             \
    CLONES static void name##_combine(A *restrict acc, const A *restrict x, uint64_t n, int op) {                     \
        if (op <= ADASUM) for (uint64_t i = 0; i < n; i++) acc[i] += x[i];                                            \
        else if (op == MIN) for (uint64_t i = 0; i < n; i++) acc[i] = x[i] < acc[i] || x[i] != x[i] ? x[i] : acc[i];  \
        else if (op == MAX) for (uint64_t i = 0; i < n; i++) acc[i] = x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i];  \
        else for (uint64_t i = 0; i < n; i++) acc[i] *= x[i];                                                         \
    }
COMBINE(float, float)
COMBINE(double, double)
COMBINE(uint64_t, unsigned) /* sums and products wrap without being undefined */

CLONES static void signed_extreme(int64_t *restrict acc, const int64_t *restrict x, uint64_t n, int op) {
    if (op == MIN) for (uint64_t i = 0; i < n; i++) acc[i] = x[i] < acc[i] ? x[i] : acc[i];
    else for (uint64_t i = 0; i < n; i++) acc[i] = x[i] > acc[i] ? x[i] : acc[i];
}

static void int64_combine(int64_t *acc, const int64_t *x, uint64_t n, int op) {
    if (op == MIN || op == MAX) signed_extreme(acc, x, n, op);
    else unsigned_combine((uint64_t *)acc, (const uint64_t *)x, n, op);
}

static bool power_of_two(double divisor) { return ((uint64_t)divisor & ((uint64_t)divisor - 1)) == 0; }

#define SCALE(A, name)                                                                                               \
    CLONES static void name##_scale(A *acc, uint64_t n, double factor) {                                              \
        if (factor != 1.0) for (uint64_t i = 0; i < n; i++) acc[i] *= (A)factor;                                      \
    }                                                                                                                 \
    CLONES static void name##_divide(A *acc, uint64_t n, double divisor) {                                            \
        if (power_of_two(divisor)) name##_scale(acc, n, 1.0 / divisor); /* exact, and quicker */                      \
        else for (uint64_t i = 0; i < n; i++) acc[i] /= (A)divisor;                                                   \
    }
SCALE(float, float)
SCALE(double, double)

static void int64_scale(int64_t *acc, uint64_t n, double factor) {
    if (factor != 1.0) for (uint64_t i = 0; i < n; i++) acc[i] = (int64_t)((double)acc[i] * factor);
}

static void int64_divide(int64_t *acc, uint64_t n, double divisor) {
    int64_t d = (int64_t)divisor;
    if (d > 1) for (uint64_t i = 0; i < n; i++) acc[i] /= d;
}

/* ---- load and store every type; a store says whether something in it is not finite ---- */

#define LOAD_STORE(T, A, name, U, B, bad) /* U: what does not overflow when added */                                 \
    CLONES static void name##_load(A *restrict out, const T *restrict in, uint64_t n) {                               \
        for (uint64_t i = 0; i < n; i++) out[i] = (A)in[i];                                                           \
    }                                                                                                                 \
    CLONES static void name##_add(A *restrict acc, const T *restrict in, uint64_t n) {                                \
        for (uint64_t i = 0; i < n; i++) acc[i] = (A)((U)acc[i] + (U)(A)in[i]);                                       \
    }                                                                                                                 \
    CLONES static bool name##_store(T *restrict out, const A *restrict in, uint64_t n) {                              \
        B some = 0;                                                                                                   \
        for (uint64_t i = 0; i < n; i++) out[i] = (T)in[i], some |= bad(in[i]);                                       \
        return some != 0;                                                                                             \
    }
#define never_bad(i) 0
LOAD_STORE(uint8_t, int64_t, u8, uint64_t, uint8_t, never_bad)
LOAD_STORE(int8_t, int64_t, i8, uint64_t, uint8_t, never_bad)
LOAD_STORE(int16_t, int64_t, i16, uint64_t, uint8_t, never_bad)
LOAD_STORE(int32_t, int64_t, i32, uint64_t, uint8_t, never_bad)
LOAD_STORE(int64_t, int64_t, i64, uint64_t, uint8_t, never_bad)
LOAD_STORE(float, float, f32, float, uint32_t, float_bad)
LOAD_STORE(double, double, f64, double, uint64_t, double_bad)

/* Any type, a block at a time: load, scale, combine in rank order, divide, scale, store. */
#define REDUCE(T, A, type, family)                                                                                   \
    static bool reduce_##type(T *out, const T *const *in, int n, uint64_t count, int op, double pre, double post,     \
                              double divisor) {                                                                       \
        A acc[BLOCK], x[BLOCK];                                                                                       \
        bool bad = false, plain = op <= SUM && pre == 1.0;                                                            \
        for (uint64_t at = 0; at < count; at += BLOCK) {                                                              \
            uint64_t m = count - at < BLOCK ? count - at : BLOCK;                                                     \
            type##_load(acc, in[0] + at, m);                                                                          \
            family##_scale(acc, m, pre);                                                                              \
            for (int r = 1; r < n; r++) {                                                                             \
                if (plain) { type##_add(acc, in[r] + at, m); continue; }                                              \
                type##_load(x, in[r] + at, m);                                                                        \
                family##_scale(x, m, pre);                                                                            \
                family##_combine(acc, x, m, op);                                                                      \
            }                                                                                                         \
            family##_divide(acc, m, divisor);                                                                         \
            family##_scale(acc, m, post);                                                                             \
            bad |= type##_store(out + at, acc, m);                                                                    \
        }                                                                                                             \
        return bad;                                                                                                   \
    }
REDUCE(uint8_t, int64_t, u8, int64)
REDUCE(int8_t, int64_t, i8, int64)
REDUCE(int16_t, int64_t, i16, int64)
REDUCE(int32_t, int64_t, i32, int64)
REDUCE(int64_t, int64_t, i64, int64)
REDUCE(uint16_t, float, f16, float)
REDUCE(uint16_t, float, bf16, float)
REDUCE(float, float, f32, float)
REDUCE(double, double, f64, double)

static void reduce_bool(uint8_t *out, const uint8_t *const *in, int n, uint64_t count, int op) {
    bool all = op == MIN || op == PRODUCT;
    for (uint64_t i = 0; i < count; i++) {
        uint8_t acc = in[0][i] != 0;
        for (int r = 1; r < n; r++) acc = all ? acc & (in[r][i] != 0) : acc | (in[r][i] != 0);
        out[i] = acc;
    }
}

#ifdef X86
/* The commonest case, sums of float and double without factors, in one pass over memory. To see inf and nan for the price
 * of an addition, the results are added up as well: what comes out is finite only if all of them are. It may overflow
 * where they do not, so then they are looked at one by one. */
#define SUM_UP(T, type, B)                                                                                           \
    typedef T type##_vector __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));                          \
    __attribute__((target("avx2"))) static bool sum_##type(T *out, const T *const *in, int n, uint64_t count,         \
                                                           T factor, T divisor) {                                     \
        enum { LANES = 32 / sizeof(T) };                                                                              \
        const T *first = in[0], *second = in[n > 1];                                                                  \
        type##_vector a, b, all_a = {0}, all_b = {0};                                                                 \
        B bad = 0;                                                                                                    \
        uint64_t i = 0;                                                                                               \
        for (; i + 2 * LANES <= count; i += 2 * LANES) {                                                              \
            a = *(const type##_vector *)(first + i), b = *(const type##_vector *)(first + i + LANES);                 \
            if (n > 1) a += *(const type##_vector *)(second + i), b += *(const type##_vector *)(second + i + LANES);  \
            for (int r = 2; r < n; r++)                                                                               \
                a += *(const type##_vector *)(in[r] + i), b += *(const type##_vector *)(in[r] + i + LANES);           \
            if (divisor == 1) a *= factor, b *= factor;                                                               \
            else a /= divisor, b /= divisor;                                                                          \
            *(type##_vector *)(out + i) = a, *(type##_vector *)(out + i + LANES) = b;                                 \
            all_a += a, all_b += b;                                                                                   \
        }                                                                                                             \
        for (; i < count; i++) {                                                                                      \
            T one = first[i];                                                                                         \
            for (int r = 1; r < n; r++) one += in[r][i];                                                              \
            bad |= type##_bad(out[i] = divisor == 1 ? one * factor : one / divisor);                                  \
        }                                                                                                             \
        all_a += all_b;                                                                                               \
        for (int k = 0; k < LANES; k++) bad |= type##_bad(all_a[k]);                                                  \
        return bad != 0;                                                                                              \
    }
SUM_UP(float, float, uint32_t)
SUM_UP(double, double, uint64_t)

static bool sum_up(void *out, const void *const *in, int n, uint64_t count, int dtype, double divisor) {
    double factor = power_of_two(divisor) ? 1.0 / divisor : 1.0; /* exact */
    if (factor != 1.0) divisor = 1.0;
    bool bad = dtype == FLOAT32 ? sum_float(out, (const float *const *)in, n, count, (float)factor, (float)divisor)
                                : sum_double(out, (const double *const *)in, n, count, factor, divisor);
    return bad && first_not_finite(out, 0, count, dtype) < count;
}
#endif

bool reduce(void *out, const void *const *in, int n, uint64_t count, int dtype, int op, double pre, double post,
            double divisor) {
#ifdef X86
    if ((dtype == FLOAT32 || dtype == FLOAT64) && op <= SUM && pre == 1.0 && post == 1.0 && __builtin_cpu_supports("avx2"))
        return sum_up(out, in, n, count, dtype, divisor);
#endif
    switch (dtype) {
    case UINT8: return reduce_u8(out, (const uint8_t *const *)in, n, count, op, pre, post, divisor);
    case INT8: return reduce_i8(out, (const int8_t *const *)in, n, count, op, pre, post, divisor);
    case INT16: return reduce_i16(out, (const int16_t *const *)in, n, count, op, pre, post, divisor);
    case INT32: return reduce_i32(out, (const int32_t *const *)in, n, count, op, pre, post, divisor);
    case INT64: return reduce_i64(out, (const int64_t *const *)in, n, count, op, pre, post, divisor);
    case FLOAT16: return reduce_f16(out, (const uint16_t *const *)in, n, count, op, pre, post, divisor);
    case BFLOAT16: return reduce_bf16(out, (const uint16_t *const *)in, n, count, op, pre, post, divisor);
    case FLOAT32: return reduce_f32(out, (const float *const *)in, n, count, op, pre, post, divisor);
    case FLOAT64: return reduce_f64(out, (const double *const *)in, n, count, op, pre, post, divisor);
    default: reduce_bool(out, (const uint8_t *const *)in, n, count, op); return false;
    }
}

/* ---- between float and a half type ---- */

void narrow(uint16_t *out, const float *in, uint64_t count, int dtype) {
    if (dtype == FLOAT16) f16_store(out, in, count);
    else bf16_store(out, in, count);
}

void widen(float *out, const uint16_t *in, uint64_t count, int dtype) {
    if (dtype == FLOAT16) f16_load(out, in, count);
    else bf16_load(out, in, count);
}

/* ---- for Adasum, which works in double ---- */

void to_double(double *restrict out, const void *in, uint64_t count, int dtype) {
    float x[BLOCK];
    for (uint64_t at = 0; at < count; at += BLOCK) {
        uint64_t m = count - at < BLOCK ? count - at : BLOCK;
        if (dtype == FLOAT64) { memcpy(out + at, (const double *)in + at, m * 8); continue; }
        if (dtype == FLOAT32) memcpy(x, (const float *)in + at, m * 4);
        else if (dtype == FLOAT16) f16_load(x, (const uint16_t *)in + at, m);
        else bf16_load(x, (const uint16_t *)in + at, m);
        for (uint64_t i = 0; i < m; i++) out[at + i] = x[i];
    }
}

void from_double(void *restrict out, const double *in, uint64_t count, int dtype) {
    float x[BLOCK];
    for (uint64_t at = 0; at < count; at += BLOCK) {
        uint64_t m = count - at < BLOCK ? count - at : BLOCK;
        if (dtype == FLOAT64) { memcpy((double *)out + at, in + at, m * 8); continue; }
        for (uint64_t i = 0; i < m; i++) x[i] = (float)in[at + i];
        if (dtype == FLOAT32) memcpy((float *)out + at, x, m * 4);
        else if (dtype == FLOAT16) f16_store((uint16_t *)out + at, x, m);
        else bf16_store((uint16_t *)out + at, x, m);
    }
}
