"""The native engine's logits are transformers', in every family, over every route through the engine."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import CASES, save_tiny  # noqa: E402

from harness.engines.native.rig import NativeRig  # noqa: E402
from harness.models import resolve_model  # noqa: E402
from harness.specs.run import RunConfig  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.reference]

PROMPT = [5, 90, 17, 3, 64, 127, 8, 44, 101, 2, 33, 70, 12, 119, 56, 23, 9]
FORCED = [77, 4, 130, 61, 18, 99, 40]
TORCH = {
    "attention": "torch-sdpa", "linear_attention": "torch-recurrent", "prefill_linear_attention": "torch-recurrent",
    "elementwise": "torch",
}  # fmt: skip
CPU = {"attention": "cpu-decode", "linear_attention": "cpu-recurrent", "elementwise": "cpu"}
ROUTES = {
    "torch": {"linear": "torch", **TORCH},
    "torch-mv unfused": {"linear": "torch-mv", **TORCH, "fuse": False},
    "cpu": {"linear": "cpu-gemv", **CPU},
    "cpu unfused": {"linear": "cpu-gemv", **CPU, "fuse": False},
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {case: save_tiny(case, tmp_path_factory.mktemp(case)) for case in CASES}


def reference_logits(folder: Path, ids: Sequence[int], dtype: object) -> "torch.Tensor":
    """[len(ids), vocab] by transformers, eager attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([list(ids)])).logits[0].float()


def native_logits(folder: Path, chunk: int, num_prefilled: int = len(PROMPT), **engine: object) -> "torch.Tensor":
    """Logits after the prompt and after each forced token: [1 + len(FORCED), vocab]."""
    return torch.stack(list(_native_steps(folder, chunk, num_prefilled, engine)))


def _native_steps(folder: Path, chunk: int, num_prefilled: int, engine: dict[str, object]) -> Iterator["torch.Tensor"]:
    config = RunConfig.model_validate(
        {
            "name": "t", "model": str(folder),
            "engine": {"kind": "native", "device": "cpu", "prefill_chunk": chunk, **engine},
            "workload": {"input_tokens": len(PROMPT), "output_tokens": 1 + len(FORCED)},
        }
    )  # fmt: skip
    rig = NativeRig(config, resolve_model(str(folder)))
    try:
        decoder = rig.open_engine()._decoder
        with torch.inference_mode():
            ids = PROMPT + FORCED
            decoder.prefill([ids[:num_prefilled]])
            for token in ids[num_prefilled:]:
                if decoder.context.item() >= len(PROMPT):
                    yield decoder.logits[0].float().clone()
                decoder.logits.fill_(float("nan"))
                decoder.token.fill_(token)
                decoder.decode_step().run()
            yield decoder.logits[0].float().clone()
    finally:
        rig.close()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", CASES)
def test_float32_logits_are_transformers(checkpoints: dict[str, Path], case: str, route: str) -> None:
    expected = reference_logits(checkpoints[case], PROMPT + FORCED, torch.float32)[len(PROMPT) - 1 :]
    found = native_logits(checkpoints[case], 512, **ROUTES[route])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=4e-5)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3-tied", "qwen3.5", "qwen3-moe"])
def test_bf16_logits_err_no_more_than_transformers_own(checkpoints: dict[str, Path], case: str, route: str) -> None:
    """Teacher-forced: both round to bf16 on the way; ours may be twice as far from float32 as theirs, no more."""
    truth = reference_logits(checkpoints[case], PROMPT + FORCED, torch.float32)[len(PROMPT) - 1 :]
    theirs = reference_logits(checkpoints[case], PROMPT + FORCED, torch.bfloat16)[len(PROMPT) - 1 :]
    ours = native_logits(checkpoints[case], 512, dtype="bfloat16", **ROUTES[route])
    allowed = 2 * (theirs - truth).norm() / truth.norm()
    assert (ours - truth).norm() / truth.norm() <= allowed
    assert 0.0005 < allowed < 0.3, "the yardstick itself: bf16 errs by per cents, more where it chooses other experts"


@pytest.mark.parametrize("route", ["torch", "cpu"])
@pytest.mark.parametrize("case", ["qwen3", "qwen3-moe", "qwen3.5"])
@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 17])
def test_prefill_by_chunks_is_prefill_at_once(checkpoints: dict[str, Path], case: str, chunk: int, route: str) -> None:
    at_once = native_logits(checkpoints[case], 512, **ROUTES[route])
    torch.testing.assert_close(native_logits(checkpoints[case], chunk, **ROUTES[route]), at_once, rtol=1e-4, atol=4e-5)


@pytest.mark.parametrize("route", ["torch", "cpu"])
@pytest.mark.parametrize("case", ["qwen3", "qwen3-moe", "qwen3.5"])
def test_prefill_is_token_by_token(checkpoints: dict[str, Path], case: str, route: str) -> None:
    at_once = native_logits(checkpoints[case], 512, **ROUTES[route])
    token_by_token = native_logits(checkpoints[case], 512, num_prefilled=1, **ROUTES[route])
    torch.testing.assert_close(token_by_token, at_once, rtol=1e-4, atol=4e-5)


def test_a_wrong_rotation_is_seen(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: angles off by one position."""
    from harness.engines.native import attention as module

    right = module.rope_table
    monkeypatch.setattr(module, "rope_table", lambda *a: tuple(table.roll(1, 0) * 1.0 for table in right(*a)))
    expected = reference_logits(checkpoints["llama"], PROMPT + FORCED, torch.float32)[len(PROMPT) - 1 :]
    found = native_logits(checkpoints["llama"], 512, **ROUTES["torch"])
    assert not torch.allclose(found, expected, rtol=1e-3, atol=1e-3)
