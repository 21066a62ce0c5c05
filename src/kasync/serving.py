"""An HTTP server for one page and its data, on the loopback address only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kasync.errors import UserError

ADDRESS = "127.0.0.1"  # nobody else can reach it
NAMES = ("127.0.0.1", "localhost")  # a page of another site that points its own name here is refused


def serve(page: Callable[[], str], data: Callable[[], str], port: int, about: str, after: str) -> None:
    """Serve until Ctrl-C; `about` says what the address shows, `after` what is still there when nobody serves it."""
    with server(page, data, port) as made:
        print(f"http://{ADDRESS}:{made.server_address[1]}/ {about}; Ctrl-C ends it.", flush=True)
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            print(after)


def server(page: Callable[[], str], data: Callable[[], str], port: int = 0) -> ThreadingHTTPServer:
    """Ready for serve_forever(): the page at /, its data at /data.json, anew at every request; port 0 takes any."""
    if not 0 <= port <= 65535:
        raise UserError(f"port = {port}: give one between 0 and 65535; 0 takes any that is free.")
    handler = type("Handler", (_Handler,), {"page": staticmethod(page), "data": staticmethod(data)})
    try:
        return ThreadingHTTPServer((ADDRESS, port), handler)
    except OSError as problem:
        raise UserError(f"port = {port} cannot be used ({problem.strerror}): choose another with --port.") from None


def mark_of(text: str) -> str:
    """Twelve digits that change when the text does."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class _Handler(BaseHTTPRequestHandler):
    """Two addresses, the page and its data; everything else is not there."""

    page: Callable[[], str]
    data: Callable[[], str]
    server_version = "kasync"
    sys_version = ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in NAMES:
            self._answer(403, "text/plain", "This page is served to this machine only.")
        elif self.path in ("/", "/index.html"):
            self._answer(200, "text/html", self.page())
        elif self.path == "/data.json":
            text = self.data()
            mark = f'"{mark_of(text)}"'
            known = self.headers.get("If-None-Match") == mark
            self._answer(304 if known else 200, "application/json", "" if known else text, mark)
        else:
            self._answer(404, "text/plain", "There is only the page, at /.")

    def _answer(self, status: int, kind: str, text: str, mark: str | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if mark is not None:
            self.send_header("ETag", mark)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """A look every two seconds is no news."""
