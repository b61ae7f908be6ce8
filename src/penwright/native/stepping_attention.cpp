// Attention of few targets, in AVX-512. It reads each number of the cache once, in place, and copies nothing.
// Inductor compiles it into each decoding step (decoding/ahead_of_time.py). It puts "extern" before this declaration:
AOTITorchError aoti_torch_cpu_stepping_attention(
    AtenTensorHandle queries, AtenTensorHandle keys, AtenTensorHandle values, AtenTensorHandle* allowed,
    AtenTensorHandle* origins, AtenTensorHandle* heads);

extern "C++" {
#include <immintrin.h>
#include <algorithm>
#include <cmath>
#include <vector>

#pragma GCC push_options
#pragma GCC optimize("O3")
#include "vectors.h"
namespace stepping_attention {

using vectors::LANES, vectors::NEG_INF, vectors::first_lanes;
constexpr int64_t WORTH_THREADS = 1 << 17;  // fewest numbers in the keys for which threads pay off
constexpr int64_t LINE = 64;  // bytes of a cache line
constexpr int64_t TARGETS = 4;  // targets of a row and head that are computed together

inline __m512 load(const float* x, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, x); }

inline __m512 load(const uint16_t* x, __mmask16 lanes) {  // bfloat16: the upper half of a float
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, x)), 16));
}

template <typename T>
struct Attention {
    const float* queries;  // [batch, n_heads, n_targets, width]
    const T *keys, *values;  // [rows, n_kv_heads, n_sources, width]
    const bool* allowed;  // [batch or 1, n_targets or 1, n_sources]; null: all are allowed
    const int64_t* origins;  // [batch, n_sources]: the row that holds each source; null: the row itself
    float* heads;  // result, shaped like queries
    int64_t batch, n_heads, n_targets, width, n_kv_heads, n_sources;
    int64_t allowed_by_row, allowed_by_target;  // strides of `allowed`
};

// The keys and values of the sources of one row and head.
template <typename T>
struct Kept {
    const T *keys, *values;
    const int64_t* places;  // offset of each source in keys and values, padded by two registers with the last offset
    int64_t width;
};

template <typename T>
inline Kept<T> kept(const Attention<T>& all, int64_t row, int64_t head, std::vector<int64_t>& places) {
    const int64_t head_size = all.n_sources * all.width, row_size = all.n_kv_heads * head_size;
    const int64_t kv_head = head / (all.n_heads / all.n_kv_heads);
    places.resize(all.n_sources + 2 * LANES);
    for (int64_t source = 0; source < all.n_sources; source++) {
        const int64_t origin = all.origins ? all.origins[row * all.n_sources + source] : row;
        places[source] = origin * row_size + source * all.width;
    }
    std::fill_n(&places[all.n_sources], 2 * LANES, places[all.n_sources - 1]);
    return {all.keys + kv_head * head_size, all.values + kv_head * head_size, places.data(), all.width};
}

// The sums of 16 registers, as one register: pairs are interleaved and added, four times.
inline __m512 sums(const __m512 (&x)[LANES]) {
    __m512 pairs[8], fours[4];
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; i++)
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const auto halves = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    return halves(halves(fours[0], fours[1]), halves(fours[2], fours[3]));
}

inline __mmask16 allowed_lanes(const bool* allowed, int64_t first, int64_t n) {
    const __mmask16 there = first_lanes(n - first);
    if (!allowed) return there;
    return _mm_mask_test_epi8_mask(there, _mm_maskz_loadu_epi8(there, allowed + first), _mm_set1_epi8(-1));
}

