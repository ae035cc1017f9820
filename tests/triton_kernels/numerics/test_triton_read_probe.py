"""The Triton probes: every word is read, copied, written, and none beside them."""

import numpy as np
import pytest
from tensors import Guarded

OP = "read_probe"


def random_words(reference, num_words, device):
    import torch

    words = reference.words(num_words, num_words)
    return words, torch.from_numpy(words.view(np.int64)).to(device)


@pytest.mark.parametrize("num_words", [1, 2, 1023, 1024, 1025, 70_001])
def test_the_sum_is_of_every_word(kernels, reference, device, num_words):
    words, tensor = random_words(reference, num_words, device)
    total = Guarded((1,), "int64", device)
    kernels.bind_read(tensor, total.tensor, kernels.Config(1024, 5, 1))()
    total.result()
    assert int(total.tensor) % 2**64 == reference.wrapping_sum(words)


@pytest.mark.parametrize("index", range(6))
def test_every_config(kernels, reference, device, index):
    assert len(kernels.CONFIGS) == 6
    config = kernels.CONFIGS[index]
    words, tensor = random_words(reference, 9_001, device)
    total = Guarded((1,), "int64", device)
    kernels.bind_read(tensor, total.tensor, config)()
    total.result()
    assert int(total.tensor) % 2**64 == reference.wrapping_sum(words)


@pytest.mark.parametrize("value", [-7, 1, 2**40])
def test_copy_and_write(kernels, reference, device, value):
    _, tensor = random_words(reference, 9_001, device)
    copy, written = Guarded((9_001,), "int64", device), Guarded((9_001,), "int64", device)
    config = kernels.Config(1024, 5, 1)
    kernels.bind_copy(tensor, copy.tensor, config)()
    kernels.bind_write(written.tensor, value, config)()
    for buffer in (copy, written):
        buffer.result()
    assert (copy.tensor == tensor).all() and (written.tensor == value).all()


def test_a_second_launch_starts_from_zero(kernels, reference, device):
    words, tensor = random_words(reference, 3_000, device)
    total = Guarded((1,), "int64", device)
    launch = kernels.bind_read(tensor, total.tensor, kernels.Config(1024, 5, 1))
    for _ in range(2):
        launch()
        assert int(total.tensor) % 2**64 == reference.wrapping_sum(words)


def test_what_the_probe_does_not_take(kernels, device):
    import torch

    words = torch.zeros(8, dtype=torch.int64, device=device)
    for wrong in (words[::2], words.int()):
        with pytest.raises(ValueError, match="contiguous int64"):
            kernels.bind_read(wrong, words[:1], kernels.CONFIGS[0])
    with pytest.raises(ValueError, match="copies 8 words to 7"):
        kernels.bind_copy(words, words[1:], kernels.CONFIGS[0])
