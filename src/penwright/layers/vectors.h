// What our operators in C++ share: registers of 16 numbers, and tensors as torch's compiled code hands them over.
#pragma once

namespace vectors {

constexpr int64_t LANES = 16;  // numbers of a register

inline __mmask16 first_lanes(int64_t n) {
    return n >= LANES ? 0xffff : n > 0 ? (1u << n) - 1 : 0;
}

// Ask for so many bytes that are needed soon: memory is slow, and reads ahead by itself only in plain sequences.
inline void fetch(const void* address, int64_t n_bytes) {
    for (int64_t i = 0; i < n_bytes; i += 64) _mm_prefetch(static_cast<const char*>(address) + i, _MM_HINT_T0);
}

// exp(x) for x <= 0, as exact as float32 can be but for its last bit or two.
inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);  // of something that is no number, that
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);  // powers of two
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);  // log 2 in two parts
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);  // Cephes
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1)));
    return _mm512_scalef_ps(p, n);
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

// A new tensor of this shape, rows of numbers side by side.
template <typename T>
T* made(AtenTensorHandle* tensor, std::initializer_list<int64_t> shape, int32_t type) {
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t i = shape.size() - 1; i > 0; i--) strides[i - 1] = strides[i] * shape.begin()[i];
    aoti_torch_empty_strided(
        shape.size(), shape.begin(), strides.data(), type, aoti_torch_device_type_cpu(), 0, tensor);
    return data<T>(*tensor);
}

}  // namespace vectors
