"""What is here and what its lack means, on machines that lack it."""

from importlib import metadata

import pytest

from harness import doctor
from harness.doctor import Finding, examine, one_line
from harness.environment import read_environment


def found(name: str) -> Finding:
    return next(finding for finding in examine() if finding.name == name)


@pytest.mark.parametrize(
    ("setting", "offered"),
    [
        ("[always] madvise never", True),
        ("always [madvise] never", True),
        ("always madvise [never]", False),
        (None, False),
    ],
)
def test_huge_pages_are_offered_unless_never(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, offered: bool
) -> None:
    environment = read_environment().model_copy(update={"transparent_huge_pages": setting})
    monkeypatch.setattr(doctor, "read_environment", lambda: environment)
    assert found("huge pages").ok is offered


def test_without_a_compiler_the_roof_is_weaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/absent/c++")
    compiler = found("compiler")
    assert (compiler.found, compiler.ok) == ("none", False)
    assert "weaker roof" in compiler.mend


def test_a_package_may_be_absent_or_of_no_known_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(metadata, "version", unknown)
    assert (found("torch").found, found("torch").ok) == ("installed, version not known", True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert (found("torch").found, found("torch").ok) == ("not installed", False)


def test_the_line_names_what_is_lacking_and_nothing_else() -> None:
    names = ("cpu", "memory", "compiler", "torch")
    whole = [Finding(name, f"{name} found", True) for name in names]
    assert one_line(whole).endswith("; nothing missing")
    assert one_line([*whole[:2], Finding("compiler", "none", False), whole[3]]).endswith("; lacking: compiler")
