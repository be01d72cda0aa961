"""A server for faults of the harness, small enough for any image with a Python: answers, and decodes nothing real.

python stub.py PORT [no-decode]
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _reply(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._reply({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["sampling_params"]["max_new_tokens"]
        if "no-decode" in sys.argv:
            asked = 0
        self._reply({"output_ids": [9] * asked, "meta_info": {"completion_tokens": asked}})


print("stub listens", flush=True)
ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
