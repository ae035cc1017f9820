"""Our bytes of a decode step beside those of vLLM's own model (`--enable-mfu-metrics`), for dense models, by cause.

    python benchmarks/vllm_bytes.py --python VLLM_VENV/bin/python [--context 1000]

vLLM bills activations, which a step keeps in its caches, and leaves out what is small: norms, biases and the row of the
embedding. `unexplained` is what is left when those are taken out: bytes that one of the two counts wrongly.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harness.errors import ConfigError
from harness.models import ResolvedModel, model_names, resolve_model
from harness.resources import find_config
from harness.specs.layout import model_tensors
from harness.traffic import decode_traffic

WORKER = Path(__file__).parent / "peers" / "vllm_bytes.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, metavar="INTERPRETER")
    parser.add_argument("--context", type=int, default=1000)
    options = parser.parse_args()
    models = {str(find_config("models", name, "{name}/config.json").parent): name for name in dense_names()}
    command = [options.python, str(WORKER), str(options.context), *models]
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
    rows = [compare(resolve_model(models[folder]), theirs, options.context) for folder, theirs in answer.items()]
    print(tabulate(rows, headers="keys", tablefmt="github", intfmt=","))


def dense_names() -> list[str]:
    """Known models that are plain dense."""
    return [name for name in model_names() if is_dense(name)]


def is_dense(name: str) -> bool:
    try:
        resolve_model(name).spec.dense()
    except ConfigError:
        return False
    return True


def compare(model: ResolvedModel, theirs: dict[str, int], context: int) -> dict[str, Any]:
    """One model's row; bytes."""
    spec, tensors = model.spec, [t.model_copy(update={"dtype": "BF16"}) for t in model_tensors(model.spec)]
    traffic = decode_traffic(spec, tensors, "config", kv_dtype="BF16")
    small = sum(t.num_bytes for t in tensors if "norm" in t.name or t.name.endswith(".bias"))
    weights = sum(size for name, size in theirs.items() if name.endswith(("weight", "weights")))
    queries = 2 * spec.num_layers * spec.dense()[0].q_size  # read beside the cache, bf16
    cache = theirs["attn.attn_input"] - queries + theirs["write.attn.kv_cache"]
    total = sum(size for name, size in theirs.items() if name != "flops")
    ours = traffic.step_bytes(context)
    return {
        "model": model.name,
        "ours": ours,
        "vLLM": total,
        "norms, biases, embedding row": small + traffic.embedding_row_bytes,
        "activations": total - weights - cache,
        "unexplained": ours - small - traffic.embedding_row_bytes - weights - cache,
        "FLOP, ours": traffic.step_flop(context),
        "FLOP, vLLM": theirs["flops"],
    }


if __name__ == "__main__":
    main()
