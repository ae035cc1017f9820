"""The plugin's part of vLLM's key for compiled code: in every model's configuration, not in a process's first alone."""

from pathlib import Path

import pytest
from selections import save_table
from tiny_vllm import opened, vllm_config

import harness
from harness.vllm_plugin import open_session

pytestmark = [pytest.mark.vllm, pytest.mark.compiler]


def test_a_second_model_of_the_process_has_a_session_and_the_key_as_well(tmp_path: Path) -> None:
    """While the session of the first stands, as it does outside the harness's own engines. Parts of a model have
    configurations of their own, and its session."""
    from vllm.config import VllmConfig, set_current_vllm_config

    from harness.vllm_plugin.layers import model_session

    model = vllm_config(tmp_path, "qwen3")
    with opened(model, selection=str(save_table(tmp_path / "t", model, "cpu-gemv"))) as engine:
        first, session = engine._engine.vllm_config, open_session()
        second = VllmConfig(device_config=first.device_config, model_config=first.model_config)
        plain = second.compute_hash()
        assert session is not None and "llm-decode-harness" not in second.additional_config
        with set_current_vllm_config(first.with_hf_config(first.model_config.hf_config)):
            assert model_session() is session
        with set_current_vllm_config(second):
            opened_anew = model_session()
            assert opened_anew is not None and opened_anew is not session and model_session() is opened_anew
        assert not session.linears.hashes() and not session.linears._by_address, "the first's weights are let go"
        ours, *fingerprints = second.additional_config["llm-decode-harness"]
        assert fingerprints == [session.paths.tables[0].fingerprint] and ours.split()[0] == harness.__version__
        assert second.additional_config == first.additional_config and second.compute_hash() != plain
