// Adds one to times[i] for each piece that i is handed out in.
#include "cpu_launch.h"

extern "C" void hand_out(int64_t* times, int64_t count, int64_t grain, cpu_pool* pool) {
  for_each_piece(pool, count, grain, [&](Piece piece, Claims& claims) {
    for (int64_t i = piece.begin; i < piece.end; ++i) __atomic_fetch_add(times + i, 1, __ATOMIC_RELAXED);
    return claims.next();
  });
}
