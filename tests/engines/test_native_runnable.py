"""Which models the native engine refuses, each by what it lacks, before anything is loaded."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tiny_models import BASE, CASES  # noqa: E402

from harness.engines.native.runnable import check_runnable  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from harness.specs.base import Frozen  # noqa: E402
from harness.specs.hf_config import model_spec_from_hf  # noqa: E402
from harness.specs.layer import LayerKind  # noqa: E402
from harness.specs.model import ModelSpec  # noqa: E402
from harness.specs.parts.absent import NoMlp  # noqa: E402
from harness.specs.parts.latent_attention import LatentAttention  # noqa: E402
from harness.specs.parts.mamba1 import Mamba1  # noqa: E402
from harness.specs.parts.mlp import GatedMlp, PlainMlp  # noqa: E402
from harness.specs.parts.stacked_moe import StackedMoe  # noqa: E402

pytestmark = pytest.mark.torch

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LATENT = LatentAttention(
    num_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16
)
MAMBA = Mamba1(inner_size=128, state_size=16, dt_rank=4, conv_kernel=4)
SHARED = GatedMlp(intermediate_size=48)


def spec(case: str, **changes: Any) -> ModelSpec:
    return model_spec_from_hf(BASE | CASES[case] | {"dtype": "float32"} | changes)


def with_part(case: str, part: str, index: int = 0, replaced: Frozen | None = None, **changes: Any) -> ModelSpec:
    """The model with a mixer or an MLP of one of its kinds of layers changed."""
    found = spec(case)
    kinds: list[LayerKind] = list(found.kinds)
    new = replaced or getattr(kinds[index], part).model_copy(update=changes)
    kinds[index] = kinds[index].model_copy(update={part: new})
    return found.model_copy(update={"kinds": tuple(kinds)})


def index_of(case: str, part: str, kind: str) -> int:
    return next(i for i, layer in enumerate(spec(case).kinds) if getattr(layer, part).kind == kind)


EXPERTS = index_of("qwen3-moe", "mlp", "moe")
DELTA = index_of("qwen3.5", "mixer", "gated-delta")
PLAIN = PlainMlp(intermediate_size=48)
STACKED = StackedMoe(num_experts=4, experts_per_token=2, intermediate_size=48)
GELU = GatedMlp(intermediate_size=48, activation="gelu_pytorch_tanh")


@pytest.mark.parametrize("case", CASES)
def test_the_tiny_models_run(case: str) -> None:
    check_runnable(spec(case), CPU)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (spec("mistral", sliding_window=32), "attention windows"),
        (with_part("qwen3", "mixer", sinks=True), "attention sinks"),
        (with_part("qwen3", "mixer", replaced=LATENT), "mixer of the kind latent-attention"),
        (with_part("qwen3", "mixer", replaced=MAMBA), "mixer of the kind mamba1"),
        (with_part("qwen3", "mlp", replaced=NoMlp()), "MLP of the kind no-mlp"),
        (with_part("qwen3", "mlp", replaced=PLAIN), "MLP of the kind plain-mlp"),
        (with_part("qwen3-moe", "mlp", EXPERTS, replaced=STACKED), "MLP of the kind stacked-moe"),
        (with_part("qwen3", "mlp", replaced=GELU), "activation gelu_pytorch_tanh"),
        (with_part("qwen3-moe", "mlp", EXPERTS, expert=GELU), "activation gelu_pytorch_tanh"),
        (with_part("qwen3-moe", "mlp", EXPERTS, expert=PLAIN), "activation relu2"),
        (with_part("qwen3-moe", "mlp", EXPERTS, shared=SHARED), "shared experts"),
        (with_part("qwen3-moe", "mlp", EXPERTS, router_correction=True), "corrected router"),
        (with_part("qwen3-moe", "mlp", EXPERTS, latent_size=32), "experts on a narrower input"),
        (with_part("qwen3-moe", "mlp", EXPERTS, stacked=True), "stacked experts"),
        (with_part("qwen3.5", "mixer", DELTA, fused_inputs=True), "fused input projections of the gated delta rule"),
        (with_part("qwen3.5", "mixer", DELTA, state_dtype="BF16"), "recurrent state in BF16"),
        (spec("qwen3").model_copy(update={"quantization": "awq"}), "weights in awq"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_is_lacking_is_named(model: ModelSpec, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_runnable(model, CPU)
    assert refused.value.what == f"the native engine does not run this {model.model_type}: it has no {words}"
    assert "`harness plan`" in refused.value.mend


def test_norms_around_the_parts_are_refused() -> None:
    gemma = spec("llama", model_type="gemma2", head_dim=32, hidden_activation="gelu_pytorch_tanh", sliding_window=8)
    with pytest.raises(ConfigError, match="it has no norms around its parts"):
        check_runnable(gemma, CPU)


def test_a_kind_of_layer_far_down_is_looked_at_too() -> None:
    """Every kind is: the second alone has a window here."""
    kinds = ["full_attention", "full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="attention windows"):
        check_runnable(spec("qwen3", sliding_window=16, layer_types=kinds), CPU)


def test_experts_need_a_host_that_looks_at_the_choice() -> None:
    with pytest.raises(ConfigError, match="experts on a GPU"):
        check_runnable(spec("qwen3-moe"), GPU)
    check_runnable(spec("qwen3"), GPU)
    check_runnable(spec("qwen3.5"), GPU)
