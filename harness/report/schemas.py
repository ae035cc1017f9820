"""JSON schemas of the files that the harness reads and writes."""

from typing import Any

from pydantic import BaseModel

from harness.errors import ConfigError
from harness.specs.device import DeviceSpec
from harness.specs.event import EVENT
from harness.specs.record import RunRecord
from harness.specs.run import RunConfig

_MODELS: dict[str, type[BaseModel]] = {"run": RunConfig, "record": RunRecord, "device": DeviceSpec}


def json_schema(name: str) -> dict[str, Any]:
    """The schema called `name`; unknown names list the known."""
    if name == "event":
        return EVENT.json_schema()
    if name not in _MODELS:
        raise ConfigError(f"no schema is called {name!r}", f"known: {', '.join([*_MODELS, 'event'])}")
    return _MODELS[name].model_json_schema()
