"""Options that several commands share, each defined once."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")
MAX_ECHO = 60
OPTIONS = {"batches": "--batch", "backends": "--backend", "min_blocks": "--blocks"}
"""Of configuration keys whose options have another name."""


class Format(str, Enum):
    """How a result is printed; with anything but `table`, stdout holds only that."""

    table = "table"
    md = "md"
    csv = "csv"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="table, md, csv or json.")]
RunsDirOption = Annotated[
    Path | None, typer.Option("--runs-dir", help="Where runs are kept [HARNESS_RUNS_DIR, else ./runs].")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override one key: --set workload.repeats=3 (repeatable).")
]


def shortened(text: str) -> str:
    """What a user wrote, as far as a line has room for it."""
    return text if len(text) <= MAX_ECHO else f"{text[:MAX_ECHO]}..."


def validated(model: type[Model], settings: dict[str, Any]) -> Model:
    """Options as a configuration; ConfigError, which names the option, where one is out of its bounds."""
    from pydantic import ValidationError

    from harness.errors import ConfigError

    try:
        return model.model_validate(settings)
    except ValidationError as fault:
        error = fault.errors()[0]
        message = error["msg"].removeprefix("Value error, ")
        if error["loc"]:
            field = str(error["loc"][0])
            option = OPTIONS.get(field) or f"--{field.replace('_', '-')}"
            message = f"{option} {shortened(str(error['input']))!r}: {message}"
        raise ConfigError(message, "see --help for what the options take") from None


def tell(line: str) -> None:
    """Progress: on stderr, and only when somebody is looking."""
    import sys

    if sys.stderr.isatty():
        typer.echo(line, err=True)


def tell_finished(line: str) -> None:
    """A part of minutes of work that is done: on stderr where no terminal shows what is going on, as in a job's log."""
    import sys

    if not sys.stderr.isatty():
        typer.echo(line, err=True)
