"""A server whose answers are a script, and which writes down when it sent each piece of them: the truth of a client.

It runs in a process of its own, so that nothing of the client's can delay it. A script is a JSON file:

    {"models": ["m"], "answers": [{"pieces": [[after_s, "data: ..."], ...], "end": "done"}, ...]}

The n-th completion gets the n-th answer, starting over behind the last. A piece's text stands for bytes (latin-1), sent
in one write `after_s` behind the one before it, the first behind the request. `status` and `body` make a refusal.
`end`: done (the answer ends), cut (the connection closes within it), reset, stall (nothing more comes).
On stdout: the port, then for each completion a line with the monotonic times of its request and of each piece.

    python benchmarks/scripted_server.py SCRIPT
"""

import json
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open, as servers do, and writes each piece at once."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "ScriptedServer"

    def parse_request(self) -> bool:
        self.received_s = time.monotonic()  # the request's first line has come
        return super().parse_request()

    def do_GET(self) -> None:
        models = [{"id": name, "object": "model", "max_model_len": 100000} for name in self.server.script["models"]]
        known: dict[str, Any] = {"/v1/models": {"data": models}, "/version": {"version": "scripted"}, "/health": {}}
        known |= self.server.script.get("gets", {})
        if self.path in known:
            self._whole(200, json.dumps(known[self.path]))
        else:
            self._whole(404, '{"error": {"message": "not here"}}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize" and "tokens_a_word" in self.server.script:
            text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
            return self._whole(200, json.dumps({"count": self.server.script["tokens_a_word"] * len(text.split())}))
        if self.path in self.server.script.get("posts", {}):
            return self._whole(200, json.dumps(self.server.script["posts"][self.path]))
        if not self.path.endswith("/completions"):
            return self._whole(404, '{"detail": "Not Found"}')
        with self.server.lock:
            answer = self.server.script["answers"][next(self.server.turns) % len(self.server.script["answers"])]
        sent_s: list[float] = []
        try:
            self._answer(answer, sent_s)
        finally:
            said = {"received_s": self.received_s, "sent_s": sent_s, "body": body, "headers": dict(self.headers)}
            with self.server.lock:
                print(json.dumps(said | {"path": self.path, "peer_port": self.client_address[1]}), flush=True)

    def _answer(self, answer: dict[str, Any], sent_s: list[float]) -> None:
        if "status" in answer:
            self._whole(answer["status"], answer["body"])
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        due_s = self.received_s
        for after_s, text in answer["pieces"]:
            due_s += after_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            data = text.encode("latin-1")
            framed = b"%x\r\n%s\r\n" % (len(data), data)
            sent_s.append(time.monotonic())
            self.wfile.write(framed)
        self._end(answer.get("end", "done"))

    def _end(self, how: str) -> None:
        if how == "done":
            self.wfile.write(b"0\r\n\r\n")
            return
        if how == "stall":
            self.connection.recv(1)  # until the client has had enough
        if how == "reset":  # closing with a linger of zero sends RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _whole(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: stdout is for times."""


class ScriptedServer(ThreadingHTTPServer):
    """On a free port of this machine alone."""

    daemon_threads = True

    def __init__(self, script: dict[str, Any], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.script, self.turns = script, count()
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no fault here."""


def main() -> None:
    server = ScriptedServer(json.loads(Path(sys.argv[1]).read_text()))
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
