"""The real model by our own engine: it answers, and stops by itself."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from harness.bench import run_bench
from harness.resources import cache_dir
from harness.specs.run import RunConfig

MODEL = cache_dir() / "models" / "smollm2-135m-instruct"

pytestmark = [
    pytest.mark.torch,
    pytest.mark.model,
    pytest.mark.skipif(not MODEL.is_dir(), reason="no SmolLM2: python scripts/fetch_smollm2.py"),
]

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def test_it_names_the_capital_of_france(tmp_path: Path) -> None:
    config = RunConfig.model_validate(
        {
            "name": "paris", "model": str(MODEL), "engine": {"kind": "native", "device": "cpu"},
            "workload": {"prompts": [QUESTION], "mode": "natural-stop", "output_tokens": 40, "repeats": 1},
            "probe": {"buffer_bytes": 1 << 20, "survey_s": 0.1, "reading_s": 0.01},
        }
    )  # fmt: skip
    _, record, text = run_bench(config, tmp_path, lambda line: None)
    assert text.strip() == "The capital of France is Paris."
    assert record.requests[0].num_output_tokens < 40, "the end token ended it"
    assert record.analysis is not None
    assert record.analysis.tensors_source == "headers"
