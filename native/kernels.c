/* The arithmetic: rank-ordered reductions of every element type, with scaling.
 *
 * out = ((pre*in[0] op pre*in[1] op ...) / divisor) * post, always in rank order, so the bits are the same on every rank
 * and in every run. Half types are summed in float and rounded once; integers are summed in 64 bits (a Sum wraps as the
 * type does, an Average does not overflow) and divided toward zero; bool is any (Sum, Max) or all (Product, Min).
 * No fused multiply-add (the build says -ffp-contract=off): the same sums on every machine.
 */
#include "core.h"
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=haswell", "default")))
#else
#define CLONES
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

const uint8_t item_bytes[DTYPES] = {1, 1, 2, 4, 8, 2, 2, 4, 8, 1};

enum { BLOCK = 1024 }; /* elements at a time: the accumulator stays in the first-level cache */

/* ---- copying ---- */

#if defined(__x86_64__)
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
#if defined(__x86_64__)
    if (bytes >= 1024 && __builtin_cpu_supports("avx2")) {
        copy_avx2(to, from, bytes);
        return;
    }
#endif
    memcpy(to, from, bytes);
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

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static void f16_load_fast(float *out, const uint16_t *in, uint64_t n) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
    for (; i < n; i++) out[i] = f16_to_float(in[i]);
}
__attribute__((target("avx,f16c"))) static void f16_store_fast(uint16_t *out, const float *in, uint64_t n) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) out[i] = float_to_f16(in[i]);
}
#endif

static void f16_load(float *out, const uint16_t *in, uint64_t n) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("f16c")) { f16_load_fast(out, in, n); return; }
#endif
    for (uint64_t i = 0; i < n; i++) out[i] = f16_to_float(in[i]);
}

static void f16_store(uint16_t *out, const float *in, uint64_t n) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("f16c")) { f16_store_fast(out, in, n); return; }
#endif
    for (uint64_t i = 0; i < n; i++) out[i] = float_to_f16(in[i]);
}

CLONES static void bf16_load(float *restrict out, const uint16_t *restrict in, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) out[i] = bf16_to_float(in[i]);
}

CLONES static void bf16_store(uint16_t *restrict out, const float *restrict in, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) out[i] = float_to_bf16(in[i]);
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

#define SCALE(A, name)                                                                                               \
    CLONES static void name##_scale(A *acc, uint64_t n, double factor) {                                              \
        if (factor != 1.0) for (uint64_t i = 0; i < n; i++) acc[i] *= (A)factor;                                      \
    }                                                                                                                 \
    CLONES static void name##_divide(A *acc, uint64_t n, double divisor) {                                            \
        if (divisor != 1.0) for (uint64_t i = 0; i < n; i++) acc[i] /= (A)divisor;                                    \
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

/* ---- load and store every type ---- */

#define LOAD_STORE(T, A, name)                                                                                       \
    CLONES static void name##_load(A *restrict out, const T *restrict in, uint64_t n) {                               \
        for (uint64_t i = 0; i < n; i++) out[i] = (A)in[i];                                                           \
    }                                                                                                                 \
    CLONES static void name##_store(T *restrict out, const A *restrict in, uint64_t n) {                              \
        for (uint64_t i = 0; i < n; i++) out[i] = (T)in[i];                                                           \
    }
LOAD_STORE(uint8_t, int64_t, u8)
LOAD_STORE(int8_t, int64_t, i8)
LOAD_STORE(int16_t, int64_t, i16)
LOAD_STORE(int32_t, int64_t, i32)
LOAD_STORE(int64_t, int64_t, i64)
LOAD_STORE(float, float, f32)
LOAD_STORE(double, double, f64)

