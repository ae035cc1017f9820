"""Data files are found in a checkout, in a wheel, and where users keep their own; the user's come first."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness import resources
from harness.errors import ConfigError

ROOT = Path(resources.__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, as pip would lay it down."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(out / "site")
    return out / "site"


def run(code: str, site: Path, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=cwd
    )
    return done.stdout.strip()


def test_a_checkout_uses_its_own_folders() -> None:
    """Also after an editable install, which leaves a stale copy of a wheel's data in site-packages."""
    assert resources.kernels_dir() == ROOT / "kernels"
    assert ROOT / "configs" / "devices" in resources.config_folders("devices")


def test_a_wheel_carries_kernels_and_configs(wheel: Path, tmp_path: Path) -> None:
    code = (
        "from harness.resources import kernels_dir, find_config\nprint(kernels_dir(), find_config('devices', 'h100'))"
    )
    kernels, device = run(code, wheel, tmp_path).split()
    assert Path(kernels) == wheel / "harness" / "_kernels"
    assert Path(device) == wheel / "harness" / "_configs" / "devices" / "h100.yaml"
    assert (wheel / "harness" / "_kernels" / "gemv" / "cpu.cpp").is_file()
    assert not (wheel / "kernels").exists(), "a top-level `kernels` would shadow Hugging Face's package"


def test_the_wheels_command_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['harness', 'plan', 'qwen3-0.6b', '--device', 'h100', '--format', 'json']\n"
        "from harness.cli.main import main\nmain()"
    )
    assert json.loads(run(code, wheel, tmp_path))["weight_read_bytes"] == 1_192_099_840


def test_users_files_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    ours = resources.find_config("devices", "h100")
    home = tmp_path / "home" / "llm-decode-harness" / "devices" / "h100.yaml"
    here = tmp_path / "configs" / "devices" / "h100.yaml"
    for theirs in (home, here):
        theirs.parent.mkdir(parents=True)
        theirs.write_text("")
        assert resources.find_config("devices", "h100") == theirs != ours
    assert resources.config_names("devices").count("h100") == 1


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ConfigError, match="h100") as fault:
        resources.find_config("devices", "no-such")
    assert "no device is called 'no-such'" in fault.value.what
    with pytest.raises(ConfigError, match=r"qwen3-0\.6b"):
        resources.find_config("models", "no-such", "{name}/config.json")
