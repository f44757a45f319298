"""A small stand-in for the Hugging Face Hub on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONFIG = {
    "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "vocab_size": 31,
}  # fmt: skip


@dataclass
class Hub:
    """The address of the server, and what it was asked for.

    Args:
        address: The value of ``HF_ENDPOINT``.
        requests: Path and token of each request.
    """

    address: str
    requests: list[tuple[str, str | None]] = field(default_factory=list)


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve the models of :class:`Handler` until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    """Answers as the Hub does: status, ``X-Error-Code``, redirects, and the git hash of a file as its ETag."""

    def do_GET(self):
        hub: Hub = self.server.hub
        token = self.headers.get("Authorization")
        hub.requests.append((self.path, token))
        model = self.path.removesuffix("/resolve/main/config.json").strip("/")
        content = json.dumps(CONFIG).encode()
        match model:
            case "google/gemma-tiny" | "gpt-tiny" | "cached":
                self.answer(200, content, ETag=f'"{git_hash(content)}"')
            case "google/damaged":
                self.answer(200, content[:-1], ETag=f'W/"{git_hash(content)}"')
            case "google/moved":
                self.answer(307, Location="/google/gemma-tiny/resolve/main/config.json")
            case "google/elsewhere":
                other = f"http://localhost:{self.server.server_port}/google/gemma-tiny/resolve/main/config.json"
                self.answer(302, Location=other)
            case "google/gated" if token != "Bearer right":
                self.answer(401 if token is None else 403, **{"X-Error-Code": "GatedRepo"})
            case "google/gated":
                self.answer(200, content)
            case "google/empty":
                self.answer(404, **{"X-Error-Code": "EntryNotFound"})
            case "google/broken":
                self.answer(503)
            case "google/huge":
                self.answer(200, b" " * 10_000_001)
            case "google/code":
                body = json.dumps({**CONFIG, "model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}).encode()
                self.answer(200, body)
            case "google/cut":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"{")
            case _:
                self.answer(401, **{"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass
