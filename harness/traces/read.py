"""Any known profiler's file, told by what is in it, not by its name."""

import gzip
import zlib
from codecs import BOM_UTF8
from pathlib import Path

from harness.errors import ConfigError
from harness.specs.trace import Trace
from harness.traces.chrome import AGAIN, KNOWN, parse
from harness.traces.hipprof import is_of_hipprof, is_statistics, read_hipprof, read_statistics
from harness.traces.torch_profiler import is_of_torch, read_torch


def read_trace(path: Path) -> Trace:
    """Raises ConfigError for a file that can't be read, is damaged, or is of no known format."""
    content = _content(path)
    if content.lstrip()[:1] in (b"{", b"["):
        data = parse(path, content)
        if is_of_hipprof(data):
            return read_hipprof(path, data)
        if is_of_torch(data):
            return read_torch(path, data)
        raise ConfigError(f"{path}: a Chrome trace of no known profiler", KNOWN)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: neither JSON nor CSV", KNOWN) from None
    if is_statistics(text.partition("\n")[0]):
        return read_statistics(path, text)
    raise ConfigError(f"{path}: {'empty' if not text.strip() else 'no known trace format'}", KNOWN)


def _content(path: Path) -> bytes:
    """What the file holds, unpacked, without the mark that Windows' programs put in front."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        return content.removeprefix(BOM_UTF8)
    except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
        raise ConfigError(f"{path}: damaged gzip: {fault}", AGAIN) from None
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}", "give a profiler's file") from None
