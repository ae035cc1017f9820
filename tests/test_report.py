"""What is told of devices, backends, schemas and this machine's memory."""

import json
from pathlib import Path

import pytest
import yaml

from harness.backends.base import Support
from harness.backends.registry import linear_backends
from harness.cpu_pool import physical_cores
from harness.errors import ConfigError, UnavailableError
from harness.report import backends as backends_report
from harness.report import probe as probe_report
from harness.report.backends import backend_rows
from harness.report.devices import device_rows
from harness.report.probe import probe_this_machine
from harness.report.schemas import json_schema
from harness.resources import find_config
from harness.specs.device import DeviceInfo
from harness.specs.run import ProbeConfig


def test_a_devices_published_and_measured_figures_stand_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's own file has them."""
    monkeypatch.chdir(tmp_path)
    spec = yaml.safe_load(find_config("devices", "a100").read_text())
    spec |= {"name": "mine", "read_probe_bytes_per_s": {"value": 1.7e12, "source": "measured here"}}
    (tmp_path / "configs" / "devices").mkdir(parents=True)
    (tmp_path / "configs" / "devices" / "mine.yaml").write_text(yaml.safe_dump(spec))
    rows = {row["device"]: row for row in device_rows()}
    assert (rows["mine"]["published"], rows["mine"]["measured read"]) == ("2,039.00 GB/s", "1,700.00 GB/s")
    assert rows["a100"]["measured read"] == "-"


@pytest.mark.torch
def test_backends_say_whether_they_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = linear_backends.get("torch-mv")
    refused, only = Support.no("absent", "install it"), {1: Support.no("one row", "use torch"), 512: Support.yes()}
    for by_rows, here in (
        ({1: Support.yes(), 512: Support.yes()}, "yes"),
        ({1: Support.yes(), 512: refused}, "steps only"),
        (only, "prompts only"),
        ({1: refused, 512: refused}, "no: absent"),
        ({1: only[1], 512: refused}, "no: one row; absent"),
    ):
        monkeypatch.setattr(backend, "supports", staticmethod(lambda problem, device, by=by_rows: by[problem.m]))
        rows = {(row["op"], row["backend"]): row for row in backend_rows()}
        assert rows["linear", "torch-mv"]["here"] == here


@pytest.mark.torch
def test_here_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    card = DeviceInfo(kind="cuda", name="a test's", arch="sm_90", wave_width=32)
    monkeypatch.setattr(backends_report, "gpus_here", lambda: {"sm_90": card})
    rows = {row["backend"]: row["here"] for row in backend_rows()}
    assert rows["torch"] == "yes" and "the device is cuda" in rows["cpu-gemv"]
    monkeypatch.setattr(backends_report, "gpus_here", dict)
    assert "the device is cpu" in {row["backend"]: row["here"] for row in backend_rows()}["gpu-gemv"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("run", "prefill_chunk"),
        ("record", "util_interval_method"),
        ("event", "num_prompt_tokens"),
        ("ab-record", "rotation_bytes"),
        ("ab-event", "num_calls"),
        ("device", "read_probe_bytes_per_s"),
        ("kernel-classes", "kernel_class"),
        ("profile", "longest_gaps"),
    ],
)
def test_a_schema_is_that_of_its_name(name: str, key: str) -> None:
    assert f'"{key}"' in json.dumps(json_schema(name))


@pytest.mark.compiler
def test_a_probe_has_as_many_threads_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ProbeConfig(buffer_bytes=1 << 20, survey_s=0.05, reading_s=0.001)
    monkeypatch.setattr(probe_report, "ProbeConfig", lambda: small)
    for threads in {1, min(2, len(physical_cores()))}:
        report = probe_this_machine("cpu", threads, lambda line: None)
        assert max(point.num_threads for point in report.thread_curve) <= threads
        assert report.num_threads <= threads


@pytest.mark.torch
def test_a_gpus_probe_is_surveyed_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch sees a card, `auto` is the card; its threads are nobody's to choose."""
    from harness.backends.base import Executor
    from harness.engines.native import machine

    card, done = DeviceInfo(kind="cuda", name="a test's", arch="sm_90"), []

    class Probe:
        def survey(self, working_set_bytes: int | None) -> str:
            done.append("survey")
            return "report"

        def close(self) -> None:
            done.append("close")

    monkeypatch.setattr(machine.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "open_executor", lambda device, threads: Executor(card, stream="stream"))
    monkeypatch.setattr(probe_report, "open_gpu_probe", lambda config, device, stream: (Probe(), device, stream)[0])
    assert probe_this_machine("auto", None, lambda line: None) == "report"
    assert done == ["survey", "close"]
    with pytest.raises(ConfigError, match="threads are a CPU's"):
        probe_this_machine("cuda", 2, lambda line: None)


@pytest.mark.torch
@pytest.mark.parametrize(("device", "fault"), [("tpu", ConfigError), ("cuda", UnavailableError)])
def test_a_device_that_is_none_or_not_here(
    device: str, fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(fault):
        probe_this_machine(device, None, lambda line: None)


def test_without_torch_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_report.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="torch is not installed"):
        probe_this_machine("cuda", None, lambda line: None)
