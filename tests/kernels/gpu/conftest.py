"""Every GPU kernel is tested on the host, in waves of 32 and of 64 with lanes in both orders, and on a card."""

import pytest
from gpu_devices import CardDevice, HostDevice, card_device

DEVICES = {
    "host-32": lambda: HostDevice(32, reverse=False),
    "host-64-reversed": lambda: HostDevice(64, reverse=True),
    "card": card_device,
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.card if name == "card" else pytest.mark.compiler) for name in DEVICES]
)
def gpu(request: pytest.FixtureRequest) -> "HostDevice | CardDevice":
    return DEVICES[request.param]()
