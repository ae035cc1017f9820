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

_MAMBA2_FIELDS = {
    "nemotron_h": (
        "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "use_bias", "use_conv_bias",
    ),
    "bamba": (
        "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_proj_bias",
        "mamba_conv_bias",
    ),
}  # fmt: skip
"""Heads, width of a head, state, groups, kernel, biases of the projections and of the convolution."""


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


def mamba2(fields: Fields, family: str) -> Mamba2:
    """The state's type is the config's, else fp32: transformers' default for Nemotron-H, and vLLM's
    (NemotronHForCausalLMConfig: "only float32 is known to have no accuracy issues"); vLLM keeps Bamba's in the model's
    type unless told otherwise."""
    fields.only("mamba_hidden_act", (None, "silu"), "only silu is modelled")
    heads, head_dim, state, groups, kernel, bias, conv_bias = _MAMBA2_FIELDS[family]
    mamba = Mamba2(
        num_heads=fields.count(heads),
        head_dim=fields.count(head_dim),
        state_size=fields.count(state),
        num_groups=fields.count(groups),
        conv_kernel=fields.count(kernel),
        state_dtype=fields.dtype("mamba_ssm_cache_dtype", default="float32"),
        bias=fields.flag(bias, default=False),
        conv_bias=fields.flag(conv_bias, default=True),
        name="mixer" if family == "nemotron_h" else "mamba",
    )
    if mamba.num_heads % mamba.num_groups:
        raise fields.fault(
            f"{heads} {mamba.num_heads} is not a multiple of {groups} {mamba.num_groups}",
            "the heads of a group share B and C",
        )
    return mamba


def bamba_layers(fields: Fields, num_layers: int) -> list[str]:
    """Those of attn_layer_indices have a cache."""
    with_cache = fields.counts("attn_layer_indices")
    if not all(0 <= index < num_layers for index in with_cache):
        raise fields.fault(f"attn_layer_indices is {list(with_cache)}", f"each from 0 to {num_layers - 1}")
    return ["full_attention" if index in with_cache else "linear_attention" for index in range(num_layers)]


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
