// How fast can these cores read memory? Readers of a buffer whose contents the host can work out without reading it.
//
// Every reader returns the wrapping 64-bit sum of all words, and the host compares it with the sum of the generated
// values (read_probe_expected): that is the proof that every byte was read. Without one a compiler may drop loads
// whose results nobody wants, and then "reads" 1,700 GB/s from a 25 GB/s memory.
//
// No single reader is the fastest everywhere. What limits a core is how many cache lines it has in flight, and how
// many of them its prefetchers see coming: so the readers differ in
//   streams   places in its share that a thread reads in turn, since a prefetcher follows each of them by itself,
//   unroll    lines per stream and turn, each into its own accumulator,
//   prefetch  bytes that a software prefetch runs ahead of a stream; 0 for none.
// Threads take the buffer in pieces of 4 MiB, on demand: against one share each that is 3 to 11 per cent faster
// (docs/lab-log.md), since nobody waits for a thread that was slowed, and streams of a piece lie close together.
// Vectors are the compiler's own, so one source serves AVX-512, AVX2, SSE2 and NEON.
#include "../cpu_pool.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define ISA "avx512"
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define ISA "avx2"
#else
#define VECTOR_BYTES 16
#define ISA "portable"
#endif

namespace {

typedef uint64_t Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));

constexpr int kLineBytes = 64;
constexpr size_t kPieceLines = (size_t{4} << 20) / kLineBytes;
constexpr int kWordsPerLine = kLineBytes / sizeof(uint64_t);
constexpr int kWordsPerVector = sizeof(Vector) / sizeof(uint64_t);
constexpr int kVectorsPerLine = kLineBytes / sizeof(Vector);

struct Line {
  Vector vectors[kVectorsPerLine];
};

// The n-th of `num_shares` contiguous shares.
struct Share {
  size_t begin, end;
  Share(size_t num_lines, size_t n, size_t num_shares)
      : begin(num_lines * n / num_shares), end(num_lines * (n + 1) / num_shares) {}
};

// A pool launch of any callable (thread, num_threads).
template <typename Body>
void parallel(cpu_pool* pool, Body body) {
  cpu_pool_run(pool, [](void* b, int thread, int num_threads) { (*static_cast<Body*>(b))(thread, num_threads); }, &body);
}

struct alignas(128) Partial {  // a cache line each
  uint64_t sum = 0;
};

// Wrapping sum of what each thread returns.
template <typename Body>
uint64_t parallel_sum(cpu_pool* pool, Body body) {
  std::vector<Partial> partials(pool == nullptr ? 1 : pool->num_threads);
  parallel(pool, [&](int thread, int num_threads) { partials[thread].sum = body(thread, num_threads); });
  uint64_t sum = 0;
  for (const Partial& partial : partials) sum += partial.sum;
  return sum;
}

inline void add_line(Vector& sum, const Line& line) {
  for (const Vector& vector : line.vectors) sum += vector;
}

inline uint64_t words_sum(const Vector& vector) {
  uint64_t sum = 0;
  for (int i = 0; i < kWordsPerVector; ++i) sum += vector[i];
  return sum;
}

template <int kStreams, int kUnroll, int kPrefetchBytes>
uint64_t read_lines(const Line* lines, size_t num_lines) {
  Vector sums[kStreams][kUnroll] = {};
  const size_t stride = num_lines / (kStreams * kUnroll) * kUnroll;
  for (size_t i = 0; i < stride; i += kUnroll)
    // Unrolled for certain: left to itself the compiler keeps some loops, with the accumulators in memory.
#pragma GCC unroll 16
    for (int stream = 0; stream < kStreams; ++stream)
#pragma GCC unroll 16
      for (int u = 0; u < kUnroll; ++u) {
        const Line* line = lines + stream * stride + i + u;
        if (kPrefetchBytes > 0) __builtin_prefetch(line + kPrefetchBytes / kLineBytes);
        add_line(sums[stream][u], *line);
      }
  // What the streams leave over.
  for (size_t i = kStreams * stride; i < num_lines; ++i) add_line(sums[0][0], lines[i]);
  uint64_t sum = 0;
  for (const auto& stream : sums)
    for (const Vector& vector : stream) sum += words_sum(vector);
  return sum;
}