// Computes the scores of 16 sources for N targets with adjacent queries. Each key is read once for all targets. The
// next keys, and the values of these sources, are prefetched.
template <int N, typename T>
void score(const float* queries, const Kept<T>& kept, int64_t first, float* const* scores) {
    constexpr int64_t TOGETHER = LANES / (N > 1 ? TARGETS : 1);  // keys that fit in the registers
    const int64_t width = kept.width, n_bytes = width * sizeof(T);
    const __m512 scale = _mm512_set1_ps(1 / std::sqrt(static_cast<float>(width)));
    for (int64_t begin = first; begin < first + LANES; begin += TOGETHER) {
        const int64_t* places = kept.places + begin;
        for (int64_t byte = 0; byte < n_bytes; byte += LINE)
#pragma GCC unroll 16
            for (int64_t i = 0; i < TOGETHER; i++) {
                vectors::fetch_line(kept.keys + places[LANES + i], byte);
                vectors::fetch_line(kept.values + places[i], byte);
            }
        __m512 products[LANES] = {};
        for (int64_t d = 0; d < width; d += LANES) {
            const __mmask16 lanes = first_lanes(width - d);
#pragma GCC unroll 16
            for (int64_t i = 0; i < TOGETHER; i++) {
                const __m512 numbers = load(kept.keys + places[i] + d, lanes);
#pragma GCC unroll 4
                for (int64_t target = 0; target < N; target++) {
                    __m512& product = products[target * TOGETHER + i];
                    product = _mm512_fmadd_ps(load(queries + target * width + d, lanes), numbers, product);
                }
            }
        }
        alignas(64) float found[LANES];
        _mm512_store_ps(found, _mm512_mul_ps(sums(products), scale));
        for (int64_t target = 0; target < N; target++)
            std::copy_n(found + target * TOGETHER, TOGETHER, scores[target] + begin);
    }
}

// Replaces the scores of n sources with exp(score - largest); returns their sum, by which mix() divides.
inline float soften(float* scores, int64_t n, float largest) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += LANES) {
        const __m512 shifted = _mm512_sub_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(largest));
        const __mmask16 lanes = _mm512_cmp_ps_mask(shifted, _mm512_set1_ps(NEG_INF), _CMP_NEQ_UQ);
        const __m512 shares = _mm512_maskz_mov_ps(lanes, vectors::exponential(shifted));
        _mm512_storeu_ps(scores + i, shares);
        sum = _mm512_add_ps(sum, shares);
    }
    return _mm512_reduce_add_ps(sum);
}

// The means of the values for N targets, 64 numbers of each at a time.
template <int N, typename T>
void mix(float* const* shares, const float* sum, const Kept<T>& kept, int64_t n, float* heads) {
    constexpr int64_t REGISTERS = 4;
    for (int64_t d = 0; d < kept.width; d += REGISTERS * LANES) {
        __m512 mixed[N][REGISTERS] = {};
        __mmask16 lanes[REGISTERS];
        for (int64_t i = 0; i < REGISTERS; i++) lanes[i] = first_lanes(kept.width - d - i * LANES);
        for (int64_t source = 0; source < n; source++) {
            const T* value = kept.values + kept.places[source] + d;
#pragma GCC unroll 4
            for (int64_t i = 0; i < REGISTERS; i++) {
                const __m512 numbers = load(value + i * LANES, lanes[i]);
#pragma GCC unroll 4
                for (int64_t target = 0; target < N; target++)
                    mixed[target][i] = _mm512_fmadd_ps(_mm512_set1_ps(shares[target][source]), numbers, mixed[target][i]);
            }
        }
        for (int64_t target = 0; target < N; target++)
            for (int64_t i = 0; i < REGISTERS; i++)
                _mm512_mask_storeu_ps(heads + target * kept.width + d + i * LANES, lanes[i],
                                      _mm512_div_ps(mixed[target][i], _mm512_set1_ps(sum[target])));
    }
}

