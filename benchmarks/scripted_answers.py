"""Scripts for scripted_server.py, and the server beside a test or a benchmark."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

SCRIPT = Path(__file__).with_name("scripted_server.py")
Piece = tuple[float, str]


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
    """A scripted server."""

    port: int
    out: IO[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def told(self) -> dict[str, Any]:
        """What it wrote of its next completion."""
        return dict(json.loads(self.out.readline()))


@contextmanager
def scripted_server(folder: Path, answers: Sequence[dict[str, Any]], **script: Any) -> Iterator[Running]:
    """In a process of its own until the block ends."""
    path = folder / "script.json"
    path.write_text(json.dumps({"models": ["m"], "answers": list(answers)} | script))
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Running(int(process.stdout.readline()), process.stdout)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
