"""The README's claims: its backend example runs, its commands exist, and both languages say the same."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import harness
from harness.cli.main import app

ROOT = Path(harness.__file__).parent.parent
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]


@pytest.mark.torch
@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_example_backend_is_right(readme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from harness.backends.base import Executor
    from harness.backends.check import exact_product, first_fault
    from harness.backends.registry import linear_backends
    from harness.devices.cpu import detect_cpu
    from harness.specs.problem import LinearProblem

    linear_backends.all()
    monkeypatch.setattr(linear_backends, "_backends", dict(linear_backends._backends))
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    exec(code, {})
    problem, device = LinearProblem(m=2, n=33, k=17, dtype="F32"), detect_cpu()
    backend = linear_backends.get("mine")(Executor(device))
    assert backend.supports(problem, device).ok
    x, weight, out = torch.randn(2, 17), torch.randn(33, 17), torch.full((2, 33), torch.nan)
    packed = backend.prepare(weight, None, problem)
    backend.bind(x, packed, out)()
    assert first_fault(out, exact_product(x, weight, None)) == ""
    assert backend.read_bytes(packed, 2) == 33 * 17 * 4


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_commands_exist(readme: Path) -> None:
    named = set(re.findall(r"`harness ([a-z]+)", readme.read_text()))
    assert {"bench", "probe", "ab", "plan", "runs", "doctor"} <= named
    help_text = CliRunner().invoke(app, ["--help"]).stdout
    assert all(f" {command} " in help_text for command in named)


def test_both_languages_show_the_same_output_and_targets() -> None:
    english, chinese = (readme.read_text() for readme in READMES)
    blocks = [re.findall(r"```text\n(.*?)```", text, re.DOTALL) for text in (english, chinese)]
    assert blocks[0] == blocks[1] != []
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z]+)", english)) | set(re.findall(r"make ([a-z]+)", chinese)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_plan_is_what_the_command_prints() -> None:
    (shown,) = re.findall(r"```text\n\$ harness (plan .*?)```", READMES[0].read_text(), re.DOTALL)
    command, _, expected = shown.partition("\n")
    printed = CliRunner().invoke(app, command.split()).stdout
    assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines()
