"""Mamba layers as a config.json has them, and which layers are of that kind."""

import math

from harness.specs.hf_fields import Fields
from harness.specs.parts.mamba1 import Mamba1
from harness.specs.parts.mamba2 import Mamba2

_BLOCKS = {
    "M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe",
    "mamba": "linear_attention", "attention": "full_attention",
    "linear_attention": "linear_attention", "full_attention": "full_attention", "mlp": "mlp", "moe": "moe",
}  # fmt: skip
"""What Nemotron-H's layers are called: letters in hybrid_override_pattern, words in layers_block_type, of which
transformers 5 renamed two."""


def nemotron_blocks(fields: Fields) -> list[str]:
    """The one part of each layer."""
    given, num_layers = fields.get("layers_block_type"), fields.count("num_hidden_layers")
    known = isinstance(given, str | list) and all(isinstance(block, str) and block in _BLOCKS for block in given)
    if not known or len(given) != num_layers:
        raise fields.fault(
            f"layers_block_type (hybrid_override_pattern) is {given!r}",
            f"num_hidden_layers, {num_layers}, of: {', '.join(_BLOCKS)}",
        )
    return [_BLOCKS[block] for block in given]


def nemotron_mamba(fields: Fields) -> Mamba2:
    """The state's type is the config's, else fp32: transformers' default for the family, and vLLM's
    (NemotronHForCausalLMConfig: "only float32 is known to have no accuracy issues")."""
    fields.only("mamba_hidden_act", (None, "silu"), "only silu is modelled")
    mamba = Mamba2(
        num_heads=fields.count("mamba_num_heads"),
        head_dim=fields.count("mamba_head_dim"),
        state_size=fields.count("ssm_state_size"),
        num_groups=fields.count("n_groups"),
        conv_kernel=fields.count("conv_kernel"),
        state_dtype=fields.dtype("mamba_ssm_cache_dtype", default="float32"),
        bias=fields.flag("use_bias", default=False),
        conv_bias=fields.flag("use_conv_bias", default=True),
        name="mixer",
    )
    if mamba.num_heads % mamba.num_groups:
        raise fields.fault(
            f"mamba_num_heads {mamba.num_heads} is not a multiple of n_groups {mamba.num_groups}",
            "the heads of a group share B and C",
        )
    return mamba


def by_period(fields: Fields, name: str, num_layers: int) -> list[bool]:
    """Jamba's way of saying which layers: each `name`_layer_period'th, from `name`_layer_offset on."""
    period, offset = fields.count(f"{name}_layer_period"), fields.count(f"{name}_layer_offset", least=0)
    if offset >= period:
        raise fields.fault(f"{name}_layer_offset is {offset}", f"it must be below {name}_layer_period, {period}")
    return [index % period == offset for index in range(num_layers)]


def jamba_mamba(fields: Fields) -> Mamba1:
    """The state is in fp32 unless the config says otherwise, as transformers keeps it; vLLM's default for the family is
    the model's type."""
    hidden = fields.count("hidden_size")
    rank_is_given = fields.get("mamba_dt_rank", "auto") != "auto"
    return Mamba1(
        inner_size=fields.count("mamba_expand") * hidden,
        state_size=fields.count("mamba_d_state"),
        dt_rank=fields.count("mamba_dt_rank") if rank_is_given else math.ceil(hidden / 16),
        conv_kernel=fields.count("mamba_d_conv"),
        state_dtype=fields.dtype("mamba_ssm_cache_dtype", default="float32"),
        bias=fields.flag("mamba_proj_bias", default=False),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
    )
