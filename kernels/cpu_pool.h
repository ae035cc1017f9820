// The CPU's "stream": a pool of pinned threads that kernels are launched on.
//
// A GPU kernel takes a stream; a CPU kernel takes a `cpu_pool*` in the same place. Kernels are separate shared
// libraries, so the pool reaches them as a table of function pointers, and all of them use the same threads: two
// thread pools on the same cores take turns spinning and halve each other's bandwidth.
//
// A launch is synchronous: when `cpu_pool_run` returns, every thread has finished its share. The caller works as
// thread 0. A null pool means: the calling thread alone.
#pragma once

typedef void (*cpu_task)(void* arguments, int thread, int num_threads);

struct cpu_pool {
  int num_threads;  // the caller's included
  void (*run)(struct cpu_pool* self, cpu_task task, void* arguments);
};

static inline void cpu_pool_run(struct cpu_pool* pool, cpu_task task, void* arguments) {
  if (pool == nullptr || pool->num_threads == 1)
    task(arguments, 0, 1);
  else
    pool->run(pool, task, arguments);
}
