"""vLLM as a server of this machine: started before the run's first request, watched during it, ended behind it."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from harness.client.connection import Exchange
from harness.client.requests import Client
from harness.engines.base import PairOpener, Rig
from harness.engines.openai_server import OpenAIServer, ProbedDevice
from harness.engines.vllm_setup import (
    NO_SHARED_ROOF,
    Selections,
    has_audit,
    has_roof,
    model_folder,
    our_variables,
    plugin_arguments,
    selections,
    selections_of_both,
)
from harness.errors import ConfigError, MeasurementError, RequestFailed, UnavailableError
from harness.models import ResolvedModel
from harness.probe.base import Probe
from harness.server.process import ServerProcess, free_port
from harness.specs.client import ClientOptions
from harness.specs.device import DeviceInfo
from harness.specs.engine import EngineReport
from harness.specs.request import Chunk, Request
from harness.specs.run import OpenAIEngine, RunConfig
from harness.specs.vllm import VllmServerEngine
from harness.vllm_plugin.audit import COLLECT, HASHES
from harness.vllm_plugin.variant import Variant

LOG = "server.log"
DYING_S = 2.0
COLLECT_LIMIT_S = 60.0
MODULE = "vllm.entrypoints.openai.api_server"  # the `vllm` command of some builds can't find its own version
_KEPT = {
    "model_config": ("dtype", "quantization", "max_model_len", "enforce_eager", "seed"),
    "cache_config": ("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching", "mamba_ssm_cache_dtype",
                     "gpu_memory_utilization", "kv_cache_memory_bytes"),
    "attention_config": ("backend",),
    "scheduler_config": ("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "async_scheduling"),
    "parallel_config": ("distributed_executor_backend", "tensor_parallel_size", "pipeline_parallel_size"),
    "compilation_config": ("mode", "backend", "cudagraph_mode"),
    "load_config": ("load_format",),
}  # fmt: skip
SETTINGS = tuple((part, key) for part, keys in _KEPT.items() for key in keys)
"""What the record keeps of vLLM's resolved configuration, by its own names."""
_NAMES = {
    ("compilation_config", "mode"): "compilation_mode", ("compilation_config", "backend"): "compilation_backend",
    ("attention_config", "backend"): "attention_backend",
}  # fmt: skip
"""But for those that say nothing alone."""
_MODES: dict[str, dict[str, str]] = {
    "mode": dict(zip("0123", ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE"), strict=True)),
    "cudagraph_mode": {
        "0": "NONE", "1": "PIECEWISE", "2": "FULL", "[2, 0]": "FULL_DECODE_ONLY", "[2, 1]": "FULL_AND_PIECEWISE",
    },
}  # fmt: skip
"""vLLM's names of what it tells by numbers."""


class VllmServer(OpenAIServer):
    """The server's answers, and its life, which another variant of it may share."""

    def __init__(
        self, process: ServerProcess, config: OpenAIEngine, model: ResolvedModel, dtype: str, load_s: float,
        variant: Variant, audit_limit_s: float | None, notes: Sequence[str],
    ) -> None:  # fmt: skip
        """audit_limit_s: how long its workers may take to hash their parameters; None: they can't. notes: of the
        probe."""
        self._process, self._dtype, self._load_s = process, dtype, load_s
        self._variant, self._audit_limit_s = variant, audit_limit_s
        super().__init__(config, model, notes)

    def prepare(self, request: Request) -> float:
        self._variant.take()
        return super().prepare(request)

    def _chunks(self, exchange: Exchange, asked_tokens: int) -> Iterator[Chunk]:
        """A server that died says why in its log."""
        num_tokens = 0
        try:
            for chunk in super()._chunks(exchange, asked_tokens):
                num_tokens += len(chunk.token_ids)
                yield chunk
        except RequestFailed as fault:
            try:
                self._process.check_alive(DYING_S)
            except UnavailableError as dead:
                raise RequestFailed(f"{fault.what}; {dead.what}", dead.mend) from None
            raise
        finally:
            self._variant.answered(max(0, num_tokens - 1))

    def _resolve(self) -> dict[str, str | int | float | bool | None]:
        """As the server itself tells it (/server_info, which VLLM_SERVER_DEV_MODE opens)."""
        found = super()._resolve()
        with suppress(RequestFailed):
            config = self._client.ask("/server_info?config_format=json", at_root=True).get("vllm_config", {})
            for part, key in SETTINGS:
                value = config.get(part, {}).get(key)
                found[_NAMES.get((part, key), key)] = _MODES.get(key, {}).get(str(value)) or _plain(value)
        return found

    def report(self) -> EngineReport:
        compiled = tuple(self._process.compilations_since_ready())
        own = {"kind": "vllm-server", "dtype": self._dtype, "load_s": self._load_s, "late_compilations": compiled}
        return self._variant.completed(super().report().model_copy(update=own))

    def audit(self) -> None:
        """Asked of the server itself (/collective_rpc, which VLLM_SERVER_DEV_MODE opens)."""
        if self._audit_limit_s is not None:
            answer = self._client.ask("/collective_rpc", {"method": HASHES}, True, self._audit_limit_s)
            self._variant.audit(answer["results"])

    def close(self) -> None:
        super().close()
        self._process.stop()


class VllmServerRig(Rig):
    """The server's machine is this one."""

    def __init__(self, config: RunConfig, model: ResolvedModel) -> None:
        if not isinstance(config.engine, VllmServerEngine):
            raise ConfigError(f"engine.kind is {config.engine.kind!r}", "the server's rig takes `vllm-server`")
        self._engine, self._model = config.engine, model
        self._folder, self._temporary = model_folder(model, config.engine)
        self._probed = ProbedDevice(config.engine.device, config.probe)
        self.device = self._probed.device or DeviceInfo(kind="unknown", name="vllm-server")

    def open_probe(self) -> Probe | None:
        if not has_roof(self._engine, self.device):
            self._probed.notes.append(NO_SHARED_ROOF)
            return None
        return self._probed.open_probe()

    def open_engine(self, log_dir: Path) -> VllmServer:
        """Ready: it answers, under a name that no other server has, and the port is held by a process of ours."""
        (server,) = self._open(log_dir, selections(self._engine))
        return server

    def sharing(self, other: RunConfig) -> PairOpener | None:
        tables = selections_of_both(self._engine, other.engine, self.device)
        return None if tables is None else partial(self._open, tables=tables)

    def _open(self, log_dir: Path, tables: Selections) -> list[VllmServer]:
        """Engines of one server, each with its variant."""
        port, name = free_port(), f"harness-{secrets.token_hex(4)}"
        own = self._engine.model_dump(include=set(ClientOptions.model_fields))
        asked = OpenAIEngine(kind="openai", url=f"http://127.0.0.1:{port}/v1", served_model=name, **own)
        started_s = time.monotonic()
        log_dir.mkdir(exist_ok=True)
        variables = self._variables(tables.variables(log_dir))
        plugin = plugin_arguments(variables)
        process = ServerProcess(self._command(port, name, plugin), variables, log_dir / LOG)
        try:
            process.wait_until_ready(lambda: _is_ready(Client(asked)), self._engine.start_limit_s)
            if not process.owns_port(port):
                raise UnavailableError(f"another process answers on port {port}", "run again: it took the port first")
            dtype, load_s = self._engine.held_dtype(self._model.spec.dtype), time.monotonic() - started_s
            limit_s = self._engine.start_limit_s if has_audit(variables) else None
            collect = partial(_collect, Client(asked), process) if plugin else None
            return [
                VllmServer(process, asked, self._model, dtype, load_s, variant, limit_s, self._probed.notes)
                for variant in tables.variants(variables, collect, self._engine)
            ]
        except BaseException:
            process.stop()
            raise

    def _command(self, port: int, name: str, audit: Mapping[str, JsonValue]) -> list[str]:
        given: dict[str, JsonValue] = {"model": str(self._folder), "host": "127.0.0.1", "port": port}
        given["served_model_name"] = name
        if not (self._folder / "tokenizer.json").is_file():
            given["skip_tokenizer_init"] = True  # prompts and answers are ids then
        arguments = given | dict(audit) | self._engine.arguments(self._model.spec.dtype)
        return [self._engine.python or sys.executable, "-m", MODULE, *command_line(arguments)]

    def _variables(self, plugin: dict[str, str]) -> dict[str, str]:
        """The shell's key would lock us out of a server that no one else asks."""
        ours = our_variables(self._engine.world_size) | {"VLLM_SERVER_DEV_MODE": "1"}
        inherited = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
        return ours | inherited | plugin | self._engine.environment

    def close(self) -> None:
        self._probed.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def command_line(arguments: dict[str, JsonValue]) -> list[str]:
    """EngineArgs' names and values as vLLM's command takes them."""
    words: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            words += [f"--{option}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return words


def _collect(client: Client, process: ServerProcess) -> None:
    """A server that is gone has left what it collected last, on a CPU all. MeasurementError for one that is there and
    does not answer: its counters are old."""
    try:
        client.ask("/collective_rpc", {"method": COLLECT}, True, COLLECT_LIMIT_S)
    except RequestFailed as fault:
        with suppress(UnavailableError):
            process.check_alive(DYING_S)
            raise MeasurementError(
                f"the server does not hand over its counters: {fault.what}", "see its log; run again"
            ) from fault


def _is_ready(client: Client) -> bool:
    try:
        client.check_health()
    except RequestFailed:
        return False
    return True


def _plain(value: Any) -> str | int | float | bool | None:
    """torch.bfloat16 -> bfloat16."""
    return value if isinstance(value, bool | int | float) or value is None else str(value).removeprefix("torch.")
