// The next token of each row: the most likely or a sampled one among those allowed in its situation, in AVX-512.
// Inductor compiles it into decoding steps (decoding/ahead_of_time.py). It puts "extern" before this declaration:
AOTITorchError aoti_torch_cpu_next_token(
    AtenTensorHandle logits, AtenTensorHandle allowed, AtenTensorHandle situations, AtenTensorHandle temperatures,
    AtenTensorHandle chances, AtenTensorHandle* tokens, AtenTensorHandle* log_probs);

extern "C++" {
#include <immintrin.h>
#include <algorithm>
#include <cmath>
#include <vector>

#pragma GCC push_options
#pragma GCC optimize("O3")
#include "vectors.h"
namespace next_token {

using vectors::BLOCK, vectors::LANES, vectors::NEVER;

struct Row {
    const float* logits;
    int64_t n;
    const uint64_t* allowed;  // a bit for each token, set if it is allowed

    int64_t n_blocks() const { return (n + BLOCK - 1) / BLOCK; }
};

// Writes the unnormalized probabilities of the tokens of a block; 0 for tokens that are not allowed.
inline void weigh(const Row& row, int64_t block, float largest, float temperature, float* weights) {
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        const auto wanted = static_cast<__mmask16>(row.allowed[block] >> i);
        const __m512 x = _mm512_maskz_loadu_ps(wanted, row.logits + block * BLOCK + i);
        const __m512 below = _mm512_div_ps(_mm512_sub_ps(x, _mm512_set1_ps(largest)), _mm512_set1_ps(temperature));
        _mm512_storeu_ps(weights + i, _mm512_maskz_mov_ps(wanted, vectors::exponential(below)));
    }
}

// Samples by inversion: returns the first token at which the cumulative weight exceeds `chance` times the total.
inline int64_t draw(const Row& row, float largest, float temperature, double chance) {
    thread_local std::vector<double> up_to;  // cumulative weight at the end of each block
    alignas(64) float weights[BLOCK];
    up_to.assign(row.n_blocks(), 0);
    double sum = 0;
    for (int64_t block = 0; block < row.n_blocks(); block++) {
        weigh(row, block, largest, temperature, weights);
        for (float weight : weights) sum += weight;
        up_to[block] = sum;
    }
    const double share = std::min(chance * sum, std::nextafter(sum, 0.0));
    const int64_t block = std::upper_bound(up_to.begin(), up_to.end() - 1, share) - up_to.begin();
    weigh(row, block, largest, temperature, weights);
    sum = block ? up_to[block - 1] : 0;
    int64_t place = 0;
    while (place + 1 < BLOCK && (sum += weights[place]) <= share) place++;
    return block * BLOCK + place;
}

inline int64_t first_largest(const Row& row, float largest) {
    for (int64_t block = 0; block < row.n_blocks(); block++) {
        const float* numbers = row.logits + block * BLOCK;
        if (vectors::largest_of_block(numbers, row.allowed[block]) == largest)
            return block * BLOCK + vectors::first_in_block(numbers, row.allowed[block], largest);
    }
    return 0;  // all logits are NaN
}

inline void choose(const Row& row, float temperature, double chance, int64_t* token, float* log_prob) {
    float may_come = NEVER, of_all = NEVER;
    for (int64_t block = 0; block < row.n_blocks(); block++) {
        const float* numbers = row.logits + block * BLOCK;
        may_come = std::max(may_come, vectors::largest_of_block(numbers, row.allowed[block]));
        of_all = std::max(of_all, vectors::largest_of_block(numbers, vectors::first_bits(row.n - block * BLOCK)));
    }
    *token = temperature > 0 && may_come > NEVER ? draw(row, may_come, temperature, chance) : first_largest(row, may_come);
    *log_prob = row.logits[*token] - vectors::log_sum_exp(row.logits, row.n, of_all);
}

}  // namespace next_token
#pragma GCC pop_options
}

AOTITorchError aoti_torch_cpu_next_token(
    AtenTensorHandle logits, AtenTensorHandle allowed, AtenTensorHandle situations, AtenTensorHandle temperatures,
    AtenTensorHandle chances, AtenTensorHandle* tokens, AtenTensorHandle* log_probs) {
    using vectors::data, vectors::size, vectors::made;
    const int64_t n_rows = size(logits, 0), n = size(logits, 1), n_words = size(allowed, 1);
    int64_t* chosen = made<int64_t>(tokens, {n_rows}, aoti_torch_dtype_int64());
    float* chosen_log_probs = made<float>(log_probs, {n_rows}, aoti_torch_dtype_float32());
    for (int64_t i = 0; i < n_rows; i++) {
        const next_token::Row row{data<float>(logits) + i * n, n, data<uint64_t>(allowed) + data<int64_t>(situations)[i] * n_words};
        next_token::choose(row, data<float>(temperatures)[i], data<double>(chances)[i], chosen + i, chosen_log_probs + i);
    }
    return AOTI_TORCH_SUCCESS;
}
