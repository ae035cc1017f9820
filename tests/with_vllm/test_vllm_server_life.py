"""vLLM's own server, started by the harness: answers, what it says of itself, a prefix that it remembers, its death."""

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_vllm import VOCAB, vllm_config

from harness.engines.registry import open_rig
from harness.errors import RequestFailed
from harness.models import resolve_model
from harness.specs.request import Chunk, Request
from harness.specs.run import RunConfig

pytestmark = pytest.mark.vllm
PROMPT = tuple(range(2, 66))


def ask(engine: Any, prompt: tuple[int, ...], num_tokens: int = 24) -> list[Chunk]:
    request = Request(None, (prompt,), num_tokens, ignore_eos=True)
    engine.prepare(request)
    return list(engine.generate(request))


def test_a_servers_life(tmp_path: Path) -> None:
    model = vllm_config(tmp_path, "qwen3", max_position_embeddings=4096)
    engine = {
        "kind": "vllm-server", "python": sys.executable, "load_format": "dummy", "graph": "eager", "device": "none",
        "kv_cache_bytes": 1 << 28, "enable_prefix_caching": True, "first_token_limit_s": 120.0,
        "extra_args": {"block_size": 32, "enable_prompt_tokens_details": True},
    }  # fmt: skip
    config = {"name": "t", "model": str(model), "engine": engine, "workload": {"input_tokens": 9}}
    rig = open_rig(RunConfig.model_validate(config), resolve_model(str(model)))
    server = rig.open_engine(tmp_path)
    ours = [psutil.Process(server._process.pid), *psutil.Process(server._process.pid).children(recursive=True)]  # type: ignore[attr-defined]
    try:
        said = server.report().resolved
        assert said["version"] and said["dtype"] == "bfloat16" and said["enable_prefix_caching"] is True
        first, again = ask(server, PROMPT), ask(server, PROMPT)
        ids = [token for chunk in first for token in chunk.token_ids]
        assert len(ids) == 24 and all(0 <= token < VOCAB for token in ids)
        assert ids == [token for chunk in again for token in chunk.token_ids]
        assert first[-1].usage is not None and first[-1].usage.prompt_tokens == len(PROMPT)
        assert again[-1].usage is not None and again[-1].usage.cached_tokens == 32  # so a run on it would be invalid
        cores = [
            process for process in ours if "EngineCore" in process.name() or "EngineCore" in str(process.cmdline())
        ]
        assert cores
        with pytest.raises(RequestFailed):
            _ask_while_dying(server, cores)
    finally:
        server.close()
        rig.close()
    assert not [process for process in ours if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def _ask_while_dying(server: Any, cores: list[psutil.Process]) -> None:
    request = Request(
        None, (PROMPT[:9],), 3000, ignore_eos=True
    )  # many seconds: on a busy machine tokens come in bursts
    server.prepare(request)
    for count, _ in enumerate(server.generate(request)):
        if count == 3:
            for process in cores:
                process.kill()
