// The primitives of portable.h on a card: CUDA and HIP.
#pragma once

#if defined(__HIP__) || defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define GPU_IS_HIP 1
#define RUNTIME(name) hip##name
#ifndef GPU_WAVE
#define GPU_WAVE 64  // of gfx9; the builder says 32 for RDNA
#endif
#if (defined(__GFX9__) && GPU_WAVE != 64) || \
    ((defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)) && GPU_WAVE != 32)
#error "GPU_WAVE is not the wave width of this architecture"
#endif
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define GPU_IS_HIP 0
#define RUNTIME(name) cuda##name
#define GPU_WAVE 32
#endif

// A kernel says how many lanes its block has at most: HIP supposes 1024 and then gives each lane a quarter of the
// registers that one of a block of 256 may have, so that values spill to memory. The 1 lets the compiler use them
// all: left to choose, ptxas spills a few bytes to fit one more block.
#define KERNEL(max_threads) __global__ __launch_bounds__(max_threads, 1) void
#define DEVICE __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__  // in a class, where `inline` says itself
#define UNROLL _Pragma("unroll")  // before a loop: arrays indexed by its counter can then lie in registers

constexpr bool has_wave(int wave) { return wave == GPU_WAVE; }

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int64_t block_index_x() { return blockIdx.x; }
DEVICE int64_t block_index_y() { return blockIdx.y; }
DEVICE int64_t block_index_z() { return blockIdx.z; }
DEVICE int64_t num_blocks_x() { return gridDim.x; }

DEVICE void barrier() { __syncthreads(); }

// The block's shared memory, as large as the launch asked for.
template <class T>
DEVICE T* shared_memory() {
  extern __shared__ Pack shared_packs[];
  return reinterpret_cast<T*>(shared_packs);
}

// The value of the lane whose index differs by the bits of `mask`.
template <int kWave>
DEVICE float shuffle_xor(float value, int mask) {
#if GPU_IS_HIP
  return __shfl_xor(value, mask, kWave);
#else
  static_assert(kWave == 32, "CUDA's waves have 32 lanes");
  return __shfl_xor_sync(0xffffffffu, value, mask);
#endif
}

// Adds one and waits for nothing: no lane needs the sum.
DEVICE void add_one(int64_t* counter) { atomicAdd(reinterpret_cast<unsigned long long*>(counter), 1ull); }

// --- 16 bytes a lane -------------------------------------------------------------------------------------------
//
// `streaming` marks what is read once: it is the first to leave the caches, so that weights do not drive out what is
// used again. HIP pointers are cast to global memory's address space: a load through a pointer that could also be
// of shared memory (flat_load) waits for both kinds of memory.
#if GPU_IS_HIP
typedef uint32_t PackVector __attribute__((ext_vector_type(4)));
typedef __attribute__((address_space(1))) PackVector GlobalPack;
typedef __attribute__((address_space(1))) const PackVector ConstGlobalPack;

DEVICE Pack pack_of(PackVector v) { return {{v.x, v.y, v.z, v.w}}; }
DEVICE PackVector vector_of(const Pack& pack) {
  return PackVector{pack.words[0], pack.words[1], pack.words[2], pack.words[3]};
}
DEVICE Pack load_pack(const void* from) { return pack_of(*(ConstGlobalPack*)from); }
DEVICE void store_pack(void* to, const Pack& pack) { *(GlobalPack*)to = vector_of(pack); }
#if __has_builtin(__builtin_nontemporal_load) && __has_builtin(__builtin_nontemporal_store)
DEVICE Pack load_pack_streaming(const void* from) {
  return pack_of(__builtin_nontemporal_load((ConstGlobalPack*)from));
}
DEVICE void store_pack_streaming(void* to, const Pack& pack) {
  __builtin_nontemporal_store(vector_of(pack), (GlobalPack*)to);
}
#else  // a vendor's compiler may lack them: without the mark, and as wide
DEVICE Pack load_pack_streaming(const void* from) { return load_pack(from); }
DEVICE void store_pack_streaming(void* to, const Pack& pack) { store_pack(to, pack); }
#endif
#else
DEVICE Pack pack_of(uint4 v) { return {{v.x, v.y, v.z, v.w}}; }
DEVICE uint4 vector_of(const Pack& pack) { return {pack.words[0], pack.words[1], pack.words[2], pack.words[3]}; }
DEVICE Pack load_pack(const void* from) { return pack_of(*static_cast<const uint4*>(from)); }
DEVICE Pack load_pack_streaming(const void* from) { return pack_of(__ldcs(static_cast<const uint4*>(from))); }
DEVICE void store_pack(void* to, const Pack& pack) { *static_cast<uint4*>(to) = vector_of(pack); }
DEVICE void store_pack_streaming(void* to, const Pack& pack) { __stcs(static_cast<uint4*>(to), vector_of(pack)); }
#endif

// --- fp16 by its bits ------------------------------------------------------------------------------------------

#if GPU_IS_HIP
DEVICE float half_to_float(uint16_t bits) {
  _Float16 half;
  memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}
DEVICE uint16_t float_to_half(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}
#else
DEVICE float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
DEVICE uint16_t float_to_half(float value) { return __half_as_ushort(__float2half_rn(value)); }
#endif

// --- launches --------------------------------------------------------------------------------------------------

inline const char* runtime_error_text(int code) {
  return RUNTIME(GetErrorString)(static_cast<RUNTIME(Error_t)>(code));
}

// Starts a grid of blocks of `threads` lanes on a stream (0: the default one); returns the runtime's error code. Does
// not wait: what goes wrong on the card shows when somebody synchronizes.
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), Grid grid, int threads, size_t shared_bytes, uint64_t stream,
           Arguments... arguments) {
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  kernel<<<blocks, threads, shared_bytes, reinterpret_cast<RUNTIME(Stream_t)>(stream)>>>(arguments...);
  return static_cast<int>(RUNTIME(GetLastError)());
}
