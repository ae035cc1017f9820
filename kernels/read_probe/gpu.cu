// How fast can this card read memory? Readers of a buffer whose contents can be worked out without reading it.
//
// As on the CPU (cpu.cpp), every reader returns the wrapping 64-bit sum of all words, to be compared with that of the
// generated values (read_probe_expected): the proof that every byte was read. A compiler may drop loads whose results
// nobody wants.
//
// Memory answers after some 600 ns, so what counts is how many bytes are on their way (Little's law: 5 TB/s x 600 ns is
// 3 MB). All loads are of 128 bits a lane, neighbouring lanes take neighbouring packs, and readers differ in
//   order     tiles: blocks take neighbouring tiles in turns, and the whole card walks through the buffer once;
//             shares: each block walks through a share of its own, so there are as many streams as blocks,
//   unroll    packs that a lane asks for before it adds up the first,
//   caching   streaming loads are the first to leave the caches; cached ones are as any load.
// How many blocks there are is a parameter too: more than run at once, and the last ones run alone.
#include "../portable.h"
#include "../slots.h"

namespace {

constexpr int kThreads = 256;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kPacksPerLine = kLineBytes / sizeof(Pack), kWordsPerLine = kLineBytes / sizeof(uint64_t);
constexpr int64_t kMaxBlocks = 1 << 20;

// The packs that a block takes: [begin, end) in steps of `step`, each step one tile of kThreads * unroll packs.
struct Walk {
  int64_t begin, end, step;
};

DEVICE Walk tiles(int64_t num_packs, int64_t tile) {
  return {block_index_x() * tile, num_packs, num_blocks_x() * tile};
}

DEVICE Walk share(int64_t num_packs, int64_t tile) {
  const int64_t per_block = (num_packs + num_blocks_x() - 1) / num_blocks_x();
  const int64_t begin = block_index_x() * per_block;
  return {begin, begin + per_block < num_packs ? begin + per_block : num_packs, tile};
}

DEVICE uint64_t words_sum(const Pack& pack) {
  const uint64_t even = pack.words[0] | uint64_t{pack.words[1]} << 32;
  const uint64_t odd = pack.words[2] | uint64_t{pack.words[3]} << 32;
  return even + odd;
}

// The block's sum, into partials[block]: a tree over shared memory, halved with a barrier between.
DEVICE void store_block_sum(uint64_t sum, uint64_t* partials) {
  uint64_t* sums = shared_memory<uint64_t>();
  sums[thread_index()] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    barrier();
    if (thread_index() < half) sums[thread_index()] += sums[thread_index() + half];
  }
  if (thread_index() == 0) partials[block_index_x()] = sums[0];
}

template <int kUnroll, bool kShares, bool kStreaming>
KERNEL(kThreads) read_packs(const Pack* packs, int64_t num_packs, uint64_t* partials) {
  constexpr int64_t kTile = kThreads * kUnroll;
  const Walk walk = kShares ? share(num_packs, kTile) : tiles(num_packs, kTile);
  uint64_t sum = 0;
  int64_t i = walk.begin;
  for (; i + kTile <= walk.end; i += walk.step) {
    Pack loaded[kUnroll];
    UNROLL for (int u = 0; u < kUnroll; ++u) {
      const Pack* pack = packs + i + u * kThreads + thread_index();
      loaded[u] = kStreaming ? load_pack_streaming(pack) : load_pack(pack);
    }
    UNROLL for (int u = 0; u < kUnroll; ++u) sum += words_sum(loaded[u]);
  }
  // What is left is less than a tile: the first block to meet the end has it, all later ones begin behind it.
  for (i += thread_index(); i < walk.end; i += kThreads) sum += words_sum(load_pack(packs + i));
  store_block_sum(sum, partials);
}

KERNEL(kThreads) sum_partials(const uint64_t* partials, int64_t count, uint64_t* sum) {
  uint64_t mine = 0;
  for (int64_t i = thread_index(); i < count; i += kThreads) mine += partials[i];
  store_block_sum(mine, sum);
}