/* One block of any type: load, scale, combine in rank order, divide, scale, store. */
#define REDUCE(T, A, load, store, family)                                                                            \
    static void reduce_##load(T *out, const T *const *in, int n, uint64_t count, int op, double pre, double post,     \
                              double divisor) {                                                                       \
        A acc[BLOCK], x[BLOCK];                                                                                       \
        for (uint64_t at = 0; at < count; at += BLOCK) {                                                              \
            uint64_t m = count - at < BLOCK ? count - at : BLOCK;                                                     \
            load(acc, in[0] + at, m);                                                                                 \
            family##_scale(acc, m, pre);                                                                              \
            for (int r = 1; r < n; r++) {                                                                             \
                load(x, in[r] + at, m);                                                                               \
                family##_scale(x, m, pre);                                                                            \
                family##_combine(acc, x, m, op);                                                                      \
            }                                                                                                         \
            family##_divide(acc, m, divisor);                                                                         \
            family##_scale(acc, m, post);                                                                             \
            store(out + at, acc, m);                                                                                  \
        }                                                                                                             \
    }
REDUCE(uint8_t, int64_t, u8_load, u8_store, int64)
REDUCE(int8_t, int64_t, i8_load, i8_store, int64)
REDUCE(int16_t, int64_t, i16_load, i16_store, int64)
REDUCE(int32_t, int64_t, i32_load, i32_store, int64)
REDUCE(int64_t, int64_t, i64_load, i64_store, int64)
REDUCE(uint16_t, float, f16_load, f16_store, float)
REDUCE(uint16_t, float, bf16_load, bf16_store, float)
REDUCE(float, float, f32_load, f32_store, float)
REDUCE(double, double, f64_load, f64_store, double)

static void reduce_bool(uint8_t *out, const uint8_t *const *in, int n, uint64_t count, int op) {
    bool all = op == MIN || op == PRODUCT;
    for (uint64_t i = 0; i < count; i++) {
        uint8_t acc = in[0][i] != 0;
        for (int r = 1; r < n; r++) acc = all ? acc & (in[r][i] != 0) : acc | (in[r][i] != 0);
        out[i] = acc;
    }
}

/* The commonest case, two float buffers, in one pass over memory. A power-of-two divisor is an exact factor. */
CLONES static void add_two(float *out, const float *a, const float *b, uint64_t n, float factor) {
    if (factor == 1.0f) for (uint64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
    else for (uint64_t i = 0; i < n; i++) out[i] = (a[i] + b[i]) * factor;
}

void reduce(void *out, const void *const *in, int n, uint64_t count, int dtype, int op, double pre,
            double post, double divisor) {
    if (dtype == FLOAT32 && n == 2 && op <= SUM && pre == 1.0 && post == 1.0 && (divisor == 1.0 || divisor == 2.0)) {
        add_two(out, in[0], in[1], count, (float)(1.0 / divisor));
        return;
    }
    switch (dtype) {
    case UINT8: reduce_u8_load(out, (const uint8_t *const *)in, n, count, op, pre, post, divisor); break;
    case INT8: reduce_i8_load(out, (const int8_t *const *)in, n, count, op, pre, post, divisor); break;
    case INT16: reduce_i16_load(out, (const int16_t *const *)in, n, count, op, pre, post, divisor); break;
    case INT32: reduce_i32_load(out, (const int32_t *const *)in, n, count, op, pre, post, divisor); break;
    case INT64: reduce_i64_load(out, (const int64_t *const *)in, n, count, op, pre, post, divisor); break;
    case FLOAT16: reduce_f16_load(out, (const uint16_t *const *)in, n, count, op, pre, post, divisor); break;
    case BFLOAT16: reduce_bf16_load(out, (const uint16_t *const *)in, n, count, op, pre, post, divisor); break;
    case FLOAT32: reduce_f32_load(out, (const float *const *)in, n, count, op, pre, post, divisor); break;
    case FLOAT64: reduce_f64_load(out, (const double *const *)in, n, count, op, pre, post, divisor); break;
    default: reduce_bool(out, (const uint8_t *const *)in, n, count, op); break;
    }
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
