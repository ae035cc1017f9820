"""JSON schemas of the files that the harness reads and writes."""

from typing import Any

from pydantic import TypeAdapter

from harness.errors import ConfigError
from harness.specs.ab import AB_EVENT, AbRecord
from harness.specs.ab_run import AbRequestEvent, AbRunRecord
from harness.specs.device import DeviceSpec
from harness.specs.event import EVENT
from harness.specs.kernel_classes import KernelRules
from harness.specs.profile import TraceProfile
from harness.specs.record import RunRecord
from harness.specs.run import RunConfig
from harness.specs.selection import SelectionTable

_SCHEMAS: dict[str, TypeAdapter[Any]] = {
    "run": TypeAdapter(RunConfig),
    "record": TypeAdapter(RunRecord),
    "event": EVENT,
    "ab-record": TypeAdapter(AbRecord),
    "ab-event": AB_EVENT,
    "ab-run-record": TypeAdapter(AbRunRecord),
    "ab-request-event": TypeAdapter(AbRequestEvent),
    "device": TypeAdapter(DeviceSpec),
    "selection": TypeAdapter(SelectionTable),
    "kernel-classes": TypeAdapter(KernelRules),
    "profile": TypeAdapter(TraceProfile),
}


def json_schema(name: str) -> dict[str, Any]:
    """The schema called `name`; unknown names list the known."""
    if name not in _SCHEMAS:
        raise ConfigError(f"no schema is called {name!r}", f"known: {', '.join(_SCHEMAS)}")
    return _SCHEMAS[name].json_schema()
