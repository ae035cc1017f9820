"""Scripts for scripted_server.py, and the server beside a test or a benchmark."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

SCRIPT = Path(__file__).with_name("scripted_server.py")
Piece = tuple[float, str]
LIMIT_S = 60.0


def event(body: dict[str, Any] | str) -> str:
    """One server-sent event, as latin-1 text for its UTF-8 bytes."""
    data = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return f"data: {data}\n\n".encode().decode("latin-1")


def token(text: str, ids: Sequence[int] | None = None, **more: Any) -> str:
    """A completion's chunk."""
    choice = {"index": 0, "text": text, "finish_reason": None} | ({} if ids is None else {"token_ids": list(ids)})
    return event({"id": "x", "object": "text_completion", "choices": [choice | more]})


def usage(prompt: int, output: int, cached: int | None = None) -> str:
    """What comes behind the answer."""
    body: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    if cached is not None:
        body["prompt_tokens_details"] = {"cached_tokens": cached}
    return event({"id": "x", "choices": [], "usage": body})


DONE = event("[DONE]")


def answer(times_s: Sequence[float], prompt: int = 8) -> dict[str, Any]:
    """One token behind each pause, then usage and end at once."""
    pieces: list[Piece] = [(after_s, token(f"{i} ", [i + 1])) for i, after_s in enumerate(times_s)]
    return {"pieces": [*pieces, (0.0, usage(prompt, len(times_s))), (0.0, DONE)]}


@dataclass
class Running:
    """A scripted server. What it says goes to a file: a pipe that nobody reads would make it wait."""

    said: IO[str]
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def told(self) -> dict[str, Any]:
        """What it wrote of its next completion."""
        return dict(json.loads(self.line()))

    def line(self) -> str:
        """Its next, when it is whole."""
        end_s, line = time.monotonic() + LIMIT_S, ""
        while not line.endswith("\n"):
            if time.monotonic() > end_s:
                raise TimeoutError("the scripted server says nothing")
            line += self.said.readline()
            if not line:
                time.sleep(0.002)
        return line


@contextmanager
def scripted_server(folder: Path, answers: Sequence[dict[str, Any]], **script: Any) -> Iterator[Running]:
    """In a process of its own until the block ends."""
    path, said = folder / "script.json", folder / "said.txt"
    path.write_text(json.dumps({"models": ["m"], "answers": list(answers)} | script))
    with said.open("w") as out:
        process = subprocess.Popen([sys.executable, str(SCRIPT), str(path)], stdout=out)
    try:
        with said.open() as reading:
            server = Running(reading)
            server.port = int(server.line())
            yield server
    finally:
        process.kill()
        process.wait()
