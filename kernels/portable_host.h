// The primitives of portable.h on the host, for checking kernels without a card.
//
// Blocks run one after another. The lanes of a block are fibres (ucontext): each runs until it meets a barrier or a
// shuffle and waits there until all lanes of its block or wave have come. What a card leaves to chance is made to show:
//   * lanes and blocks run in ascending order, or descending (gpu_host_reverse): a missing barrier fails in one of
// them;
//   * shared memory is NaN when a block starts, and what lies behind it is guarded;
//   * lanes that leave while others wait for them are an error, where a card may hang or go on with garbage.
#pragma once

#include <ucontext.h>

#include <functional>
#include <vector>

#define KERNEL(max_threads) void
#define DEVICE inline
#define DEVICE_MEMBER
#define UNROLL

constexpr bool has_wave(int wave) { return wave == 32 || wave == 64; }

namespace host {

constexpr int kDeadlock = 1, kSharedOverrun = 2, kRaggedWave = 3;
constexpr size_t kStackBytes = 64 << 10, kGuardBytes = 64;
constexpr unsigned char kPoison = 0xff;  // bytes of a NaN in every storage type

// Where `count` lanes wait for one another.
struct Meeting {
  int arrived = 0, generation = 0;
};

struct Lane {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
};

// All lanes of the block that runs. Shuffled values lie in two generations, taken in turns: nobody can post the value
// after next before all have read this one.
struct Block {
  std::vector<Lane> lanes;
  std::vector<Meeting> waves;
  std::vector<float> posted[2];
  std::vector<Pack> shared;
  Meeting whole;
  ucontext_t scheduler;
  std::function<void()> body;
  Grid grid, index;
  int lane = 0, error = 0;
  int64_t steps = 0;  // lanes that arrived or ended: if none does, all wait for ever
};

// Of each library its own: `static`, since the variables of inline functions are one for all that a process loads.
static Block the_block;
static bool reversed = false;

inline Block& block() { return the_block; }

inline void yield() {
  Block& b = block();
  swapcontext(&b.lanes[b.lane].context, &b.scheduler);
}

inline void meet(Meeting& meeting, int count) {
  const int generation = meeting.generation;
  ++block().steps;
  if (++meeting.arrived == count) {
    meeting.arrived = 0;
    ++meeting.generation;
    return;
  }
  while (meeting.generation == generation) yield();
}

inline void run_lane() {
  Block& b = block();
  b.body();
  b.lanes[b.lane].done = true;
  ++b.steps;
}

inline void start(Block& b, Lane& lane) {
  lane.done = false;
  lane.stack.resize(kStackBytes);
  getcontext(&lane.context);
  lane.context.uc_stack.ss_sp = lane.stack.data();
  lane.context.uc_stack.ss_size = lane.stack.size();
  lane.context.uc_link = &b.scheduler;
  makecontext(&lane.context, run_lane, 0);
}

// Lanes in turns until all have ended, or none gets any further.
inline int run_lanes(Block& b) {
  const int num_lanes = static_cast<int>(b.lanes.size());
  for (int64_t before = -1; before != b.steps;) {
    before = b.steps;
    for (int i = 0; i < num_lanes; ++i) {
      b.lane = reversed ? num_lanes - 1 - i : i;
      if (!b.lanes[b.lane].done) swapcontext(&b.scheduler, &b.lanes[b.lane].context);
    }
  }
  if (b.error != 0) return b.error;
  for (const Lane& lane : b.lanes)
    if (!lane.done) return kDeadlock;
  return 0;
}

inline int run_block(Block& b, size_t shared_bytes) {
  b.shared.resize((shared_bytes + kGuardBytes) / sizeof(Pack) + 1);
  memset(b.shared.data(), kPoison, b.shared.size() * sizeof(Pack));
  b.waves.assign(b.lanes.size(), Meeting());
  b.whole = Meeting();
  for (auto& posted : b.posted) posted.assign(b.lanes.size(), 0.0f);
  for (Lane& lane : b.lanes) start(b, lane);
  if (const int error = run_lanes(b)) return error;
  const unsigned char* guard = reinterpret_cast<unsigned char*>(b.shared.data()) + shared_bytes;
  for (size_t i = 0; i < kGuardBytes; ++i)
    if (guard[i] != kPoison) return kSharedOverrun;
  return 0;
}

}  // namespace host

