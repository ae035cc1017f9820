"""TunableOp's CSV files, as torch's versions write them and as people damage them."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.tunableop import (
    Result,
    differences,
    mend_line_ends,
    read_tunings,
    results_path,
    write_tunings,
)

OLD = {"PT_VERSION": "2.2.0", "ROCM_VERSION": "6.0.0.0-12969-1544e39", "ROCBLAS_VERSION": "4.0.0-72e57364-dirty"}
NEW = {"PT_VERSION": "2.9.1", "HIP_VERSION": "702", "HIPBLASLT_VERSION": "100201-5b515cf1bc",
       "GCN_ARCH_NAME": "gfx942:sramecc+:xnack-", "ROCBLAS_VERSION": "5.2.0.5b515cf1bc"}  # fmt: skip
GEMM = "GemmTunableOp_BFloat16_TN"
STRIDED = "tn_34816_1_5120_ld_5120_5120_34816"
BLAS = "BLAS_PARAMS: - { function: matmul, M: 34816, N: 1, K: 5120 }"


def lines(validators: dict[str, str], *results: str, end: str = "\n") -> str:
    return end.join([*(f"Validator,{name},{value}" for name, value in validators.items()), *results, ""])


def written(folder: Path, text: str) -> Path:
    path = folder / "tunableop_results0.csv"
    path.write_bytes(text.encode())
    return path


LAYOUTS = {
    "no time, no strides": (f"{GEMM},tn_4_1_8,1219", Result(GEMM, "tn_4_1_8", "1219")),
    "time": (f"{GEMM},tn_4_1_8,Gemm_Rocblas_7,0.033", Result(GEMM, "tn_4_1_8", "Gemm_Rocblas_7", 3.3e-5)),
    "strides": (f"{GEMM},{STRIDED},Gemm_Hipblaslt_5,0.25", Result(GEMM, STRIDED, "Gemm_Hipblaslt_5", 2.5e-4)),
    "BLAS signature": (f"{GEMM},{STRIDED},Default,0.25,{BLAS}", Result(GEMM, STRIDED, "Default", 2.5e-4)),
    "no kernel timed": (f"{GEMM},{STRIDED},Default,inf", Result(GEMM, STRIDED, "Default")),
    "time read from none": (f"{GEMM},{STRIDED},Default,0", Result(GEMM, STRIDED, "Default")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("validators", [OLD, NEW, {}], ids=["old", "new", "none"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_every_versions_layout_is_read(tmp_path: Path, layout: str, validators: dict[str, str], end: str) -> None:
    line, result = LAYOUTS[layout]
    tunings = read_tunings(written(tmp_path, lines(validators, line, end=end)))
    assert tunings.validators == validators  # unknown ones too, and without a carriage return
    assert tunings.results == (result,)
    assert tunings.has_crlf is (end == "\r\n")


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_holds_nothing(tmp_path: Path, text: str) -> None:
    """torch makes one before it has a result."""
    tunings = read_tunings(written(tmp_path, text))
    assert (tunings.validators, tunings.results, tunings.has_crlf) == ({}, (), False)


def test_of_lines_that_say_the_same_the_one_counts_that_torch_takes(tmp_path: Path) -> None:
    text = lines({"PT_VERSION": "2.4.0"}, f"{GEMM},tn_4_1_8,first,1", f"{GEMM},tn_4_1_8,second,1")
    tunings = read_tunings(written(tmp_path, text + lines({"PT_VERSION": "2.5.0"})))
    assert tunings.validators == {"PT_VERSION": "2.5.0"}
    assert [result.solution for result in tunings.results] == ["first"]


@pytest.mark.parametrize(
    "line",
    [
        "Validator,PT_VERSION", "Validator,,2.4.0", "Validator,PT_VERSION,2.4.0,more", GEMM, f"{GEMM},tn_4_1_8",
        f"{GEMM},,Default", f"{GEMM},tn_4_1_8,Default,soon", f"{GEMM},tn_4_1_8,Default,1,more", "<html>",
    ],
)  # fmt: skip
def test_a_malformed_line_is_named_with_its_number_and_what_is_allowed(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, lines(NEW, f"{GEMM},{STRIDED},Default,1", line))
    with pytest.raises(ConfigError) as caught:
        read_tunings(path)
    assert caught.value.what == f"{path}:{len(NEW) + 2}: found {line!r}"
    assert "allowed: Validator,NAME,VALUE and OPERATION,PARAMETERS,SOLUTION[,MILLISECONDS]" in caught.value.mend


def test_what_is_no_readable_text_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00V")
    with pytest.raises(ConfigError, match="is no text"):
        read_tunings(binary)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_tunings(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        read_tunings(tmp_path / "absent.csv")
    with pytest.raises(ConfigError, match=r"long\.csv:1: field larger than"):
        (tmp_path / "long.csv").write_text("x" * 200_000)
        read_tunings(tmp_path / "long.csv")


NAMES = st.text(string.ascii_lowercase + string.digits + "_:.+-<>\"'", min_size=1)
TIMES = st.one_of(st.none(), st.floats(1e-7, 10).map(lambda time: float(f"{time * 1e3:.6g}") / 1e3))
RESULTS = st.lists(st.builds(Result, NAMES, NAMES, NAMES, TIMES), unique_by=lambda one: (one.operation, one.parameters))


@given(validators=st.dictionaries(NAMES, NAMES), results=RESULTS)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, validators, results) -> None:
    path = tmp_path_factory.mktemp("tunings") / "new folder" / "results.csv"
    write_tunings(path, validators, results)
    tunings = read_tunings(path)
    assert (tunings.validators, list(tunings.results), tunings.has_crlf) == (validators, results, False)


def test_it_is_written_as_torch_writes_it_and_as_a_whole(tmp_path: Path) -> None:
    path = written(tmp_path, "what was here")
    strided = Result(GEMM, STRIDED, "Gemm_Hipblaslt_5", 6.53662e-5)
    write_tunings(path, NEW, [strided, Result(GEMM, "tn_4_1_8", "Default")])
    assert path.read_bytes().decode() == lines(
        NEW, f"{GEMM},{STRIDED},Gemm_Hipblaslt_5,0.0653662", f"{GEMM},tn_4_1_8,Default"
    )
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_what_cant_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a file"
    path.write_text("kept")
    with pytest.raises(ConfigError, match=r"a file/results\.csv"):
        write_tunings(path / "results.csv", NEW, [])
    assert path.read_text() == "kept"


def test_mending_changes_line_ends_alone(tmp_path: Path) -> None:
    content = (f"{GEMM},tn_4_1_8,1219", f"{GEMM},{STRIDED},Default,0.25,{BLAS}")
    path = written(tmp_path, lines(OLD, *content, end="\r\n"))
    mend_line_ends(path)
    assert path.read_bytes().decode() == lines(OLD, *content)


def test_differences_name_what_differs_is_missing_and_is_unknown_here() -> None:
    assert differences(NEW, dict(reversed(NEW.items()))) == []
    here = {"PT_VERSION": "2.9.1", "HIP_VERSION": "702", "ROCBLAS_VERSION": OLD["ROCBLAS_VERSION"]}
    assert differences(OLD, here) == [
        "PT_VERSION 2.2.0, here 2.9.1",
        "ROCM_VERSION 6.0.0.0-12969-1544e39, here none",
        "HIP_VERSION none, here 702",
    ]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (None, "tunableop_results1.csv"), ("", "tunableop_results1.csv"), ("a/b.c.csv", "a/b.c1.csv"),
        ("plain", "plain1"), ("/x/skinny%d.csv", "/x/skinny1.csv"), ("%d/%d.csv", "1/%d.csv"),
    ],
)  # fmt: skip
def test_a_devices_file_is_the_one_that_torch_takes(name: str | None, path: str) -> None:
    variables = {} if name is None else {"PYTORCH_TUNABLEOP_FILENAME": name}
    assert results_path(variables, 1) == Path(path)