// The words: splitmix64 of seed + index (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
DEVICE uint64_t word_at(uint64_t seed, int64_t index) {
  uint64_t z = (seed + static_cast<uint64_t>(index)) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

KERNEL(kThreads) sum_expected(uint64_t seed, int64_t num_words, uint64_t* partials) {
  uint64_t sum = 0;
  for (int64_t i = block_index_x() * kThreads + thread_index(); i < num_words; i += num_blocks_x() * kThreads)
    sum += word_at(seed, i);
  store_block_sum(sum, partials);
}

KERNEL(kThreads) fill_words(uint64_t seed, uint64_t* words, int64_t num_words) {
  for (int64_t i = block_index_x() * kThreads + thread_index(); i < num_words; i += num_blocks_x() * kThreads)
    words[i] = word_at(seed, i);
}

KERNEL(kThreads) copy_packs(Pack* to, const Pack* from, int64_t num_packs) {
  for (int64_t i = block_index_x() * kThreads + thread_index(); i < num_packs; i += num_blocks_x() * kThreads)
    store_pack_streaming(to + i, load_pack_streaming(from + i));
}

KERNEL(kThreads) write_packs(Pack* packs, int64_t num_packs, uint64_t value) {
  const uint32_t low = static_cast<uint32_t>(value), high = static_cast<uint32_t>(value >> 32);
  const Pack pack = {{low, high, low, high}};
  for (int64_t i = block_index_x() * kThreads + thread_index(); i < num_packs; i += num_blocks_x() * kThreads)
    store_pack_streaming(packs + i, pack);
}

struct Variant {
  const char* name;
  void (*read)(const Pack* packs, int64_t num_packs, uint64_t* partials);
};

#define VARIANTS_OF(unroll)                                                     \
  {"tiles unroll=" #unroll " streaming", read_packs<unroll, false, true>},      \
      {"tiles unroll=" #unroll " cached", read_packs<unroll, false, false>},    \
      {"shares unroll=" #unroll " streaming", read_packs<unroll, true, true>},  \
      {"shares unroll=" #unroll " cached", read_packs<unroll, true, false>}

const Variant kVariants[] = {VARIANTS_OF(1), VARIANTS_OF(2), VARIANTS_OF(4), VARIANTS_OF(8)};
constexpr int64_t kNumVariants = sizeof kVariants / sizeof kVariants[0];
constexpr size_t kSharedBytes = kThreads * sizeof(uint64_t);

bool is_size(int64_t num_lines, int64_t num_blocks) {
  return num_lines >= 0 && num_blocks >= 1 && num_blocks <= kMaxBlocks;
}

int sum_of(const uint64_t* partials, int64_t num_blocks, uint64_t* sum, uint64_t stream) {
  return launch(sum_partials, {}, kThreads, kSharedBytes, stream, partials, num_blocks, sum);
}

// Lines are 64 bytes; buffers are 16-byte aligned. partials: num_blocks words of scratch. All is in the card's memory.

// *sum = the sum of all words, read by reader `variant`.
int read(const void* lines, int64_t num_lines, int64_t variant, int64_t num_blocks, uint64_t* partials, uint64_t* sum,
         uint64_t stream) {
  if (!is_size(num_lines, num_blocks)) return kBadSize;
  if (variant < 0 || variant >= kNumVariants) return kBadParameter;
  if (!is_aligned(lines)) return kBadAlignment;
  const int error = launch(kVariants[variant].read, {num_blocks}, kThreads, kSharedBytes, stream,
                           static_cast<const Pack*>(lines), num_lines * kPacksPerLine, partials);
  return error != 0 ? error : sum_of(partials, num_blocks, sum, stream);
}

// *sum = the sum that a reader must find, from the generator alone: the buffer is not read.
int expected(uint64_t seed, int64_t num_lines, int64_t num_blocks, uint64_t* partials, uint64_t* sum, uint64_t stream) {
  if (!is_size(num_lines, num_blocks)) return kBadSize;
  const int error =
      launch(sum_expected, {num_blocks}, kThreads, kSharedBytes, stream, seed, num_lines * kWordsPerLine, partials);
  return error != 0 ? error : sum_of(partials, num_blocks, sum, stream);
}

int fill(uint64_t seed, void* lines, int64_t num_lines, int64_t num_blocks, uint64_t stream) {
  if (!is_size(num_lines, num_blocks)) return kBadSize;
  return launch(fill_words, {num_blocks}, kThreads, 0, stream, seed, static_cast<uint64_t*>(lines),
                num_lines * kWordsPerLine);
}

int copy(void* to, const void* from, int64_t num_lines, int64_t num_blocks, uint64_t stream) {
  if (!is_size(num_lines, num_blocks)) return kBadSize;
  if (!is_aligned(to) || !is_aligned(from)) return kBadAlignment;
  return launch(copy_packs, {num_blocks}, kThreads, 0, stream, static_cast<Pack*>(to), static_cast<const Pack*>(from),
                num_lines * kPacksPerLine);
}

// Sets every word to `value`.
int write(void* lines, int64_t num_lines, uint64_t value, int64_t num_blocks, uint64_t stream) {
  if (!is_size(num_lines, num_blocks)) return kBadSize;
  if (!is_aligned(lines)) return kBadAlignment;
  return launch(write_packs, {num_blocks}, kThreads, 0, stream, static_cast<Pack*>(lines), num_lines * kPacksPerLine,
                value);
}

}  // namespace

extern "C" int read_probe_num_variants() { return kNumVariants; }

extern "C" const char* read_probe_variant(int variant) { return kVariants[variant].name; }

EXPORT_KERNEL(read_probe_read, read)
EXPORT_KERNEL(read_probe_expected, expected)
EXPORT_KERNEL(read_probe_fill, fill)
EXPORT_KERNEL(read_probe_copy, copy)
EXPORT_KERNEL(read_probe_write, write)
