"""A server that runs already, as an engine: asked over HTTP, timed at this end's socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

from harness.backends.base import OwnExecutor
from harness.client.connection import Exchange, clock_s
from harness.client.requests import Client, find_served_model, request_body, tokenize_body
from harness.client.server_url import ServerUrl
from harness.engines.base import Engine, Rig
from harness.errors import ConfigError, RequestFailed, UnavailableError
from harness.models import ResolvedModel
from harness.probe.base import Probe
from harness.specs.device import DeviceInfo
from harness.specs.engine import EngineReport, Evidence
from harness.specs.event import KernelReadEvent
from harness.specs.probe import ProbeReading
from harness.specs.request import Chunk, Request
from harness.specs.run import OpenAIEngine, ProbeConfig, RunConfig


class OpenAIServer(Engine):
    """Answers of a server, one request at a time."""

    can_pause: ClassVar[bool] = False
    can_skip_prompt: ClassVar[bool] = False

    def __init__(self, config: OpenAIEngine, model: ResolvedModel, notes: Sequence[str]) -> None:
        """notes: of the probe of its machine. Raises UnavailableError where no server answers, ConfigError where it has
        another model."""
        self._config, self._model, self._notes = config, model, notes
        self._client = Client(config)
        self._entry = find_served_model(self._client, config.served_model)
        self._served_model = str(self._entry["id"])
        self.takes_ids = config.api == "completions"
        self._resolved = self._resolve()
        self._exchange: Exchange | None = None
        self._body = b""

    def _resolve(self) -> dict[str, str | int | float | bool | None]:
        """What the server says of itself; not all tell their version."""
        found = {key: self._entry[key] for key in ("id", "root", "max_model_len", "owned_by") if self._entry.get(key)}
        with suppress(RequestFailed):
            found["version"] = self._client.ask("/version", at_root=True).get("version")
        return {key: value if isinstance(value, int) else str(value) for key, value in found.items()}

    def clock_s(self) -> float:
        return clock_s()

    def num_prompt_tokens(self, request: Request) -> int:
        """A text's by the server's own tokenizer and template. UnavailableError for a server that does not tell."""
        if request.prompts_ids is not None:
            return len(request.prompts_ids[0])
        try:
            found = self._client.ask(
                "/tokenize", tokenize_body(self._config, self._served_model, request), at_root=True
            )
            return int(found["count"])
        except (RequestFailed, KeyError, TypeError, ValueError) as fault:
            what = f"the server does not tell how many tokens a text is ({self._client.without_key(str(fault))})"
            raise UnavailableError(what, "give workload.input_tokens instead of prompts") from None

    def prepare(self, request: Request) -> float:
        self._close_exchange()
        if request.batch > 1:
            raise ConfigError("a server is asked for one request at a time", "leave the sweep over batch out")
        if request.prompt is None and not self.takes_ids:
            raise ConfigError("chat takes texts, not token ids", "give workload.prompts, or engine.api: completions")
        self._body = request_body(self._config, self._served_model, request)
        self._exchange = self._client.connect()
        return self._exchange.connect_s

    def generate(self, request: Request) -> Iterator[Chunk]:
        """Sends what was prepared, at once; then the chunks as they come."""
        if self._exchange is None:
            raise RuntimeError("generate without prepare")
        self._client.send(self._exchange, self._body)
        return self._chunks(self._exchange, request.max_output_tokens)

    def _chunks(self, exchange: Exchange, asked_tokens: int) -> Iterator[Chunk]:
        try:
            yield from self._client.chunks(exchange, asked_tokens)
        except RequestFailed as fault:
            raise RequestFailed(self._client.without_key(fault.what), fault.mend) from None
        finally:
            self._close_exchange()

    def kernel_reads(self, read_probe: Callable[[], ProbeReading]) -> Iterator[KernelReadEvent]:
        """None: its kernels run elsewhere."""
        return iter(())

    def explain(self, request: Request, num_steps: int) -> Evidence:
        """Nothing: no instrument reaches into a server."""
        return Evidence()

    def report(self) -> EngineReport:
        """dtype is the model's own: a server does not tell what it computes in."""
        return EngineReport(
            kind="openai", dtype=self._model.spec.dtype, resolved=self._resolved, notes=tuple(self._notes)
        )

    def close(self) -> None:
        self._close_exchange()

    def _close_exchange(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None


class OpenAIRig(Rig):
    """The server's machine, as far as it is this one."""

    def __init__(self, config: RunConfig, model: ResolvedModel) -> None:
        if not isinstance(config.engine, OpenAIEngine):
            raise ConfigError(f"engine.kind is {config.engine.kind!r}", "the openai rig takes `openai`")
        self._engine, self._model = config.engine, model
        self._probed = ProbedDevice(config.engine.device, config.probe)
        self.device = self._probed.device or DeviceInfo(kind="unknown", name=str(ServerUrl.parse(config.engine.url)))

    def open_probe(self) -> Probe | None:
        return self._probed.open_probe()

    def open_engine(self, log_dir: Path) -> OpenAIServer:
        return OpenAIServer(self._engine, self._model, self._probed.notes)

    def close(self) -> None:
        self._probed.close()


class ProbedDevice:
    """This machine's device that a server computes on: probed with threads, or a stream, of our own."""

    def __init__(self, name: Literal["none", "auto", "cpu", "cuda"], probe: ProbeConfig) -> None:
        self._probe, self._executor = probe, None if name == "none" else _executor(name)
        self.notes: list[str] = []
        self.device = None if self._executor is None else self._executor.device

    def open_probe(self) -> Probe | None:
        if self._executor is None:
            return None
        from harness.engines.native.machine import open_probe

        return open_probe(self._probe, self._executor, self.notes.append)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()


def _executor(name: str) -> OwnExecutor:
    from harness.engines.native.machine import open_executor, torch_device  # torch, for the probe alone

    return open_executor(torch_device(name), None)
