// Product of float rows and an int8 matrix, in AVX-512 VNNI, or in AMX if the CPU supports it and there are many rows.
// Inductor compiles it into each decoding step (decoding/ahead_of_time.py). It puts "extern" before this declaration:
AOTITorchError aoti_torch_cpu_int8_product(
    AtenTensorHandle rows, AtenTensorHandle packed, AtenTensorHandle offsets, AtenTensorHandle scales,
    int64_t n_columns, AtenTensorHandle* product);

extern "C++" {
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <vector>

#pragma GCC push_options
#pragma GCC optimize("O3")
#include "vectors.h"
namespace int8_product {

using vectors::LANES, vectors::first_lanes;
constexpr int64_t REGISTERS = 4;          // registers for the columns of a block
constexpr int64_t COLUMNS = REGISTERS * LANES;  // columns per packed block
constexpr int64_t DEPTH = 64;             // row widths are padded to a multiple of this
constexpr int64_t ROWS = 6;               // rows per product in registers
constexpr int64_t TILE = 16;              // rows per product with AMX
constexpr int64_t WORTH_TILES = 8;        // fewest rows for which AMX is faster
constexpr int64_t STRIP = 32;             // rows per strip; their products stay in the cache until all columns are done
constexpr int64_t AHEAD = 2048;           // prefetch distance in the weights, in bytes
constexpr int64_t WORTH_THREADS = 1 << 17;  // fewest multiplications for which threads pay off

struct Rows {
    uint8_t* whole;  // [n, depth], with zero point 128
    float* scales;
    float* product;
    int64_t n, depth, n_columns;

    [[gnu::always_inline]] Rows from(int64_t row) const {
        return {whole + row * depth, scales + row, product + row * n_columns, n - row, depth, n_columns};
    }
};

struct Columns {
    const int8_t* packed;  // [depth / 4, COLUMNS, 4]
    const int32_t* offsets;  // contribution of the zero point to each sum
    const float* scales;
    int64_t first, n;
};

// Quantizes a row with the scale of its largest absolute value, as Int8Linear does; returns the scale.
inline float round_row(const float* row, int64_t width, int64_t depth, uint8_t* whole) {
    __m512 largest = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += LANES)
        largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_maskz_loadu_ps(first_lanes(width - i), row + i)));
    const float scale = std::max(_mm512_reduce_max_ps(largest), 1e-8f) / 127;
    const __m512 steps = _mm512_set1_ps(1 / scale);  // one division takes as long as the rest of the loop body
    for (int64_t i = 0; i < depth; i += LANES) {
        const __m512 x = _mm512_maskz_loadu_ps(first_lanes(width - i), row + i);
        const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(x, steps));
        const __m512i shifted = _mm512_add_epi32(rounded, _mm512_set1_epi32(128));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(whole + i), _mm512_cvtepi32_epi8(shifted));
    }
    return scale;
}

inline void write_row(const __m512i* sums, const Rows& rows, int64_t row, const Columns& columns) {
    float* product = rows.product + row * rows.n_columns + columns.first;
#pragma GCC unroll 4
    for (int64_t i = 0; i < REGISTERS; i++) {
        const __m512i offsets = _mm512_loadu_si512(columns.offsets + i * LANES);
        const __m512 scales = _mm512_loadu_ps(columns.scales + i * LANES);
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[i], offsets));
        const __m512 scaled = _mm512_mul_ps(sum, _mm512_mul_ps(_mm512_set1_ps(rows.scales[row]), scales));
        _mm512_mask_storeu_ps(product + i * LANES, first_lanes(columns.n - i * LANES), scaled);
    }
}

// Adds the products of 64 pairs of numbers to 16 sums. It is inline assembly because, with the intrinsic, gcc 12 spills
// most of the 24 registers of multiply() to memory, which takes two to three times as long.
[[gnu::always_inline]] inline void add_products(__m512i& sums, __m512i x, __m512i weights) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(weights));
}

// Multiplies the first N rows, or all rows if there are fewer.
template <int N>
void multiply(const Rows& rows, const Columns& columns) {
    if constexpr (N > 1)
        if (rows.n < N) return multiply<N - 1>(rows, columns);
    __m512i sums[N][REGISTERS] = {};
    for (int64_t k = 0; k < rows.depth; k += 4) {
        vectors::fetch(columns.packed + k * COLUMNS + AHEAD, 4 * COLUMNS);
        __m512i weights[REGISTERS];
#pragma GCC unroll 4
        for (int64_t i = 0; i < REGISTERS; i++)
            weights[i] = _mm512_loadu_si512(columns.packed + (k * REGISTERS + 4 * i) * LANES);
#pragma GCC unroll 6
        for (int64_t row = 0; row < N; row++) {
            const __m512i x = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(rows.whole + row * rows.depth + k));
#pragma GCC unroll 4
            for (int64_t i = 0; i < REGISTERS; i++) add_products(sums[row][i], x, weights[i]);
        }
    }
