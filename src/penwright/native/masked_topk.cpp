// The log-sum-exp of each row, and its largest logits among the tokens allowed in its situation, in AVX-512.
// Inductor compiles it into decoding steps (decoding/ahead_of_time.py). It puts "extern" before this declaration:
AOTITorchError aoti_torch_cpu_masked_topk(
    AtenTensorHandle logits, AtenTensorHandle allowed, AtenTensorHandle situations, int64_t n_best,
    AtenTensorHandle* values, AtenTensorHandle* indices, AtenTensorHandle* logsumexp);

extern "C++" {
#include <immintrin.h>
#include <algorithm>
#include <cmath>
#include <vector>

#pragma GCC push_options
#pragma GCC optimize("O3")
#include "vectors.h"
namespace masked_topk {

using vectors::ALL, vectors::BLOCK, vectors::NEG_INF, vectors::first_in_block, vectors::largest_of_block;

// Finds the n largest remaining numbers, in order; equal numbers stay in order. `left` has a bit per remaining number.
// `largest` has the maximum of each block, padded with -inf to a multiple of BLOCK.
inline void find_best(const float* row, int64_t n_best, std::vector<uint64_t>& left, std::vector<float>& largest,
                      float* values, int64_t* indices) {
    for (int64_t i = 0; i < n_best; i++) {
        size_t first = 0;
        values[i] = NEG_INF;
        indices[i] = 0;
        for (size_t begin = 0; begin < largest.size(); begin += BLOCK) {
            const float here = largest_of_block(&largest[begin], ALL);
            if (here > values[i]) values[i] = here, first = begin;
        }
        if (values[i] == NEG_INF) continue;
        const size_t block = first + first_in_block(&largest[first], ALL, values[i]);
        const float* numbers = row + block * BLOCK;
        const int64_t index = first_in_block(numbers, left[block], values[i]);
        indices[i] = block * BLOCK + index;
        left[block] &= ~(uint64_t{1} << index);
        largest[block] = largest_of_block(numbers, left[block]);
    }
}

// Finds the n largest allowed logits of a row; returns the log-sum-exp of all logits.
inline float topk_of_row(const float* row, int64_t n, const uint64_t* allowed, int64_t n_best,
                         float* values, int64_t* indices) {
    thread_local std::vector<uint64_t> left;
    thread_local std::vector<float> largest;
    const int64_t n_blocks = (n + BLOCK - 1) / BLOCK;
    left.assign(allowed, allowed + n_blocks);
    largest.assign((n_blocks + BLOCK - 1) / BLOCK * BLOCK, NEG_INF);
    float of_all = NEG_INF;
    for (int64_t block = 0; block < n_blocks; block++) {
        const float* numbers = row + block * BLOCK;
        const uint64_t here = vectors::first_bits(n - block * BLOCK);
        largest[block] = largest_of_block(numbers, left[block]);
        of_all = std::max(of_all, left[block] == here ? largest[block] : largest_of_block(numbers, here));
    }
    find_best(row, n_best, left, largest, values, indices);
    return vectors::log_sum_exp(row, n, of_all);
}

}  // namespace masked_topk
#pragma GCC pop_options
}

AOTITorchError aoti_torch_cpu_masked_topk(
    AtenTensorHandle logits, AtenTensorHandle allowed, AtenTensorHandle situations, int64_t n_best,
    AtenTensorHandle* values, AtenTensorHandle* indices, AtenTensorHandle* logsumexp) {
    using vectors::data, vectors::size, vectors::made;
    const int64_t n_rows = size(logits, 0), n = size(logits, 1), n_words = size(allowed, 1);
    float* best = made<float>(values, {n_rows, n_best}, aoti_torch_dtype_float32());
    int64_t* where = made<int64_t>(indices, {n_rows, n_best}, aoti_torch_dtype_int64());
    float* sums = made<float>(logsumexp, {n_rows}, aoti_torch_dtype_float32());
    for (int64_t row = 0; row < n_rows; row++)
        sums[row] = masked_topk::topk_of_row(
            data<float>(logits) + row * n, n, data<uint64_t>(allowed) + data<int64_t>(situations)[row] * n_words, n_best,
            best + row * n_best, where + row * n_best);
    return AOTI_TORCH_SUCCESS;
}
