// The read that bandwidth benchmarks usually have: one sum over doubles, left to the compiler. Built with -ffast-math, or
// the additions would wait for each other. Nothing proves what it read; the result is returned so that it must be made.
#include "cpu_pool.h"

#include <cstddef>

struct Arguments {
  const double* values;
  size_t num_values;
  double* sums;
};

static void read_share(void* pointer, int thread, int num_threads) {
  const Arguments& arguments = *static_cast<Arguments*>(pointer);
  const size_t begin = arguments.num_values * thread / num_threads;
  const size_t end = arguments.num_values * (thread + 1) / num_threads;
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += arguments.values[i];
  arguments.sums[thread] = sum;
}

// sums: one a thread.
extern "C" void stream_read(cpu_pool* pool, const double* values, size_t num_values, double* sums) {
  Arguments arguments{values, num_values, sums};
  cpu_pool_run(pool, read_share, &arguments);
}
