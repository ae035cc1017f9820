"""One field of a config.json at a time: there and usable, or refused by its name with what it should be."""

from collections.abc import Mapping
from typing import Any

from harness.errors import ConfigError
from harness.specs.tensor import CONFIG_DTYPES

MAX_NUMBER = 1e30


class Fields:
    """A config.json's language model. `source` is named in errors."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self._config, self.source = config, source

    def fault(self, what: str, mend: str) -> ConfigError:
        return ConfigError(f"{self.source}: {what[:300]}", mend)

    def get(self, key: str, default: Any = None) -> Any:
        return self._config.get(key, default)

    def count(self, key: str, least: int = 1) -> int:
        """A whole number."""
        value = self._config.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            found = "is missing" if value is None else f"is {value!r}"
            family = self._config.get("model_type")
            raise self.fault(f"{key} {found}", f"it must be a whole number of at least {least} for {family}")
        return value

    def count_or(self, key: str, default: int, least: int = 1) -> int:
        """A whole number; null or absent means `default`."""
        return default if self._config.get(key) is None else self.count(key, least)

    def number(self, key: str) -> float:
        """A finite number above 0."""
        value = self._config.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_NUMBER:
            found = "is missing" if value is None else f"is {value!r}"
            raise self.fault(f"{key} {found}", "it must be a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise self.fault(f"{key} is {value!r}", "it must be true or false")
        return value

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, 0 included; null or absent is empty."""
        value = self._config.get(key) or []
        if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            raise self.fault(f"{key} is {value!r}", "it must be a list of whole numbers")
        return tuple(value)

    def only(self, key: str, allowed: tuple[Any, ...], mend: str) -> None:
        """Refuse a value that changes bytes or arithmetic in a way that is not modelled."""
        value = self._config.get(key)
        if value not in allowed:
            raise self.fault(f"{key} is {value!r}", mend)

    def dtype(self, *keys: str, default: str | None = None) -> str:
        """The safetensors name of a type, from the first of the keys that is there."""
        name = next((self._config[key] for key in keys if key in self._config), default)
        if not isinstance(name, str) or name not in CONFIG_DTYPES:
            found = "is missing" if name is None else f"is {name!r}"
            raise self.fault(f"{' or '.join(keys)} {found}", f"allowed: {', '.join(CONFIG_DTYPES)}")
        return CONFIG_DTYPES[name]
