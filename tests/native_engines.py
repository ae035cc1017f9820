"""Native engines of tiny models with synthetic weights, opened without a run. Also used with Triton's interpreter."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiny_models import BASE, CASES

ROUTES: dict[str, dict[str, Any]] = {
    "torch": {
        "linear": "torch", "attention": "torch-sdpa", "linear_attention": "torch-recurrent",
        "prefill_linear_attention": "torch-recurrent", "elementwise": "torch",
    },
    "cpu": {
        "linear": "cpu-gemv", "attention": "cpu-decode", "linear_attention": "cpu-recurrent", "elementwise": "cpu",
    },
}  # fmt: skip


def tiny_config(folder: Path, case: str, **changes: Any) -> Path:
    """A config.json alone: the engine draws the weights."""
    path = folder / case / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(BASE | CASES[case] | {"dtype": "float32"} | changes))
    return path


@contextmanager
def opened(
    model: Path, route: str = "torch", prompt: int = 9, batch: int = 1, output_tokens: int = 12, **engine: Any
) -> Iterator[Any]:
    """The engine of a run with prompts of so many tokens, and room for a batch."""
    from harness.engines.native.rig import NativeRig
    from harness.models import resolve_model
    from harness.specs.run import RunConfig

    config = {
        "name": "t", "model": str(model),
        "engine": {"kind": "native", "device": "cpu", "weights": "synthetic", **ROUTES[route], **engine},
        "workload": {"input_tokens": prompt, "output_tokens": output_tokens, "warmup_tokens": 1},
        "sweep": {"over": "batch", "values": (1, batch)} if batch > 1 else None,
    }  # fmt: skip
    rig = NativeRig(RunConfig.model_validate(config), resolve_model(str(model)))
    try:
        yield rig.open_engine()
    finally:
        rig.close()