// Tests run every kernel with lanes and blocks in both orders.
extern "C" void gpu_host_reverse(int reversed) { host::reversed = reversed != 0; }

DEVICE int thread_index() { return host::block().lane; }
DEVICE int64_t block_index_x() { return host::block().index.x; }
DEVICE int64_t block_index_y() { return host::block().index.y; }
DEVICE int64_t block_index_z() { return host::block().index.z; }
DEVICE int64_t num_blocks_x() { return host::block().grid.x; }

DEVICE void add_one(int64_t* counter) { ++*counter; }

DEVICE void barrier() { host::meet(host::block().whole, static_cast<int>(host::block().lanes.size())); }

template <class T>
DEVICE T* shared_memory() {
  return reinterpret_cast<T*>(host::block().shared.data());
}

template <int kWave>
DEVICE float shuffle_xor(float value, int mask) {
  host::Block& b = host::block();
  if (b.lanes.size() % kWave != 0) b.error = host::kRaggedWave;
  const int lane = b.lane, wave = lane / kWave;
  std::vector<float>& posted = b.posted[b.waves[wave].generation % 2];
  posted[lane] = value;
  host::meet(b.waves[wave], kWave);
  return posted[wave * kWave + ((lane ^ mask) & (kWave - 1))];
}

DEVICE Pack load_pack(const void* from) { return *static_cast<const Pack*>(from); }
DEVICE Pack load_pack_streaming(const void* from) { return load_pack(from); }
DEVICE void store_pack(void* to, const Pack& pack) { *static_cast<Pack*>(to) = pack; }
DEVICE void store_pack_streaming(void* to, const Pack& pack) { store_pack(to, pack); }

// --- fp16 by its bits: GCC 12 has no _Float16 in C++ --------------------------------------------------------------

DEVICE float half_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  float magnitude;
  if (exponent == 31)
    magnitude = fraction != 0 ? NAN : INFINITY;
  else  // a normal number has a leading one; subnormals share the exponent of the smallest normal
    magnitude = exponent != 0 ? std::ldexp(fraction + 1024.0f, exponent - 25) : std::ldexp(fraction, -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

DEVICE uint16_t float_to_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude != magnitude) return sign | 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;  // halfway beyond the largest, 65504
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude < 2^exponent
  const int unit = magnitude < 0x1p-14f ? -24 : exponent - 11;  // log2 of the last bit's worth
  const auto fraction = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));  // ties to even
  // a normal number's leading one counts as 1 << 10
  return sign | static_cast<uint16_t>(((unit + 24) << 10) + fraction);
}

// --- launches --------------------------------------------------------------------------------------------------

inline const char* runtime_error_text(int code) {
  switch (code) {
    case 0: return "no error";
    case host::kDeadlock: return "lanes wait at a barrier or shuffle for others that have ended";
    case host::kSharedOverrun: return "a block wrote behind its shared memory";
    case host::kRaggedWave: return "a block is not a whole number of waves";
    default: return "unknown error";
  }
}

// The blocks of the grid, one after another; the stream is not looked at. Returns the first block's error, or 0.
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), Grid grid, int threads, size_t shared_bytes, uint64_t,
           Arguments... arguments) {
  host::Block& b = host::block();
  b.body = [=] { kernel(arguments...); };
  b.grid = grid;
  b.error = 0;
  b.lanes.resize(threads);
  const int64_t num_blocks = grid.x * grid.y * grid.z;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t n = host::reversed ? num_blocks - 1 - i : i;
    b.index = {n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y};
    if (const int error = host::run_block(b, shared_bytes)) return error;
  }
  return 0;
}
