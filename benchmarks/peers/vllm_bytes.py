"""What vLLM's own byte model says of one decode step: `python vllm_bytes.py CONTEXT FOLDER...`, by vLLM's interpreter.

Prints one JSON object, folder -> {component: bytes read or written, "flops": FLOP}. No model is loaded.
"""

import json
import sys

from vllm.engine.arg_utils import EngineArgs
from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics


def step_bytes(folder: str, context: int) -> dict[str, int]:
    """Reads by component, and writes as `write.<component>`."""
    arguments = EngineArgs(
        folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", max_model_len=context + 1
    )
    model = ModelMetrics(arguments.create_engine_config())
    step = ExecutionContext.from_single_request(1, context, is_prefill=False)
    writes = {f"write.{name}": size for name, size in model.get_write_bytes_breakdown(step).items()}
    return {**model.get_read_bytes_breakdown(step), **writes, "flops": model.get_num_flops(step)}


if __name__ == "__main__":
    print(json.dumps({folder: step_bytes(folder, int(sys.argv[1])) for folder in sys.argv[2:]}))
