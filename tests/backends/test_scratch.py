"""Memory that launches of one backend share."""

import pytest

pytest.importorskip("torch")

from harness.backends.scratch import Scratch

pytestmark = pytest.mark.torch


def test_it_grows_and_counts_what_launches_may_still_be_bound_to() -> None:
    scratch = Scratch()
    first = scratch.floats(10)
    assert (first.numel(), scratch.num_bytes) == (10, 40)
    assert scratch.floats(7).data_ptr() == first.data_ptr() and scratch.num_bytes == 40
    assert (scratch.floats(11).numel(), scratch.num_bytes) == (11, 84)
