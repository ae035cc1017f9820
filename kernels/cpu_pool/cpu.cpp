// The thread pool behind cpu_pool.h: persistent pinned threads that spin between launches and park when idle.
//
// A decode step is some hundred launches of tens of microseconds. Waking a sleeping thread costs about as much as such
// a launch, so a worker spins for a while after each one; it must not spin for ever, because a spinning thread takes
// a core (and, beside a hyperthread, half of one) from whoever is measured or runs next.
//
// One caller at a time launches or parks, and a task must not launch. After fork() the child has no workers: it must
// make a pool of its own.
#include "cpu_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace {

// Longer than the host's work between two decode steps, so that a step never starts with a wake-up.
constexpr std::chrono::milliseconds kSpin{2};
// Once in so many pauses the clock is read, and the core is yielded: whom we wait for may want to run on it.
constexpr int kPausesPerLook = 256;

inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; isb waits about as long as x86's pause
#endif
}

struct Pool;

// One cache line each: a worker that finishes must not take the line that another one writes.
struct alignas(128) Worker {
  Pool* pool;
  int thread;
  pthread_t handle;
  std::atomic<uint64_t> finished{0};  // number of the last launch this worker has finished
};

struct Pool : cpu_pool {
  std::vector<Worker> workers;  // threads 1 ... num_threads - 1
  cpu_task task = nullptr;
  void* arguments = nullptr;
  bool stop = false;

  alignas(128) std::atomic<uint64_t> launch{0};  // number of the current launch; publishes the three fields above
  std::atomic<bool> park_now{false};

  alignas(128) std::atomic<int> num_parked{0};
  std::mutex mutex;
  std::condition_variable wake;

  explicit Pool(int threads) : workers(threads - 1) {
    num_threads = threads;
    run = [](cpu_pool* self, cpu_task work, void* args) { static_cast<Pool*>(self)->run_task(work, args); };
  }

  void publish() {
    park_now.store(false, std::memory_order_relaxed);
    // Both sequentially consistent, as are the worker's increment and check in park(): either we see the worker
    // counted as parked, or it sees the new launch before it sleeps. Weaker orders would allow neither.
    launch.fetch_add(1);
    if (num_parked.load() == 0) return;
    // Taking the mutex waits for a worker that is between its check and its sleep, which would miss the notification.
    { std::lock_guard<std::mutex> lock(mutex); }
    wake.notify_all();
  }

  void run_task(cpu_task work, void* args) {
    task = work;
    arguments = args;
    publish();
    const uint64_t number = launch.load(std::memory_order_relaxed);
    work(args, 0, num_threads);
    for (Worker& worker : workers) wait_until([&] { return worker.finished.load(std::memory_order_acquire) == number; });
  }

  void park_all() {
    park_now.store(true, std::memory_order_relaxed);
    wait_until([&] { return num_parked.load() == static_cast<int>(workers.size()); });
  }

  // The caller's wait, which has no end but success.
  template <typename Condition>
  static void wait_until(Condition done) {
    for (int pauses = 0; !done(); spin_pause())
      if (++pauses % kPausesPerLook == 0) sched_yield();
  }

  // The worker's wait: returns the number of a launch after `seen`.
  uint64_t next_launch(uint64_t seen) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    for (int pauses = 1;; ++pauses, spin_pause()) {
      const uint64_t number = launch.load(std::memory_order_acquire);
      if (number != seen) return number;
      if (park_now.load(std::memory_order_relaxed)) break;
      if (pauses % kPausesPerLook != 0) continue;
      if (std::chrono::steady_clock::now() > deadline) break;
      sched_yield();
    }
    return park(seen);
  }

  uint64_t park(uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex);
    num_parked.fetch_add(1);
    wake.wait(lock, [&] { return launch.load() != seen; });
    num_parked.fetch_sub(1);
    return launch.load();
  }

  void work(Worker& worker) {
    for (uint64_t seen = 0;;) {
      seen = next_launch(seen);
      if (stop) return;
      task(arguments, worker.thread, num_threads);
      worker.finished.store(seen, std::memory_order_release);
    }
  }

  void join(size_t num_started) {
    stop = true;
    publish();
    for (size_t i = 0; i < num_started; ++i) pthread_join(workers[i].handle, nullptr);
  }

  static void* entry(void* argument) {
    Worker* worker = static_cast<Worker*>(argument);
    worker->pool->work(*worker);
    return nullptr;
  }
};

// Pinned from birth, so that a core we may not use is an error here and not a slow run later.
int start(Worker* worker, int core) {
  cpu_set_t* cores = CPU_ALLOC(core + 1);
  const size_t bytes = CPU_ALLOC_SIZE(core + 1);
  CPU_ZERO_S(bytes, cores);
  CPU_SET_S(core, bytes, cores);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  int error = pthread_attr_setaffinity_np(&attributes, bytes, cores);
  if (error == 0) error = pthread_create(&worker->handle, &attributes, Pool::entry, worker);
  pthread_attr_destroy(&attributes);
  CPU_FREE(cores);
  return error;
}

}  // namespace

// cores[0] is the caller's: it is not pinned here, since that is its own business. Null, and errno, where a worker
// can't be started on its core.
extern "C" cpu_pool* cpu_pool_create(const int* cores, int num_cores) {
  Pool* pool = new Pool(num_cores);
  sigset_t all, old;  // signals stay with the threads that were there before: Python waits for them in its own
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int error = 0;
  size_t num_started = 0;
  for (; num_started < pool->workers.size(); ++num_started) {
    Worker& worker = pool->workers[num_started];
    worker.pool = pool;
    worker.thread = static_cast<int>(num_started) + 1;
    error = start(&worker, cores[num_started + 1]);
    if (error != 0) break;
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (error == 0) return pool;
  pool->join(num_started);
  delete pool;
  errno = error;
  return nullptr;
}

// Puts every worker to sleep, and returns when all are: nothing of ours spins while others are measured.
extern "C" void cpu_pool_park(cpu_pool* pool) { static_cast<Pool*>(pool)->park_all(); }

extern "C" void cpu_pool_destroy(cpu_pool* pool) {
  Pool* self = static_cast<Pool*>(pool);
  self->join(self->workers.size());
  delete self;
}
