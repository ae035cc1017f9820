"""The plugin's part of vLLM's key for compiled code: in every model's configuration, not in a process's first alone."""

from pathlib import Path

import pytest
from selections import save_table
from tiny_vllm import opened, vllm_config

import harness
from harness.vllm_plugin import open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler]


def test_a_second_model_of_the_process_has_the_key_as_well(tmp_path: Path) -> None:
    """While the session of the first stands, as it does outside the harness's own engines."""
    from vllm.config import VllmConfig, set_current_vllm_config

    from harness.vllm_plugin.layers import model_session

    model = vllm_config(tmp_path, "qwen3")
    with opened(model, selection=str(save_table(tmp_path / "t", model, "cpu-gemv"))) as engine:
        first, session = engine._engine.vllm_config, open_session()
        second = VllmConfig(device_config=first.device_config)
        plain = second.compute_hash()
        assert session is not None and "llm-decode-harness" not in second.additional_config
        with set_current_vllm_config(second):
            assert model_session() is session
        ours, *fingerprints = second.additional_config["llm-decode-harness"]
        assert fingerprints == [session.paths.tables[0].fingerprint] and ours.startswith(f"{harness.__version__} ")
        assert second.additional_config == first.additional_config and second.compute_hash() != plain
