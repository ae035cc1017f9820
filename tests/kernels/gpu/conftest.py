"""Every GPU kernel is tested on the host, in waves of 32 and of 64 with lanes in both orders, and on a card."""

import importlib.util

import pytest
from gpu_devices import CardDevice, HostDevice


def _card() -> CardDevice:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return CardDevice()
    pytest.skip("no GPU that torch sees")


DEVICES = {
    "host-32": lambda: HostDevice(32, reverse=False),
    "host-64-reversed": lambda: HostDevice(64, reverse=True),
    "card": _card,
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.card if name == "card" else pytest.mark.compiler) for name in DEVICES]
)
def gpu(request: pytest.FixtureRequest) -> "HostDevice | CardDevice":
    return DEVICES[request.param]()
