/* Proofs that a frame comes from the leader at the other end, and at this place of the stream: a code of 64 bits.
 *
 * SipHash-2-4 over the frame's number and header, and over its body. A body of data is not hashed by it directly, which
 * would take longer than sending it: each KiB of it is first hashed by NH, the universal hash of UMAC (RFC 4418), with a key
 * of a KiB, which is a multiplication for every eight bytes. Whoever does not know the key forges a frame with a chance of
 * one in 2^32; it has one try, because a frame that does not pass ends the job.
 */
#include "link.h"
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct sip { uint64_t v[4]; };

static inline uint64_t turn(uint64_t x, int by) { return x << by | x >> (64 - by); }

static inline void sip_round(uint64_t *v) {
    v[0] += v[1], v[1] = turn(v[1], 13) ^ v[0], v[0] = turn(v[0], 32);
    v[2] += v[3], v[3] = turn(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = turn(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = turn(v[1], 17) ^ v[2], v[2] = turn(v[2], 32);
}

static inline void sip_begin(struct sip *s, const uint64_t *key) {
    s->v[0] = key[0] ^ 0x736f6d6570736575ull, s->v[1] = key[1] ^ 0x646f72616e646f6dull;
    s->v[2] = key[0] ^ 0x6c7967656e657261ull, s->v[3] = key[1] ^ 0x7465646279746573ull;
}

static inline void sip_word(struct sip *s, uint64_t m) {
    s->v[3] ^= m;
    sip_round(s->v), sip_round(s->v);
    s->v[0] ^= m;
}

static inline uint64_t sip_end(struct sip *s) {
    s->v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) sip_round(s->v);
    return s->v[0] ^ s->v[1] ^ s->v[2] ^ s->v[3];
}

enum { NH_BYTES = 1024 };

/* Of one KiB: the sum of products of neighbouring 32-bit words, to each of which a word of the key was added. */
static uint64_t nh_plain(const uint32_t *key, const char *data) {
    uint64_t sum = 0;
    for (int i = 0; i < NH_BYTES / 4; i += 2) {
        uint32_t m[2];
        memcpy(m, data + 4 * i, sizeof m);
        sum += (uint64_t)(m[0] + key[i]) * (uint64_t)(m[1] + key[i + 1]);
    }
    return sum;
}

#if defined(__x86_64__) && !defined(HORA_SIMULATED)
__attribute__((target("avx2"))) static uint64_t nh_avx2(const uint32_t *key, const char *data) {
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < NH_BYTES / 32; i += 2)
        for (int k = 0; k < 2; k++) {
            __m256i m = _mm256_loadu_si256((const __m256i *)data + i + k);
            m = _mm256_add_epi32(m, _mm256_loadu_si256((const __m256i *)key + i + k));
            sum[k] = _mm256_add_epi64(sum[k], _mm256_mul_epu32(m, _mm256_srli_epi64(m, 32)));
        }
    uint64_t parts[4];
    _mm256_storeu_si256((__m256i *)parts, _mm256_add_epi64(sum[0], sum[1]));
    return parts[0] + parts[1] + parts[2] + parts[3];
}
#endif

static uint64_t nh(const uint32_t *key, const char *data) {
#if defined(__x86_64__) && !defined(HORA_SIMULATED)
    if (__builtin_cpu_supports("avx2")) return nh_avx2(key, data);
#endif
    return nh_plain(key, data);
}

void make_key(struct key *k, const uint8_t *secret) {
    uint64_t seed[2];
    memcpy(k->sip, secret, 16);
    memcpy(seed, secret + 16, 16);
    for (uint64_t i = 0; i < NH_BYTES / 8; i++) {
        struct sip s;
        sip_begin(&s, seed);
        sip_word(&s, i);
        uint64_t word = sip_end(&s);
        memcpy(&k->nh[2 * i], &word, 8);
    }
}

uint64_t prove_head(const struct key *k, uint64_t number, const struct frame *f) {
    struct sip s;
    sip_begin(&s, k->sip);
    sip_word(&s, ~number); /* another one than that of the whole frame */
    sip_word(&s, (uint64_t)f->bytes << 32 | f->type);
    sip_word(&s, f->order);
    sip_word(&s, f->at);
    return sip_end(&s);
}

uint64_t prove(const struct key *k, uint64_t number, const struct frame *f, const void *body) {
    struct sip s;
    sip_begin(&s, k->sip);
    sip_word(&s, number);
    sip_word(&s, (uint64_t)f->bytes << 32 | f->type);
    sip_word(&s, f->order);
    sip_word(&s, f->at);
    const char *p = body;
    uint64_t left = f->bytes;
    if (f->type == FRAME_DATA)
        for (; left >= NH_BYTES; p += NH_BYTES, left -= NH_BYTES) sip_word(&s, nh(k->nh, p));
    for (; left; p += left < 8 ? left : 8, left -= left < 8 ? left : 8) {
        uint64_t word = 0;
        memcpy(&word, p, left < 8 ? left : 8);
        sip_word(&s, word);
    }
    return sip_end(&s);
}
