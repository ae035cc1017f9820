"""What the host's fibres must show: a sum over too few lanes, a missing barrier, lanes that are waited for in vain."""

import ctypes

import numpy as np
import pytest
from native_calls import Kernels

from harness.gpu_build import load_gpu_kernel

pytestmark = pytest.mark.compiler

PLANTED = """
#include "portable.h"
#include "slots.h"

template <int kWave>
KERNEL(256) sum_of_32(const float* x, float* out) {
  float sum = x[thread_index()];
  for (int distance = 16; distance > 0; distance /= 2) sum += shuffle_xor<kWave>(sum, distance);
  if (thread_index() % kWave == 0) out[thread_index() / kWave] = sum;
}

KERNEL(256) neighbours(const float* x, float* out, bool wait) {
  float* shared = shared_memory<float>();
  shared[thread_index()] = x[thread_index()];
  if (wait) barrier();
  out[thread_index()] = shared[thread_index() ^ 1];
}

KERNEL(256) leaves(const float*, float*) {
  if (thread_index() != 3) barrier();
}

KERNEL(256) overruns(const float*, float*) { shared_memory<float>()[64] = 1; }

int sums(const float* x, float* out, int64_t wave, uint64_t stream) {
  return with_wave(wave, [&](auto w) { return launch(sum_of_32<decltype(w)::value>, {}, 64, 0, stream, x, out); });
}
int swapped(const float* x, float* out, int64_t wait, uint64_t stream) {
  return launch(neighbours, {}, 64, 256, stream, x, out, wait != 0);
}
int left(const float* x, float* out, uint64_t stream) { return launch(leaves, {}, 64, 0, stream, x, out); }
int overrun(const float* x, float* out, uint64_t stream) { return launch(overruns, {}, 64, 256, stream, x, out); }
int ragged(const float* x, float* out, uint64_t stream) { return launch(sum_of_32<64>, {}, 32, 0, stream, x, out); }
KERNEL(1) to_halves(const float* x, float* out) {
  reinterpret_cast<f16*>(out)[block_index_x()] = from_float<f16>(x[block_index_x()]);
}
KERNEL(1) from_halves(const float* x, float* out) {
  out[block_index_x()] = to_float(reinterpret_cast<const f16*>(x)[block_index_x()]);
}
int narrowed(const float* x, float* out, int64_t n, uint64_t stream) {
  return launch(to_halves, {n}, 1, 0, stream, x, out);
}
int widened(const float* x, float* out, int64_t n, uint64_t stream) {
  return launch(from_halves, {n}, 1, 0, stream, x, out);
}

EXPORT_KERNEL(planted_sums, sums)
EXPORT_KERNEL(planted_swapped, swapped)
EXPORT_KERNEL(planted_left, left)
EXPORT_KERNEL(planted_overrun, overrun)
EXPORT_KERNEL(planted_ragged, ragged)
EXPORT_KERNEL(planted_narrowed, narrowed)
EXPORT_KERNEL(planted_widened, widened)
"""

X = np.arange(64, dtype=np.float32)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    source = tmp_path_factory.mktemp("planted") / "gpu.cu"
    source.write_text(PLANTED)
    return load_gpu_kernel(source, "host")


@pytest.fixture(params=[False, True], ids=["ascending", "descending"])
def planted(request, library) -> Kernels:
    library.gpu_host_reverse(request.param)
    return Kernels(library)


def text(library, code) -> str:
    library.gpu_error_text.restype = ctypes.c_char_p
    return library.gpu_error_text(code).decode()


def test_a_sum_over_32_lanes_is_right_at_32_and_wrong_at_64(planted):
    out = np.full(2, np.nan, dtype=np.float32)
    assert planted("planted_sums", X, out, 32, 0) == 0
    np.testing.assert_array_equal(out, [X[:32].sum(), X[32:].sum()])
    assert planted("planted_sums", X, out, 64, 0) == 0
    assert out[0] != X.sum()


def test_a_missing_barrier_shows_in_any_order(planted):
    out = np.empty_like(X)
    assert planted("planted_swapped", X, out, 1, 0) == 0
    np.testing.assert_array_equal(out, X.reshape(-1, 2)[:, ::-1].ravel())
    assert planted("planted_swapped", X, out, 0, 0) == 0
    assert np.isnan(out).sum() == 32, "shared memory is NaN before it is written"


@pytest.mark.parametrize(
    "name, words", [("left", "have ended"), ("overrun", "shared memory"), ("ragged", "whole number of waves")]
)
def test_what_a_card_would_hide_is_an_error(planted, library, name, words):
    assert words in text(library, planted(f"planted_{name}", X, np.empty_like(X), 0))


def test_every_half_widens_and_narrows_as_numpys(planted):
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(1 << 16, dtype=np.float32)
    assert planted("planted_widened", bits, wide, len(bits), 0) == 0
    np.testing.assert_array_equal(wide, bits.view(np.float16).astype(np.float32))
    with np.errstate(over="ignore"):
        between = np.nextafter(wide, np.float32(np.inf)), np.nextafter(wide, np.float32(-np.inf)), wide * 1.0005
        values = np.concatenate([wide, *between, [np.float32(65519), np.float32(65520), np.float32(2**-25)]])
        expected = values.astype(np.float32).astype(np.float16)
    values, narrow = values.astype(np.float32), np.empty(len(values), dtype=np.uint16)
    assert planted("planted_narrowed", values, narrow, len(values), 0) == 0
    np.testing.assert_array_equal(narrow.view(np.float16), expected)
