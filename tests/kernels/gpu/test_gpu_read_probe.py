"""kernels/read_probe/gpu.cu against numpy: every reader finds the sum, which a flipped bit anywhere changes."""

import ctypes

import numpy as np
import pytest
from native_calls import Guarded

SEED = 0x5EED


def word(gpu, name, *arguments):
    """What a kernel writes into its last argument, one word; all of its scratch is given."""
    num_blocks = arguments[-1]
    partials, total = Guarded((num_blocks,), "i64"), Guarded((1,), "i64")
    assert gpu("read_probe", name, *arguments, partials, total) == 0
    partials.result(), total.result()
    return int(total.values.view(np.uint64)[0])


def filled(gpu, num_lines, num_blocks):
    lines = Guarded((num_lines * 8,), "i64")
    assert gpu("read_probe", "read_probe_fill", SEED, lines, num_lines, num_blocks) == 0
    lines.result()
    return lines


@pytest.mark.parametrize("num_lines, num_blocks", [(1, 1), (7, 3), (1025, 2), (1300, 5)])
def test_every_reader_finds_numpys_sum(gpu, kernel_reference, num_lines, num_blocks):
    reference = kernel_reference("read_probe")
    lines, words = filled(gpu, num_lines, num_blocks), reference.words(SEED, num_lines * 8)
    np.testing.assert_array_equal(lines.values.view(np.uint64), words)
    expected = reference.wrapping_sum(words)
    assert word(gpu, "read_probe_expected", SEED, num_lines, num_blocks) == expected
    library = gpu.load("read_probe")
    library.read_probe_variant.restype = ctypes.c_char_p
    names = [library.read_probe_variant(variant) for variant in range(library.read_probe_num_variants())]
    assert len(set(names)) == len(names) == 16
    for variant, name in enumerate(names):
        assert word(gpu, "read_probe_read", lines.values, num_lines, variant, num_blocks) == expected, name


@pytest.mark.parametrize("place", [0, 4096, 8 * 1025 - 1])
def test_one_flipped_bit_changes_the_sum(gpu, place):
    lines = filled(gpu, 1025, 2)
    expected = word(gpu, "read_probe_expected", SEED, 1025, 2)
    lines.values[place] ^= 1 << 40
    for variant in (0, 6, 15):
        assert word(gpu, "read_probe_read", lines.values, 1025, variant, 2) != expected


def test_copy_and_write_reach_every_word(gpu):
    lines, copied = filled(gpu, 650, 3), Guarded((650 * 8,), "i64")
    assert gpu("read_probe", "read_probe_copy", copied, lines.values, 650, 3) == 0
    copied.result()
    np.testing.assert_array_equal(copied.values, lines.values)
    assert gpu("read_probe", "read_probe_write", copied, 650, 0x1234567890ABCDEF, 3) == 0
    copied.result()
    assert (copied.values.view(np.uint64) == 0x1234567890ABCDEF).all()


def test_what_it_refuses(gpu):
    lines = Guarded((16,), "i64")
    refused = [
        ("read_probe_read", (lines, 2, 16, 1, None, None), -4),
        ("read_probe_read", (lines, 2, 0, 0, None, None), -2),
        ("read_probe_write", (lines.all[1:], 1, 0, 1), -3),
    ]
    for name, arguments, code in refused:
        assert gpu("read_probe", name, *arguments) == code
    assert (lines.all == -1).all()
