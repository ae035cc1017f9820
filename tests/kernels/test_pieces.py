"""kernels/cpu_launch.h: every row is in one piece, whoever takes it. A product can't tell: done twice it is right."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from harness.kernel_build import load_kernel

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize("grain", [1, 8, 16])
def test_every_row_is_handed_out_once(pool, grain):
    hand_out = load_kernel(Path(__file__).parent / "pieces.cpp").hand_out
    hand_out.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    for count in (1, grain, grain + 1, 100, 1023, 4096):
        times = np.zeros(count + 1, dtype=np.int64)
        hand_out(times.ctypes.data, count, grain, pool[0])
        assert (times[:count] == 1).all() and times[count] == 0, f"of {count}: {times.tolist()}"
