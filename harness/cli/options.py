"""Options that several commands share, each defined once."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


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


def tell(line: str) -> None:
    """Progress: on stderr, and only when somebody is looking."""
    import sys

    if sys.stderr.isatty():
        typer.echo(line, err=True)