#pragma GCC unroll 6
    for (int64_t row = 0; row < N; row++) write_row(sums[row], rows, row, columns);
}

#ifdef __AMX_INT8__
struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE};
};

inline bool has_tiles() {
    constexpr int ask = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM: Linux requires a request before AMX is used
    static const bool allowed = syscall(SYS_arch_prctl, ask, tile_data) == 0;
    return allowed;
}

// Multiplies a tile of rows; the first tile of each block of columns also prefetches the weights.
inline void multiply_tile(const Rows& rows, const Columns& columns, bool are_first) {
    alignas(64) int32_t sums[TILE][COLUMNS];
    constexpr int64_t stride = 4 * COLUMNS;
    const int8_t* weights = columns.packed;
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t k = 0; k < rows.depth; k += DEPTH, weights += DEPTH * COLUMNS) {
        if (are_first) vectors::fetch(weights + DEPTH * COLUMNS, DEPTH * COLUMNS);
        _tile_loadd(4, rows.whole + k, rows.depth);
        _tile_loadd(5, weights, stride); _tile_dpbusd(0, 4, 5);
        _tile_loadd(6, weights + 64, stride); _tile_dpbusd(1, 4, 6);
        _tile_loadd(5, weights + 128, stride); _tile_dpbusd(2, 4, 5);
        _tile_loadd(6, weights + 192, stride); _tile_dpbusd(3, 4, 6);
    }
    _tile_stored(0, sums[0], stride); _tile_stored(1, sums[0] + 16, stride);
    _tile_stored(2, sums[0] + 32, stride); _tile_stored(3, sums[0] + 48, stride);
    for (int64_t row = 0; row < std::min(rows.n, TILE); row++)
        write_row(reinterpret_cast<const __m512i*>(sums[row]), rows, row, columns);
}
#else
inline bool has_tiles() { return false; }
#endif

// Quantizes rows of this width, and multiplies them.
inline void multiply_all(const float* exact, int64_t width, const Rows& rows, const Columns& all) {
    const bool tiles = rows.n >= WORTH_TILES && has_tiles();
    const auto work = [&] {
#pragma omp for
        for (int64_t row = 0; row < rows.n; row++)
            rows.scales[row] = round_row(exact + row * width, width, rows.depth, rows.whole + row * rows.depth);
#ifdef __AMX_INT8__
        const TileShapes shapes;
        if (tiles) _tile_loadconfig(&shapes);
#endif
        for (int64_t strip = 0; strip < rows.n; strip += STRIP)
#pragma omp for nowait
            for (int64_t first = 0; first < all.n; first += COLUMNS) {
                const Columns columns{all.packed + first * rows.depth, all.offsets + first, all.scales + first,
                                      first, all.n - first};
                Rows left = rows.from(strip);
                left.n = std::min(left.n, STRIP);
#ifdef __AMX_INT8__
                for (bool are_first = true; tiles && left.n >= WORTH_TILES; are_first = false) {
                    multiply_tile(left, columns, are_first);
                    left = left.from(std::min(left.n, TILE));
                }
#endif
                for (; left.n > 0; left = left.from(std::min(left.n, ROWS))) multiply<ROWS>(left, columns);
            }
#ifdef __AMX_INT8__
        if (tiles) _tile_release();
#endif
    };
    vectors::in_parallel(rows.n * rows.depth * all.n > WORTH_THREADS, work);
}

}  // namespace int8_product
}

AOTITorchError aoti_torch_cpu_int8_product(
    AtenTensorHandle rows, AtenTensorHandle packed, AtenTensorHandle offsets, AtenTensorHandle scales,
    int64_t n_columns, AtenTensorHandle* product) {
    using namespace int8_product;
    using vectors::data, vectors::size;
    const int64_t n = size(rows, 0), width = size(rows, 1), depth = 4 * size(packed, 1);
    float* found = vectors::made<float>(product, {n, n_columns}, aoti_torch_dtype_float32());
    thread_local std::vector<uint8_t> whole;
    thread_local std::vector<float> of_rows;
    whole.resize((n + TILE - 1) * depth);  // AMX reads whole tiles, even if fewer rows remain
    of_rows.resize(n);
    multiply_all(data<float>(rows), width,
                 {whole.data(), of_rows.data(), found, n, depth, n_columns},
                 {data<int8_t>(packed), data<int32_t>(offsets), data<float>(scales), 0, n_columns});
    return AOTI_TORCH_SUCCESS;
}
#pragma GCC pop_options
