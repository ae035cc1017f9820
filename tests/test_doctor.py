"""What is here and what its lack means, on machines that lack it."""

from importlib import metadata
from pathlib import Path

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


TUNED = "GemmTunableOp_BFloat16_TN,tn_16_1_8_ld_8_8_16,Gemm_Rocblas_9,0.1\n"
TUNINGS = {
    "good": ("Validator,PT_VERSION,2.9.1\nValidator,HIP_VERSION,702\n" + TUNED, True, "1 products"),
    "CRLF": (f"Validator,PT_VERSION,2.9.1\r\n{TUNED}", False, "CRLF line ends"),
    "other torch": (f"Validator,PT_VERSION,2.4.0\n{TUNED}", False, "PT_VERSION 2.4.0, here 2.9.1"),
    "no versions": (TUNED, False, "PT_VERSION none, here 2.9.1"),
    "malformed": (TUNED + "garbage\n", False, ":2: found 'garbage'"),
    "absent": (None, True, "is not there yet"),
}


@pytest.mark.parametrize("case", TUNINGS)
def test_a_file_of_tunableop_that_torch_would_ignore_is_told(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, ok, what = TUNINGS[case]
    path = tmp_path / "tuned0.csv"
    if text is not None:
        path.write_bytes(text.encode())
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", str(tmp_path / "tuned.csv"))
    monkeypatch.setattr(metadata, "version", lambda name: "2.9.1a0+rocm7.2")
    finding = found("TunableOp")
    assert finding.ok is ok and finding.found.startswith(str(path)) and what in finding.found
    assert ok or finding.mend


def test_without_a_torch_to_compare_with_a_files_versions_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    (tmp_path / "tuned0.csv").write_text(TUNINGS["good"][0] or "")
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", str(tmp_path / "tuned.csv"))
    monkeypatch.setattr(metadata, "version", absent)
    assert found("TunableOp").ok


@pytest.mark.parametrize("name", [None, ""])
def test_without_such_a_file_nothing_is_said(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_TUNABLEOP_FILENAME", raising=False)
    if name is not None:
        monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", name)
    assert "TunableOp" not in {finding.name for finding in examine()}


def test_the_line_names_what_is_lacking_and_nothing_else() -> None:
    names = ("cpu", "memory", "compiler", "torch")
    whole = [Finding(name, f"{name} found", True) for name in names]
    assert one_line(whole).endswith("; nothing missing")
    assert one_line([*whole[:2], Finding("compiler", "none", False), whole[3]]).endswith("; lacking: compiler")