// Computes N targets from this one on, or all remaining targets if they are fewer.
template <int N, typename T>
void attend(const Attention<T>& all, int64_t row, int64_t head, int64_t target) {
    if constexpr (N > 1)
        if (all.n_targets - target < N) return attend<N - 1>(all, row, head, target);
    thread_local std::vector<float> buffer;
    thread_local std::vector<int64_t> places;
    const int64_t room = all.n_sources + LANES;
    buffer.resize(N * room);
    float *scores[N], sum[N];
    const bool* allowed[N];
    __m512 largest[N];
    for (int64_t i = 0; i < N; i++) {
        scores[i] = buffer.data() + i * room;
        allowed[i] = all.allowed;
        if (all.allowed) allowed[i] += row * all.allowed_by_row + (target + i) * all.allowed_by_target;
        largest[i] = _mm512_set1_ps(NEG_INF);
    }
    const int64_t place = ((row * all.n_heads + head) * all.n_targets + target) * all.width;
    const Kept<T> here = kept(all, row, head, places);
    int64_t n = 0;  // number of sources up to the last allowed one
    for (int64_t first = 0; first < all.n_sources; first += LANES) {
        __mmask16 lanes[N], any = 0;
        for (int64_t i = 0; i < N; i++) any |= lanes[i] = allowed_lanes(allowed[i], first, all.n_sources);
        if (any) {
            score<N>(all.queries + place, here, first, scores);
            n = std::min(first + LANES, all.n_sources);
        }
        for (int64_t i = 0; i < N; i++) {
            const __m512 found = _mm512_mask_loadu_ps(_mm512_set1_ps(NEG_INF), lanes[i], scores[i] + first);
            _mm512_storeu_ps(scores[i] + first, found);
            largest[i] = _mm512_max_ps(largest[i], found);
        }
    }
    for (int64_t i = 0; i < N; i++) sum[i] = soften(scores[i], n, _mm512_reduce_max_ps(largest[i]));
    mix<N>(scores, sum, here, n, all.heads + place);
}

template <typename T>
void attend_all(const Attention<T>& all) {
    const int64_t n = all.batch * all.n_heads;
    const auto attend_each = [&] {
#pragma omp for
        for (int64_t i = 0; i < n; i++)
            for (int64_t target = 0; target < all.n_targets; target += TARGETS)
                attend<TARGETS>(all, i / all.n_heads, i % all.n_heads, target);
    };
    vectors::in_parallel(n * all.n_targets * all.n_sources * all.width > WORTH_THREADS, attend_each);
}

}  // namespace stepping_attention
#pragma GCC pop_options
}

AOTITorchError aoti_torch_cpu_stepping_attention(
    AtenTensorHandle queries, AtenTensorHandle keys, AtenTensorHandle values, AtenTensorHandle* allowed,
    AtenTensorHandle* origins, AtenTensorHandle* heads) {
    using vectors::data, vectors::size;
    const int64_t batch = size(queries, 0), n_heads = size(queries, 1), n_targets = size(queries, 2);
    const int64_t width = size(queries, 3), n_kv_heads = size(keys, 1), n_sources = size(keys, 2);
    const auto attend = [&](auto number) {
        using T = decltype(number);
        float* found = vectors::made<float>(heads, {batch, n_heads, n_targets, width}, aoti_torch_dtype_float32());
        const int64_t by_target = allowed && size(*allowed, 2) > 1 ? n_sources : 0;
        const int64_t by_row = allowed && size(*allowed, 0) > 1 ? size(*allowed, 2) * n_sources : 0;
        stepping_attention::attend_all<T>(
            {data<float>(queries), data<T>(keys), data<T>(values), allowed ? data<bool>(*allowed) : nullptr,
             origins ? data<int64_t>(*origins) : nullptr, found, batch, n_heads, n_targets, width, n_kv_heads,
             n_sources, by_row, by_target});
    };
    int32_t type = 0;
    aoti_torch_get_dtype(keys, &type);
    type == aoti_torch_dtype_bfloat16() ? attend(uint16_t()) : attend(float());
    return AOTI_TORCH_SUCCESS;
}