struct Variant {
  const char* name;
  uint64_t (*read)(const Line* lines, size_t num_lines);
};

#define VARIANT(streams, unroll, prefetch) \
  {ISA " streams=" #streams " unroll=" #unroll " prefetch=" #prefetch, read_lines<streams, unroll, prefetch>}

constexpr Variant kVariants[] = {
    VARIANT(1, 4, 0), VARIANT(1, 8, 0),  VARIANT(1, 16, 0), VARIANT(1, 8, 4096), VARIANT(4, 2, 0),    VARIANT(4, 4, 0),
    VARIANT(8, 1, 0), VARIANT(8, 2, 0),  VARIANT(16, 1, 0), VARIANT(16, 2, 0),   VARIANT(8, 2, 2048), VARIANT(16, 1, 1024),
};

// Past the caches: a plain store of a line would read it first.
inline void store_vector(Vector* to, Vector value) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value);
#else
  *to = value;
#endif
}

// Streaming stores are not ordered with the pool's "finished"; a reader on another core must see them.
inline void end_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The words: splitmix64 of seed + index (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
inline uint64_t word_at(uint64_t seed, size_t index) {
  uint64_t z = (seed + index) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

// Lines are 64 bytes and 64-byte aligned. A null pool is the calling thread alone.

extern "C" int read_probe_num_variants() { return sizeof kVariants / sizeof kVariants[0]; }

extern "C" const char* read_probe_variant(int variant) { return kVariants[variant].name; }

// The sum of all words, read by the pool's first `num_readers` threads.
extern "C" uint64_t read_probe_read(cpu_pool* pool, int variant, const void* lines, size_t num_lines, int num_readers) {
  const size_t num_pieces = num_lines / kPieceLines + num_readers;
  std::atomic<size_t> next{0};
  return parallel_sum(pool, [&](int thread, int) -> uint64_t {
    uint64_t sum = 0;
    if (thread >= num_readers) return sum;
    for (size_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < num_pieces;) {
      const Share share(num_lines, piece, num_pieces);
      sum += kVariants[variant].read(static_cast<const Line*>(lines) + share.begin, share.end - share.begin);
    }
    return sum;
  });
}

// The sum that a reader must find, from the generator alone: no memory is read.
extern "C" uint64_t read_probe_expected(cpu_pool* pool, uint64_t seed, size_t num_lines) {
  return parallel_sum(pool, [=](int thread, int num_threads) {
    const Share share(num_lines, thread, num_threads);
    uint64_t sum = 0;
    for (size_t i = share.begin * kWordsPerLine; i < share.end * kWordsPerLine; ++i) sum += word_at(seed, i);
    return sum;
  });
}

// Each thread fills a share, so that pages lie in the memories of all that will read them.
extern "C" void read_probe_fill(cpu_pool* pool, uint64_t seed, void* lines, size_t num_lines) {
  parallel(pool, [=](int thread, int num_threads) {
    const Share share(num_lines, thread, num_threads);
    uint64_t* words = static_cast<uint64_t*>(lines);
    for (size_t i = share.begin * kWordsPerLine; i < share.end * kWordsPerLine; ++i) words[i] = word_at(seed, i);
  });
}

extern "C" void read_probe_copy(cpu_pool* pool, void* to, const void* from, size_t num_lines) {
  parallel(pool, [=](int thread, int num_threads) {
    const Share share(num_lines, thread, num_threads);
    for (size_t i = share.begin; i < share.end; ++i)
      for (int v = 0; v < kVectorsPerLine; ++v)
        store_vector(static_cast<Line*>(to)[i].vectors + v, static_cast<const Line*>(from)[i].vectors[v]);
    end_stores();
  });
}

// Sets every word to `value`.
extern "C" void read_probe_write(cpu_pool* pool, void* lines, size_t num_lines, uint64_t value) {
  parallel(pool, [=](int thread, int num_threads) {
    const Share share(num_lines, thread, num_threads);
    const Vector vector = value - Vector{};
    for (size_t i = share.begin; i < share.end; ++i)
      for (int v = 0; v < kVectorsPerLine; ++v) store_vector(static_cast<Line*>(lines)[i].vectors + v, vector);
    end_stores();
  });
}
