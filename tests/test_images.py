"""The images, as far as their sources tell; `make images` builds them and looks inside."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import harness

ROOT = Path(harness.__file__).parent.parent
DOCKERFILES = [ROOT / "Dockerfile.cuda", ROOT / "Dockerfile.rocm"]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
INSTALL = ROOT / "scripts/install_in_image.sh"
KEPT_VERSIONS = ROOT / "scripts/kept_versions.py"
Instructions = list[tuple[str, str]]


def one_line_each(text: str) -> str:
    """Continued lines joined."""
    return re.sub(r"\s*\\\n\s*", " ", text)


def instructions(dockerfile: Path) -> Instructions:
    """(instruction, its text) in order, without comments."""
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.partition(" ") for line in one_line_each("\n".join(lines)).splitlines()]
    return [(instruction, text) for instruction, _, text in pairs]


def values(dockerfile: Path, instruction: str) -> list[str]:
    return [text for name, text in instructions(dockerfile) if name == instruction]


def argument_names(dockerfile: Path) -> set[str]:
    return {text.partition("=")[0] for text in values(dockerfile, "ARG")}


def docker_lines(readme: Path, verb: str) -> list[str]:
    return re.findall(rf"^    (docker {verb} .*)", one_line_each(readme.read_text()), re.MULTILINE)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_the_image_runs_the_harness_as_no_root(dockerfile: Path) -> None:
    assert values(dockerfile, "USER")[-1] == "harness"
    assert values(dockerfile, "ENTRYPOINT") == ['["harness"]']
    assert values(dockerfile, "VOLUME") == ["/runs"]
    assert "HARNESS_RUNS_DIR=/runs" in values(dockerfile, "ENV")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_the_base_is_an_argument_and_its_versions_are_checked_last(dockerfile: Path) -> None:
    steps = instructions(dockerfile)
    assert [name for name, _ in steps[:2]] == ["ARG", "FROM"]
    assert steps[0][1].startswith("BASE=") and steps[1][1] == "${BASE}"
    install, check = values(dockerfile, "RUN")
    assert install.endswith("/scripts/install_in_image.sh")
    assert "/scripts/kept_versions.py" in check
    # The check sees what the user sees only after the change of users.
    assert steps.index(("RUN", install)) < steps.index(("USER", "harness")) < steps.index(("RUN", check))


@pytest.mark.parametrize("path", [*DOCKERFILES, INSTALL], ids=lambda path: path.name)
def test_no_architecture_is_baked_in(path: Path) -> None:
    assert "HSA_OVERRIDE" not in path.read_text()


def test_the_images_differ_in_their_base_alone() -> None:
    cuda, rocm = (instructions(dockerfile) for dockerfile in DOCKERFILES)
    assert cuda[0] != rocm[0]
    assert cuda[1:] == rocm[1:]


def test_what_the_build_copies_is_there_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert lines[0] == "*"
    assert {"pyproject.toml", "README.md", "harness", "kernels", "configs"} < kept
    used = {f"scripts/{name}" for path in DOCKERFILES for name in re.findall(r"/scripts/(\w+\.\w+)", path.read_text())}
    assert used == {path for path in kept if path.startswith("scripts/")}
    assert all((ROOT / path).exists() for path in kept)


def test_the_installing_script_takes_the_arguments_as_they_are_named() -> None:
    taken = set(re.findall(r"\b(?:HARNESS_UID|[A-Z]+_GID)\b", INSTALL.read_text()))
    assert taken == {"HARNESS_UID", "VIDEO_GID", "RENDER_GID"}
    assert all(taken < argument_names(dockerfile) for dockerfile in DOCKERFILES)


@pytest.mark.parametrize("path", [*READMES, ROOT / "docs/containers.md"], ids=lambda path: path.name)
def test_documents_name_arguments_that_the_dockerfiles_have(path: Path) -> None:
    given = set(re.findall(r"--build-arg (\w+)=", path.read_text()))
    assert given and given <= argument_names(DOCKERFILES[0])


def test_the_table_of_arguments_is_complete_and_has_their_defaults() -> None:
    table = (ROOT / "docs/containers.md").read_text().partition("## Build arguments")[2].partition("\nBases")[0]
    for argument in values(DOCKERFILES[0], "ARG"):
        name, _, default = argument.partition("=")
        (row,) = (line for line in table.splitlines() if line.startswith("| `") and f"`{name}`" in line)
        assert name == "BASE" or default in row


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_what_a_readme_runs_is_what_it_builds(readme: Path) -> None:
    builds, runs = docker_lines(readme, "build"), docker_lines(readme, "run")
    (volume,) = values(DOCKERFILES[0], "VOLUME")
    assert len(builds) == len(runs) == 3
    for built, run in zip(builds, runs, strict=True):
        (file,), (tag,) = re.findall(r"-f (\S+)", built), re.findall(r"-t (\S+)", built)
        assert ROOT / file in DOCKERFILES
        assert f"-v harness-runs:{volume} {tag} doctor" in run
        assert "HSA_OVERRIDE" not in run
    cuda, rocm, dcu = runs
    assert "--gpus all" in cuda
    for run in (rocm, dcu):
        assert {"--device=/dev/kfd", "--device=/dev/dri", "--group-add"} < set(run.split())
    assert "-v /opt/hyhal:/opt/hyhal:ro" in dcu


def test_both_readmes_have_the_same_lines() -> None:
    english, chinese = ([*docker_lines(readme, "build"), *docker_lines(readme, "run")] for readme in READMES)
    assert english == chinese


BASE = "numpy==1.26.4\npydantic==2.11.10\ntorch==2.10.0+das.opt1\nvllm==0.18.1\n"


@pytest.mark.parametrize(
    ("after", "code", "said"),
    [
        (BASE + "llm-decode-harness==0.1.0\n", 0, "all 4 packages"),
        (BASE.replace("2.11.10", "2.12.0"), 1, "changed: pydantic 2.11.10 -> 2.12.0\n"),
        (BASE.replace("+das.opt1", ""), 1, "changed: torch 2.10.0+das.opt1 -> 2.10.0\n"),
        (
            BASE.replace("vllm==0.18.1\n", "").replace("1.26.4", "2.3.0"),
            1,
            "numpy 1.26.4 -> 2.3.0, vllm 0.18.1 -> gone\n",
        ),
        ("", 1, "vllm 0.18.1 -> gone\n"),
    ],
    ids=["kept", "upgraded", "other-build", "two", "unreadable"],
)
def test_changed_versions_are_named(tmp_path: Path, after: str, code: int, said: str) -> None:
    done = kept_versions(tmp_path, BASE, after)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert ("mend:" in done.stderr) == (code != 0)


def test_an_empty_list_is_no_proof(tmp_path: Path) -> None:
    done = kept_versions(tmp_path, "\n", BASE)
    assert done.returncode == 2
    assert "lists no package" in done.stderr


def kept_versions(folder: Path, before: str, after: str) -> subprocess.CompletedProcess[str]:
    (folder / "before").write_text(before)
    (folder / "after").write_text(after)
    command = [sys.executable, KEPT_VERSIONS, folder / "before", folder / "after"]
    return subprocess.run(command, capture_output=True, text=True)


def bare_machine(folder: Path, script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script where nothing but `dirname` is installed."""
    bash, dirname = shutil.which("bash"), shutil.which("dirname")
    assert bash and dirname
    (folder / "dirname").symlink_to(dirname)
    environment = {"PATH": str(folder), **variables}
    return subprocess.run([bash, script], capture_output=True, text=True, env=environment)


def test_the_check_says_what_it_needs(tmp_path: Path) -> None:
    done = bare_machine(tmp_path, ROOT / "scripts/image_check.sh")
    what, mend = done.stderr.splitlines()
    rights = "" if os.geteuid() == 0 else "root's rights, "
    assert what == f"error: images can't be built here without {rights}buildah, debootstrap, Python 3.11 with pip"
    assert mend.startswith("mend:  as root: apt-get install buildah debootstrap")
    assert done.returncode == 3


def test_the_user_of_the_image_can_not_be_made_root(tmp_path: Path) -> None:
    done = bare_machine(tmp_path, INSTALL, HARNESS_UID="0")
    assert done.returncode == 2
    assert "would make root" in done.stderr and "mend:" in done.stderr
