"""What an A/B poses its problems on: poisoned outputs, watched operands, places that differ."""

import tracemalloc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from operand_checks import assert_right, attention, delta, linear  # noqa: E402

from harness.ab.operands import attention as operands_attention  # noqa: E402
from harness.ab.operands.base import NUM_CHECKS, checksum, fill_places, spread  # noqa: E402
from harness.backends.base import Executor  # noqa: E402
from harness.backends.registry import attention_backends  # noqa: E402
from harness.devices.cpu import detect_cpu  # noqa: E402
from harness.specs.problem import AttentionProblem  # noqa: E402

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
    assert [operands.pose(check) for check in range(NUM_CHECKS)] == [0, 1, 1]
    inputs = next(value for name, value in vars(operands).items() if name in ("_x", "_q", "_inputs"))
    seen = []
    for move in (lambda: operands.pose(0), lambda: operands.pose(2), operands.renew, operands.renew):
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


@pytest.mark.parametrize("num_bytes", [32, 1 << 21])
def test_a_checksum_sees_what_was_moved(num_bytes: int) -> None:
    """Words that change their places, within what is summed at once and between such parts."""
    content = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8)
    words = content.view(torch.int64)
    for moved in (words.flip(0), words.roll(1), torch.cat((words[1:2], words[:1], words[2:]))):
        assert checksum(moved) != checksum(content)
    assert checksum(words.clone()) == checksum(content)


@pytest.mark.parametrize(("m", "context"), [(1, 20000), (64, 4096), (512, 2048)])
def test_working_the_exact_result_out_takes_no_more_memory_than_is_counted(
    m: int, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of numpy's, as Python traces it, beside the float64 keys and values that torch makes."""
    monkeypatch.setattr(operands_attention, "SCORES_AT_ONCE", 1 << 16)
    problem = AttentionProblem(m=m, num_heads=4, num_kv_heads=2, head_dim=32, max_context=context, dtype="BF16")
    q, cache = torch.randn(m, 2, 32), torch.randn(2, 1, context, 32)
    operands_attention._exact_head(q[:1], cache, 8)  # so that what is imported is not counted
    tracemalloc.start()
    try:
        operands_attention._exact_head(q, cache, context)
        traced = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    counted = operands_attention.reference_bytes(problem, context)
    assert counted / 2 < traced + 2 * context * 32 * 8 <= counted


def test_one_input_is_posed_at_two_places(operands: Any) -> None:
    """A result that was kept for its input alone is wrong at the second."""
    inputs = next(value for name, value in vars(operands).items() if name in ("_x", "_q", "_inputs"))
    operands.pose(0)
    first = checksum(inputs)
    operands.pose(1)
    assert checksum(inputs) == first
    assert not torch.equal(exact_of(operands, 0), exact_of(operands, 1))


def exact_of(operands: Any, check: int) -> Any:
    return operands._checks[check][-1][0] if hasattr(operands, "_checks") else operands._exact[check]


def test_only_the_first_and_the_last_place_are_drawn_and_no_two_are_alike() -> None:
    places = torch.empty(5, 50)
    fill_places(places, torch.Generator().manual_seed(1))
    assert all(torch.equal(places[number], places[0].roll(-number)) for number in (1, 2, 3))
    assert len({checksum(place) for place in places}) == 5


@pytest.mark.parametrize("maker", [name for name in MAKERS if name != "delta"])
def test_a_sample_that_left_the_result_of_another_place_is_wrong(maker: str) -> None:
    operands = MAKERS[maker]()
    places = spread(operands.num_places, 0), spread(operands.num_places, 1)
    exact = {place: operands._exact[check] for check, place in enumerate(places)}
    operands.pose(0)
    for place in places:
        operands._out.copy_(exact[place])
        assert [operands.spot_fault(at) == "" for at in places] == [at == place for at in places]


def test_the_exact_result_is_the_same_in_blocks_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention(5, 11, 2, 16)
    monkeypatch.setattr("harness.ab.operands.attention.SCORES_AT_ONCE", 2 * 11 * 2)
    for exact, found in zip(whole._exact, attention(5, 11, 2, 16)._exact, strict=True):
        torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("m", [1, 64])
def test_a_library_that_rounds_the_softmax_is_not_called_wrong(m: int) -> None:
    """torch rounds weights to bf16: over 2,048 places its worst value errs by 1.0 to 1.1 times one rounding."""
    assert_right(attention_backends.get("torch-sdpa"), attention(m, 2048, 2, 128), Executor(detect_cpu()))
