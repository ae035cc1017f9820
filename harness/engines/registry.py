"""Kinds of engine by name. A kind's module is imported when it is asked for, and not before: it may need torch."""

from importlib import import_module

from harness.engines.base import Rig
from harness.errors import UnavailableError
from harness.models import ResolvedModel
from harness.specs.run import RunConfig

# kind in the configuration -> module:class
_RIGS = {
    "native": "harness.engines.native.rig:NativeRig",
    "openai": "harness.engines.openai_server:OpenAIRig",
    "vllm-server": "harness.engines.vllm_server:VllmServerRig",
    "scripted": "harness.engines.scripted:ScriptedRig",
    "vllm": "harness.engines.vllm_inproc.rig:VllmRig",
}


def open_rig(config: RunConfig, model: ResolvedModel) -> Rig:
    """The machine side of a run: device, probe and engine of the configured kind."""
    module, _, name = _RIGS[config.engine.kind].partition(":")
    try:
        kind: type[Rig] = getattr(import_module(module), name)
    except ModuleNotFoundError as fault:
        if fault.name != "torch":
            raise
        raise UnavailableError(
            f"the {config.engine.kind} engine needs torch", "pip install torch, as `make install` does"
        ) from None
    return kind(config, model)
