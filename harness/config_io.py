"""YAML in, validated frozen data out; every fault names file, line, key, what was found and what is allowed.

Precedence: a model's defaults, then the file, then `--set key=value` (dots go down: `workload.repeats=3`).
"""

import contextlib
import difflib
import os
import stat
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from harness.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[int | str, ...]
MAX_BYTES = 4 << 20
"""Of a YAML file: a selection table of 7000 problems has so much, and is read in half a minute."""


class _Loader(yaml.SafeLoader):
    """Without aliases: a few lines of them stand for more data than any memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"an alias (*{event.anchor}); write out what it stands for", event.start_mark
            )
        return super().compose_node(parent, index)


def load_yaml_model(path: Path, model: type[Model], overrides: Sequence[str] = ()) -> Model:
    """Read one YAML file as `model`. Raises ConfigError; nothing else for any content of the file."""
    root, data = _read(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {type(data).__name__}, not keys with values", "write `key: value` lines")
    set_from: dict[Location, str] = {}
    for override in overrides:
        set_from[_apply(data, override)] = override
    try:
        return model.model_validate(data)
    except ValidationError as fault:
        raise _explain(fault, path, root, data, model, set_from) from None


def replace_file(path: Path, text: str) -> None:
    """Write a file as a whole: beside it first, then renamed. ConfigError where it can't be; the old one then stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(text.encode())
        temporary.replace(path)
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}", "free some space, or make the folder writable") from None
    finally:
        with contextlib.suppress(OSError):  # what could not be made can't be removed either
            temporary.unlink(missing_ok=True)


def _read(path: Path) -> tuple[yaml.Node | None, Any]:
    """The file's node tree, which knows lines, and its data; refuses what is not YAML, and a key that stands twice."""
    try:
        text = _text(path)
        root = yaml.compose(text, Loader=_Loader)
        _refuse_duplicates(root, path)
        return root, {} if root is None else yaml.load(text, Loader=_Loader)
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}", "give a file that can be read") from None
    except yaml.MarkedYAMLError as fault:
        line = fault.problem_mark.line + 1 if fault.problem_mark else 1
        raise ConfigError(
            f"{path}:{line}: not valid YAML: {fault.problem}", "mend the line, or the one before"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as fault:  # ValueError: bytes that are no text, a 13th month
        reason = str(fault).partition("\n")[0]
        raise ConfigError(
            f"{path}: not valid YAML: {reason}", "save it as UTF-8 text, and mend what is named"
        ) from None


def _text(path: Path) -> bytes:
    """Of a file that has an end: a device or a pipe may be read for ever, and so may what is longer than any of ours.
    OSError where it can't be read."""
    if not stat.S_ISREG((found := path.stat()).st_mode) and not path.is_dir():
        raise ConfigError(f"{path}: not a file, but a device or a pipe", "give a file")
    if found.st_size > MAX_BYTES:
        raise ConfigError(
            f"{path}: {found.st_size:,} B are more than {MAX_BYTES:,}, which no file of the harness has",
            "give the file that was meant",
        )
    return path.read_bytes()


def _refuse_duplicates(node: yaml.Node | None, path: Path) -> None:
    """YAML parsers keep the last of two equal keys without a word: a run would not be what its file says."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicates(item, path)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: a key must be a word", "write `key: value` lines")
        if key.value in seen:
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: key {key.value!r} stands twice", "keep one of them")
        seen.add(key.value)
        _refuse_duplicates(value, path)


def _apply(data: dict[str, Any], override: str) -> Location:
    """Put one `a.b=value` into the data, value read as YAML; returns its location."""
    key, equals, text = override.partition("=")
    keys = tuple(key.split("."))
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}: not of the form key=value", "write for example workload.repeats=3")
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"--set {override}: the value is not valid YAML", "quote it, or mend it") from None
    place = data
    for part in keys[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {override}: {part!r} holds a value, not keys", "set that key as a whole")
    place[keys[-1]] = value
    return keys


def _explain(
    fault: ValidationError,
    path: Path,
    root: yaml.Node | None,
    data: dict[str, Any],
    model: type[BaseModel],
    set_from: dict[Location, str],
) -> ConfigError:
    """The first of a validation's faults, in the words and lines of the user's file."""
    errors = fault.errors()
    error = errors[0]
    location: Location = error["loc"]
    keys = _keys(data, location)
    line = _line(root, keys)
    override = next((text for place, text in set_from.items() if _one_in_other(place, keys)), None)
    where = f"--set {override}" if override else f"{path}:{line}"
    key = ".".join(str(part) for part in keys)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    allowed = sorted(_fields_at(model, location[:-1]))
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(location[-1]), allowed, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return ConfigError(f"{where}: unknown key {key!r}{more}", f"{hint}allowed here: {', '.join(allowed)}")
    if error["type"] == "missing":
        missing = str(location[-1])
        return ConfigError(f"{where}: key {key or missing!r} is missing{more}", f"add `{missing}:` there")
    found = "" if isinstance(error["input"], dict) else f", found {error['input']!r}"
    message = error["msg"].removeprefix("Value error, ")
    return ConfigError(f"{where}: {key or 'the file'}: {message}{found}{more}", "`harness schema` describes every key")


def _keys(data: Any, location: Location) -> Location:
    """The location in the user's own keys: it also names the variant of a union (`engine`, `native`, `weights`)."""
    keys: list[int | str] = []
    for depth, part in enumerate(location):
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            if depth < len(location) - 1:
                continue
        keys.append(part)
    return tuple(keys)


def _line(root: yaml.Node | None, keys: Location) -> int:
    """Line of the deepest node on the way."""
    node, line = root, 1
    for part in keys:
        step = _child(node, part)
        if step is None:
            break
        line, node = step
    return line


def _child(node: yaml.Node | None, part: int | str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None


def _fields_at(model: type[BaseModel], location: Location) -> set[str]:
    """Names of the fields that may stand at a location."""
    models: list[type[BaseModel]] = [model]
    for part in location:
        if any(part in m.model_fields for m in models):
            models = [
                inner
                for m in models
                if part in m.model_fields
                for inner in _models_in(m.model_fields[str(part)].annotation)
            ]
        else:  # the name of a union's variant: the one whose discriminator has that value
            models = [m for m in models if part in _discriminator_values(m)] or models
    return {name for m in models for name in m.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, tuple, dict, list):
        return [inner for argument in get_args(annotation) for inner in _models_in(argument)]
    return []


def _discriminator_values(model: type[BaseModel]) -> set[Any]:
    return {value for field in model.model_fields.values() for value in get_args(field.annotation)}


def _one_in_other(a: Location, b: Location) -> bool:
    """Whether one location lies inside the other: a fault at `a` may be of what an override put at `a.b.c`."""
    return bool(b) and all(x == y for x, y in zip(a, b, strict=False))
