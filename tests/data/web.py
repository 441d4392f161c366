"""A small web server for tests of downloads, which can be told to misbehave."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Web:
    """``files`` by name. ``cut``: how many bytes of each to send before hanging up, once for every entry."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, str]] = field(default_factory=list)  # name, Range


@contextlib.contextmanager
def serving(**files: bytes) -> Iterator[Web]:
    web = Web(files={name.replace("__", "-").replace("_gz", ".gz"): data for name, data in files.items()})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.rpartition("/")[2], self.headers.get("Range") or ""
            web.asked.append((name, wanted))
            if web.status.get(name):
                return self.send_error(web.status[name].pop(0))
            if name not in web.files:
                return self.send_error(404)
            data, start = web.files[name], 0
            if wanted and web.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(data):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(data)}")
                    self.send_header("Content-Length", "0")
                    return self.end_headers()
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            end = start + web.cut[name].pop(0) if web.cut.get(name) else len(data)
            self.wfile.write(data[start:end])
            if end < len(data):
                self.connection.close()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    web.address = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
