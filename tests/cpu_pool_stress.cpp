// Launches a pool very often with random pauses, so that workers are met spinning, parking and asleep, and
// checks that every thread ran every launch exactly once. Prints "ok"; a lost wake-up hangs. Built by
// tests/test_cpu_pool.py, with a thread sanitizer where the compiler has one.
#include "cpu_pool/cpu.cpp"

#include <cstdio>
#include <cstdlib>
#include <random>

struct Counts {
  alignas(128) long ran = 0;
};

static void count(void* arguments, int thread, int) { ++static_cast<Counts*>(arguments)[thread].ran; }

static void spin_for(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) spin_pause();
}

int main(int argc, char** argv) {
  const int num_launches = std::atoi(argv[1]);
  std::vector<int> cores;
  for (int i = 2; i < argc; ++i) cores.push_back(std::atoi(argv[i]));
  cpu_pool* pool = cpu_pool_create(cores.data(), static_cast<int>(cores.size()));
  if (pool == nullptr) return 2;

  std::mt19937 random(1);
  std::vector<Counts> counts(cores.size());
  for (int launch = 1; launch <= num_launches; ++launch) {
    cpu_pool_run(pool, count, counts.data());
    for (const Counts& one : counts)
      if (one.ran != launch) return 3;
    const unsigned choice = random() % 1000;
    if (choice < 10) cpu_pool_park(pool);
    if (choice < 300) spin_for(std::chrono::nanoseconds(random() % 20000));
    if (choice == 999) spin_for(kSpin - std::chrono::microseconds(50) + std::chrono::nanoseconds(random() % 100000));
    if (choice >= 500 && choice < 600) spin_for(std::chrono::nanoseconds(random() % 2000));
  }
  cpu_pool_destroy(pool);
  std::puts("ok");
}
