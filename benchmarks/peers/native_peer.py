"""Ours: default backends."""

from collections.abc import Callable

from prompt import PROMPT_TOKENS, prompt_ids

from harness.engines.native.rig import NativeRig
from harness.models import resolve_model
from harness.specs.request import Request
from harness.specs.run import RunConfig


def open_peer(folder: str, tokens: int) -> Callable[[], float]:
    workload = {"input_tokens": PROMPT_TOKENS, "output_tokens": tokens + 1}
    engine = {"kind": "native", "weights": "synthetic", "device": "cpu"}
    config = RunConfig.model_validate({"name": "peer", "model": folder, "engine": engine, "workload": workload})
    decoding = NativeRig(config, resolve_model(folder)).open_engine()

    def block() -> float:
        request = Request(None, (tuple(prompt_ids()),), tokens + 1, ignore_eos=True)
        times = [chunk.time_s for chunk in decoding.generate(request)]
        return (times[-1] - times[0]) / tokens

    return block
