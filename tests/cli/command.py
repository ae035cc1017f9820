"""The command through typer's runner: its exit code, and no traceback for any fault of the user's."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from harness.cli.main import app


def harness(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def json_of(*arguments: object, code: int = 0) -> Any:
    return json.loads(harness(*arguments, "--format", "json", code=code).stdout)
