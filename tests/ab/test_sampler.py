"""How an A/B sees a GPU's memory: torch's allocator and its card as a script plays them."""

import pytest

torch = pytest.importorskip("torch")

from harness.ab.sampler import Sampler  # noqa: E402
from harness.backends.base import Executor  # noqa: E402
from harness.engines.native.machine import free_memory_bytes  # noqa: E402
from harness.specs.device import DeviceInfo  # noqa: E402

pytestmark = pytest.mark.torch


class Allocator:
    """Takes memory from a card of 1000 B and keeps what is freed, as torch's does."""

    def __init__(self, used: int, held_free: int) -> None:
        self.used, self.held_free = used, held_free

    def take(self, num_bytes: int) -> None:
        self.held_free = max(0, self.held_free - num_bytes)
        self.used += num_bytes

    def empty_cache(self) -> None:
        self.held_free = 0

    def mem_get_info(self) -> tuple[int, int]:
        return 1000 - self.used - self.held_free, 1000


def test_a_copy_in_memory_that_the_allocator_held_free_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(used=300, held_free=200)
    monkeypatch.setattr(torch.cuda, "empty_cache", allocator.empty_cache)
    monkeypatch.setattr(torch.cuda, "mem_get_info", allocator.mem_get_info)
    sampler = Sampler(Executor(DeviceInfo(kind="cuda", name="a test's GPU")))
    before = sampler.memory_bytes()
    allocator.take(150)
    assert (before, sampler.memory_bytes()) == (300, 450)


def test_free_memory_is_what_others_left_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of a card that is not here all that it has."""
    card = DeviceInfo(kind="cuda", name="a test's GPU", memory_bytes=1000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", Allocator(used=300, held_free=200).mem_get_info)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert free_memory_bytes(card) == 500
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert free_memory_bytes(card) == 1000
