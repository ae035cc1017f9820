"""vLLM on a CPU in this process: compiled, all cores, with Intel's OpenMP where its package is installed.

That runtime must be loaded before any other, so the process starts itself anew with it (pip install intel-openmp).
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prompt import PROMPT_TOKENS, prompt_ids

OPENMP = Path(sys.prefix) / "lib" / "libiomp5.so"
if OPENMP.is_file() and str(OPENMP) not in os.environ.get("LD_PRELOAD", ""):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": str(OPENMP)})

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"

from vllm import LLM, SamplingParams  # noqa: E402 - reads the variables when it is imported


def open_peer(folder: str, tokens: int) -> Callable[[], float]:
    llm = LLM(
        folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", seed=0, max_num_seqs=1,
        max_model_len=PROMPT_TOKENS + tokens + 1, enable_prefix_caching=False,
    )  # fmt: skip

    def timed(count: int) -> float:
        sampling = SamplingParams(temperature=0, max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        llm.generate({"prompt_token_ids": prompt_ids()}, sampling, use_tqdm=False)
        return time.perf_counter() - started

    return lambda: (timed(tokens + 1) - timed(1)) / tokens
