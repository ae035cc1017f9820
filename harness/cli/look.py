"""`harness schema`: what may stand in a file."""

from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("schema")(schema)


def schema(name: Annotated[str, typer.Argument(help="run, record, event or device.")]) -> None:
    """Print the JSON schema of a file the harness reads or writes; the descriptions are the documentation."""
    import json

    from harness.report.schemas import json_schema

    typer.echo(json.dumps(json_schema(name), indent=2, ensure_ascii=False))
