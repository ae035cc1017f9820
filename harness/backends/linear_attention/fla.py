"""flash-linear-attention's gated delta rule: fused_recurrent_gated_delta_rule for a step, the chunked one for a prompt.

Install: `pip install fla-core packaging`, 0.6 or newer, beside a torch with Triton; flash-linear-attention brings both.
The library knows CUDA and ROCm cards; DCU is unverified.

Its kernels do the rule itself, unit lengths and scale included. Convolution, gates and norm are torch's operations, as
in `torch-recurrent`. The state is read once and a new one returned, which a launch copies into ours: that read counts
too. The chunked kernels tune themselves in their first launch, which nobody times. No value comes to the host, so a
graph can hold a launch.

Both kernels are right on the host by Triton's interpreter (0.6.0); no card has run them here yet.
"""

from __future__ import annotations

from torch import Tensor

from harness.backends.base import (
    DeltaInputs,
    DeltaState,
    DeltaWeights,
    Executor,
    Launch,
    LinearAttentionBackend,
    Support,
)
from harness.backends.launch import triton_support
from harness.backends.library import installed, load_library
from harness.backends.linear_attention.torch_recurrent import bind_around, state_and_weight_bytes
from harness.backends.registry import linear_attention_backend
from harness.specs.device import DeviceInfo
from harness.specs.problem import DeltaProblem

INSTALL = "pip install fla-core packaging, 0.6 or newer"
DTYPES = ("BF16", "F16")
"""On a card its chunks multiply fp32 as TF32."""
MAX_KEY_HEAD_DIM = 256


@linear_attention_backend("fla")
class Fla(LinearAttentionBackend):
    """flash-linear-attention's Triton kernels, where it is installed: a step, and a prompt by chunks."""

    contest_legal = True
    norm_is_optional = True

    def __init__(self, executor: Executor) -> None:
        self._rules = load_library("fla.ops.gated_delta_rule")

    @staticmethod
    def supports(problem: DeltaProblem, device: DeviceInfo) -> Support:
        here = installed("fla", INSTALL)
        if not here.ok:
            return here
        if problem.dtype not in DTYPES:
            return Support.no(f"fla is for {' and '.join(DTYPES)}, not {problem.dtype}", "use torch-recurrent")
        if problem.key_head_dim > MAX_KEY_HEAD_DIM:
            what = f"key_head_dim {problem.key_head_dim} is larger than {MAX_KEY_HEAD_DIM}"
            return Support.no(what, "use torch-recurrent")
        if problem.num_value_heads % problem.num_key_heads:
            heads = f"{problem.num_value_heads} value heads do not divide among {problem.num_key_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        return triton_support(problem.dtype, device)

    def read_bytes(self, problem: DeltaProblem) -> int:
        """What every backend reads, and the new state once more."""
        return state_and_weight_bytes(problem) + 4 * problem.state_values

    def bind(
        self, inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor, problem: DeltaProblem
    ) -> Launch:
        step, chunks = self._rules.fused_recurrent_gated_delta_rule, self._rules.chunk_gated_delta_rule
        rule, scale = step if problem.m == 1 else chunks, problem.key_head_dim**-0.5

        def library_rule(
            q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, recurrent: Tensor
        ) -> Tensor:  # fmt: skip
            o, new = rule(
                q[None], k[None], v[None], g=log_decay[None], beta=beta[None], scale=scale,
                initial_state=recurrent[None], output_final_state=True, use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
            recurrent.copy_(new[0])
            result: Tensor = o[0]
            return result

        return bind_around(library_rule, inputs, weights, state, out, problem)
