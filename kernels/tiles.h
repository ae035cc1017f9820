// Tile registers (AMX): one instruction multiplies 16 rows of bf16, a line each, with up to 16 columns.
//
// A tile holds up to 16 rows of at most 64 bytes. Its rows are loaded from and stored to memory any distance apart, so
// they may lie in 16 different streams of a weight. A product adds to a tile of fp32
//
//     C[i][j] += sum over p of A[i][2p] B[p][2j] + A[i][2p + 1] B[p][2j + 1]
//
// so A is a matrix as it lies in memory, while B has pairs of its rows side by side. Denormals count as zero, and in
// which order the unit adds is its own. A multiplication takes about as many cycles as A has rows, which is what makes it
// worth while: a line costs one cycle for 16 columns, where vectors take at least one for each.
//
// The system must allow it to a process once; tiles have no shapes until a thread has set them. With
// -DTILES_IN_SOFTWARE all of it is done by loops, so that kernels can be tested on a machine without the unit.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "simd.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES_IN_HARDWARE
#endif

constexpr int kTileRows = 16;
constexpr int64_t kTileBytes = 64;  // of a row
constexpr int64_t kTileColumns = kTileBytes / sizeof(bf16);

struct TileShape {
  int64_t rows, row_bytes;
};

#if defined(TILES_IN_SOFTWARE)

struct TileFile {
  TileShape shape[8];
  unsigned char bytes[8][kTileRows][kTileBytes];
};

inline thread_local TileFile tile_file;

inline bool tiles_usable() { return true; }

// Sets the shapes of tiles 0, 1, ... for the calling thread, and takes them back.
class TileShapes {
 public:
  explicit TileShapes(std::initializer_list<TileShape> shapes) {
    std::copy(shapes.begin(), shapes.end(), tile_file.shape);
  }
  ~TileShapes() { memset(static_cast<void*>(&tile_file), 0xff, sizeof tile_file); }
};

template <int Tile>
inline void zero_tile() {
  memset(tile_file.bytes[Tile], 0, sizeof tile_file.bytes[Tile]);
}

template <int Tile>
inline void load_tile(const void* from, int64_t stride_bytes) {
  const TileShape& shape = tile_file.shape[Tile];
  for (int64_t i = 0; i < shape.rows; ++i)
    memcpy(tile_file.bytes[Tile][i], static_cast<const char*>(from) + i * stride_bytes, shape.row_bytes);
}

template <int Tile>
inline void store_tile(void* to, int64_t stride_bytes) {
  const TileShape& shape = tile_file.shape[Tile];
  for (int64_t i = 0; i < shape.rows; ++i)
    memcpy(static_cast<char*>(to) + i * stride_bytes, tile_file.bytes[Tile][i], shape.row_bytes);
}

template <int C, int A, int B>
inline void multiply_tiles() {
  const auto element = [](int tile, int64_t row, int64_t column) {
    bf16 value;
    memcpy(&value, tile_file.bytes[tile][row] + column * sizeof value, sizeof value);
    return to_float(value);
  };
  for (int64_t i = 0; i < tile_file.shape[C].rows; ++i)
    for (int64_t j = 0; j * 4 < tile_file.shape[C].row_bytes; ++j) {
      float sum;
      memcpy(&sum, tile_file.bytes[C][i] + j * sizeof sum, sizeof sum);
      for (int64_t p = 0; p * 4 < tile_file.shape[A].row_bytes; ++p)
        sum += element(A, i, 2 * p) * element(B, p, 2 * j) + element(A, i, 2 * p + 1) * element(B, p, 2 * j + 1);
      memcpy(tile_file.bytes[C][i] + j * sizeof sum, &sum, sizeof sum);
    }
}

#elif defined(TILES_IN_HARDWARE)

// Whether the system lets this process use them, which has to be asked for.
inline bool tiles_usable() {
  constexpr int kAskFor = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
  return allowed;
}

class TileShapes {
 public:
  explicit TileShapes(std::initializer_list<TileShape> shapes) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    int tile = 0;
    for (const TileShape& shape : shapes) {
      config.row_bytes[tile] = static_cast<uint16_t>(shape.row_bytes);
      config.rows[tile++] = static_cast<uint8_t>(shape.rows);
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~TileShapes() { asm volatile("tilerelease"); }
};

// The compiler's own functions take a literal for a tile, no template argument.
template <int Tile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}

template <int Tile>
inline void load_tile(const void* from, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(Tile) : "memory");
}

template <int Tile>
inline void store_tile(void* to, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(Tile) : "memory");
}

template <int C, int A, int B>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#endif

#if defined(TILES_IN_SOFTWARE) || defined(TILES_IN_HARDWARE)
#define HAVE_TILES
#endif
