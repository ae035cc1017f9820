"""What an A/B poses its problems on: poisoned outputs, watched operands, places that differ."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from operand_checks import assert_right, attention, delta, linear  # noqa: E402

from harness.ab.operands.base import NUM_CHECKS, checksum, fill_places  # noqa: E402
from harness.backends.base import Executor  # noqa: E402
from harness.backends.registry import attention_backends  # noqa: E402
from harness.devices.cpu import detect_cpu  # noqa: E402

pytestmark = pytest.mark.torch

MAKERS = {
    "linear": lambda: linear(2, 5, 9),
    "attention": lambda: attention(1, 6, 2, 64),
    "prefill": lambda: attention(3, 6, 2, 64),
    "delta": lambda: delta(2, 1, 2, 32),
}


@pytest.fixture(params=MAKERS)
def operands(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


def test_every_problem_is_posed_on_a_poisoned_output(operands: Any) -> None:
    operands._out.zero_()
    for check in range(NUM_CHECKS):
        operands.pose(check)
        assert operands._out.isnan().all()
        assert operands.fault(check), "what nobody wrote is a fault"
        operands._out.zero_()
    operands.renew()
    assert operands._out.isnan().all()


def test_checks_are_of_different_places_and_inputs(operands: Any) -> None:
    assert {operands.pose(check) for check in range(NUM_CHECKS)} == {0, 1}
    inputs = next(value for name, value in vars(operands).items() if name in ("_x", "_q", "_inputs"))
    seen = []
    for move in (lambda: operands.pose(0), lambda: operands.pose(1), operands.renew, operands.renew):
        move()
        seen.append(checksum(inputs))
    assert len(set(seen)) == 4


@pytest.mark.parametrize("index", [0, -1])
def test_every_operand_is_watched(operands: Any, index: int) -> None:
    operands.renew()
    assert operands.changed() == ""
    for name, tensor in operands._watched._tensors.items():
        place = tensor.flatten() if tensor.is_contiguous() else tensor
        kept = place[index].clone()
        place[index] = 7
        assert operands.changed() == name
        place[index] = kept
        assert operands.changed() == ""


@pytest.mark.parametrize("num_bytes", [1, 7, 8, 9, 1027])
def test_a_checksum_sees_every_byte(num_bytes: int) -> None:
    content = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8)
    before = checksum(content)
    for index in range(num_bytes):
        content[index] += 1
        assert checksum(content) != before, index
        content[index] -= 1
    assert checksum(content) == before


def test_only_the_first_and_the_last_place_are_drawn() -> None:
    places = torch.empty(4, 50)
    fill_places(places, torch.Generator().manual_seed(1))
    assert torch.equal(places[0], places[1]) and torch.equal(places[0], places[2])
    assert not torch.equal(places[0], places[3])


@pytest.mark.parametrize("m", [1, 64])
def test_a_library_that_rounds_the_softmax_is_not_called_wrong(m: int) -> None:
    """torch rounds weights to bf16: over 2,048 places its worst value errs by 1.0 to 1.1 times one rounding."""
    assert_right(attention_backends.get("torch-sdpa"), attention(m, 2048, 2, 128), Executor(detect_cpu()))
