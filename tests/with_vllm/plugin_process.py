"""A model whose layers live in other processes, which are switched and asked through files: variants, answers, counts,
and log-probabilities of a given text [steps, vocabulary].

Arguments: model, folder of the counters, workers, variants with commas between. Prints a line of JSON for each variant.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from agreement import FORCED, PROMPT, STEPS, read_llm
from vllm import LLM, SamplingParams

from harness.vllm_plugin.shared import read_reports, switch


def counts(folder: Path) -> Counter[str]:
    """By process, variant, rows and backend."""
    found: Counter[str] = Counter()
    for report in read_reports(folder):
        for path in report.paths:
            found[f"{report.pid} {path.variant} {path.m} {path.backend}"] += path.num_calls
    return found


def main(model: str, folder: Path, workers: int, variants: list[int]) -> None:
    llm = LLM(
        model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64, max_num_seqs=1,
        enable_prefix_caching=False, tensor_parallel_size=workers, kv_cache_memory_bytes=1 << 28,
        async_scheduling=False, **FORCED,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True, detokenize=False)
    for variant in variants:
        switch(folder, variant, 1)
        before = counts(folder)
        (output,) = llm.generate({"prompt_token_ids": list(PROMPT)}, sampling, use_tqdm=False)
        calls = dict(counts(folder) - before)
        likely = read_llm(llm).likely[0].tolist()
        print(json.dumps({"tokens": list(output.outputs[0].token_ids), "calls": calls, "likely": likely}), flush=True)


if __name__ == "__main__":  # processes that it spawns import this file
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), [int(part) for part in sys.argv[4].split(",")])
