// Helpers of the C++ operators: vectors of 16 floats, and access to the tensors of torch's compiled code.
#pragma once
#include <immintrin.h>
#include <omp.h>
#include <cmath>
#include <limits>
#include <vector>

namespace vectors {

constexpr int64_t LANES = 16;  // floats per register
constexpr int64_t BLOCK = 64;  // scores processed together, one per bit of a word
constexpr uint64_t ALL = ~uint64_t{0};  // all numbers of a block
constexpr float NEG_INF = -std::numeric_limits<float>::infinity();

// Torch compiles the code around the operators with -O1, which does not inline functions with branches, and a call
// spills all registers. So functions that are called for every few numbers must be inlined explicitly.
[[gnu::always_inline]] inline __mmask16 first_lanes(int64_t n) {
    return n >= LANES ? 0xffff : n > 0 ? (1u << n) - 1 : 0;
}

// Runs the work in several threads if they pay off, else without OpenMP: even a team of one thread stops at every
// barrier and asks Linux to wake others, which took a tenth of a small step.
template <typename Work>
void in_parallel(bool worth_threads, const Work& work) {
    if (!worth_threads || omp_get_max_threads() == 1) return work();
#pragma omp parallel
    work();
}

// Prefetches n bytes that are needed soon, since the hardware prefetches only plain sequences.
[[gnu::always_inline]] inline void fetch(const void* address, int64_t n_bytes) {
    for (int64_t i = 0; i < n_bytes; i += 64) _mm_prefetch(static_cast<const char*>(address) + i, _MM_HINT_T0);
}

[[gnu::always_inline]] inline void fetch_line(const void* address, int64_t byte) {
    _mm_prefetch(static_cast<const char*>(address) + byte, _MM_HINT_T0);
}

// exp(x) for x <= 0, accurate to the last bit or two of float32.
inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);  // a NaN becomes -87
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);  // exponents of 2
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);  // ln 2 in two parts, for accuracy
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);  // coefficients of Cephes
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1)));
    return _mm512_scalef_ps(p, n);
}

// Loads 16 numbers from this address; numbers whose bit in `wanted` is 0 become -inf.
inline __m512 some(const float* numbers, uint64_t wanted) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(NEG_INF), static_cast<__mmask16>(wanted), numbers);
}

inline float largest_of_block(const float* block, uint64_t wanted) {
    __m512 largest = some(block, wanted);
    for (int64_t i = 1; i < BLOCK / LANES; i++)
        largest = _mm512_max_ps(largest, some(block + i * LANES, wanted >> (i * LANES)));
    return _mm512_reduce_max_ps(largest);
}

// Returns the position in a block of the first `wanted` number that equals `number`; one must exist.
inline int64_t first_in_block(const float* block, uint64_t wanted, float number) {
    uint64_t equal = 0;
    for (int64_t i = 0; i < BLOCK; i += LANES)
        equal |= uint64_t{_mm512_cmp_ps_mask(some(block + i, wanted >> i), _mm512_set1_ps(number), _CMP_EQ_OQ)} << i;
    return __builtin_ctzll(equal);
}

// The bits of the first n numbers of a block.
[[gnu::always_inline]] inline uint64_t first_bits(int64_t n) {
    return n >= BLOCK ? ALL : ALL >> (BLOCK - n);
}

// The log-sum-exp of n numbers, given the largest.
inline float log_sum_exp(const float* numbers, int64_t n, float largest) {
    __m512 sums[4] = {};
    const __m512 shift = _mm512_set1_ps(largest);
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
        for (int64_t j = 0; j < 4; j++)
            sums[j] = _mm512_add_ps(sums[j], exponential(_mm512_sub_ps(_mm512_loadu_ps(numbers + i + j * LANES), shift)));
    double sum = 0;
    for (const __m512& each : sums) sum += _mm512_reduce_add_ps(each);
    for (; i < n; i++) sum += std::exp(numbers[i] - largest);
    return largest + std::log(sum);
}

template <typename T>
T* data(AtenTensorHandle tensor) {
    void* found = nullptr;
    aoti_torch_get_data_ptr(tensor, &found);
    return static_cast<T*>(found);
}

inline int64_t size(AtenTensorHandle tensor, int64_t dimension) {
    int64_t found = 0;
    aoti_torch_get_size(tensor, dimension, &found);
    return found;
}

// Makes a new contiguous tensor of this shape; returns its data.
template <typename T>
T* made(AtenTensorHandle* tensor, std::initializer_list<int64_t> shape, int32_t type) {
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t i = shape.size() - 1; i > 0; i--) strides[i - 1] = strides[i] * shape.begin()[i];
    aoti_torch_empty_strided(
        shape.size(), shape.begin(), strides.data(), type, aoti_torch_device_type_cpu(), 0, tensor);
    return data<T>(*tensor);
}

}  // namespace vectors
