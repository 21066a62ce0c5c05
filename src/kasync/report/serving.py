"""How is a run watched while it goes on? The same page from a server on this machine only, asking for newer data."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kasync.errors import UserError
from kasync.report import results as reading
from kasync.report.payload import payload
from kasync.report.webpage import as_json, fingerprint, html

ADDRESS = "127.0.0.1"  # nobody else can reach it
NAMES = ("127.0.0.1", "localhost")  # a page of another site that points its own name here is refused
WAIT_FOR_A_RUN = 0.3


def serve(results_folder: str | Path, port: int = 8765, tell: Callable[[str], None] = print) -> None:
    """Serve the report until Ctrl-C; port 0 takes any that is free."""
    with server(results_folder, port) as made:
        tell(f"http://{ADDRESS}:{made.server_address[1]}/ shows {results_folder}; Ctrl-C ends it.")
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            tell("The report is no longer served; the results are where they were.")


def server(results_folder: str | Path, port: int = 0) -> ThreadingHTTPServer:
    """The server, ready for serve_forever()."""
    folder = Path(results_folder)
    reading.read(folder)  # a folder that is none is refused now
    if not 0 <= port <= 65535:
        raise UserError(f"port = {port}: give one between 0 and 65535; 0 takes any that is free.")
    handler = type("Report", (_Handler,), {"folder": folder})
    try:
        return ThreadingHTTPServer((ADDRESS, port), handler)
    except OSError as problem:
        raise UserError(f"port = {port} cannot be used ({problem.strerror}): choose another with --port.") from None


class _Handler(BaseHTTPRequestHandler):
    """Two addresses, the page and its data; everything else is not there."""

    folder: Path
    server_version = "kasync"
    sys_version = ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in NAMES:
            self._answer(403, "text/plain", "This report is served to this machine only.")
        elif self.path in ("/", "/index.html"):
            self._answer(200, "text/html", html(payload(self._results()), live=True))
        elif self.path == "/data.json":
            text = as_json(payload(self._results()))
            mark = f'"{fingerprint(text)}"'
            known = self.headers.get("If-None-Match") == mark
            self._answer(304 if known else 200, "application/json", "" if known else text, mark)
        else:
            self._answer(404, "text/plain", "There is only the report, at /.")

    def _results(self) -> reading.Results:
        """As they are now; a file that a run is about to replace is tried once more."""
        try:
            return reading.read(self.folder)
        except UserError:
            time.sleep(WAIT_FOR_A_RUN)
            return reading.read(self.folder)

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
        """Quiet: a poll every two seconds is no news."""
