// The threads of somebody else's OpenMP runtime behind cpu_pool.h: inside a program whose own work runs on them, a pool
// of ours on the same cores would take turns spinning with them.
#include "cpu_pool.h"

namespace {

// What compilers make of `#pragma omp parallel` and of the two questions asked inside; every runtime has them.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
using Number = int (*)();

struct Pool : cpu_pool {
  Parallel parallel;
  Number thread;
};

struct Launch {
  Pool* pool;
  cpu_task task;
  void* arguments;
};

void work(void* argument) {
  const Launch& launch = *static_cast<const Launch*>(argument);
  launch.task(launch.arguments, launch.pool->thread(), launch.pool->num_threads);
}

}  // namespace

extern "C" cpu_pool* openmp_pool_create(int num_threads, Parallel parallel, Number thread) {
  Pool* pool = new Pool;
  pool->num_threads = num_threads;
  pool->parallel = parallel;
  pool->thread = thread;
  pool->run = [](cpu_pool* self, cpu_task task, void* arguments) {
    Pool* mine = static_cast<Pool*>(self);
    Launch launch{mine, task, arguments};
    mine->parallel(work, &launch, static_cast<unsigned>(mine->num_threads), 0);
  };
  return pool;
}

// Threads that a launch gets: fewer than asked for where the runtime has a limit.
extern "C" int openmp_pool_team(cpu_pool* pool, Number team) {
  struct Count {
    Number team;
    int found;
  } count{team, 0};
  const cpu_task task = [](void* argument, int thread, int) {
    Count& self = *static_cast<Count*>(argument);
    if (thread == 0) self.found = self.team();
  };
  pool->run(pool, task, &count);
  return count.found;
}

extern "C" void openmp_pool_destroy(cpu_pool* pool) { delete static_cast<Pool*>(pool); }
