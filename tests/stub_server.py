"""A stand-in for the server's HTTP face, for faults and timing of the harness only; it decodes nothing.

    python stub_server.py --port N [--mode MODE] [the real server's flags]

It answers /health, /server_info and /generate (with server-sent events too) like SGLang 0.5.12.post1 would for the
same flags. With --model-path it continues a planted pair's prompts exactly. Modes break one thing each: those that
break an answer do so from request --after + 1 on, those that end or stop the server then too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODES = [
    "ok",
    "exit-at-start",  # ends with a traceback in the log before listening
    "healthy-but-no-decode",  # /health answers, /generate hangs up
    "die-after",  # ends itself after --after requests
    "hang-after",  # stops answering after --after requests
    "short",  # one token too few
    "wrong-token",  # the last output token is off
    "cached",  # says that prompt tokens came from a cache
    "error-500",
    "die-answered",  # ends itself once it has answered request --after
    "die-within",  # ends itself in the middle of an answer
    "killed",  # is killed with SIGKILL, as the kernel does when memory is short
    "never-listens",  # neither listens nor ends
    "status",  # answers --status
    "redirect",  # answers 302
    "bad-json",  # a body that is not JSON
    "wrong-shape",  # JSON of another shape
    "long",  # one token too many
    "reset",  # resets the connection
    "slow-loris",  # a byte of the header at a time
    "huge-body",  # a body without end
    "huge-info",  # /server_info without end
    "after-end",  # streams: tokens after [DONE]
    "duplicate",  # streams: every event twice
    "reorder",  # streams: two events in the wrong order
    "half-stream",  # streams: closes before [DONE]
    "ignore-sigint",  # must be killed
    "litter",  # makes temporary files and shared memory, and removes neither
    "leave-child",  # starts a grandchild in a session of its own
]

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--mode", choices=MODES, default="ok")
parser.add_argument("--after", type=int, default=0)
parser.add_argument("--model-path", default="", help="target of a planted pair, continued exactly")
parser.add_argument("--speculative-eagle-topk", type=int, default=0)
parser.add_argument("--speculative-num-steps", type=int, default=0)
parser.add_argument("--speculative-num-draft-tokens", type=int, default=0)
parser.add_argument("--max-running-requests", type=int, default=32)
parser.add_argument("--wrong-worker", action="store_true")
parser.add_argument("--delay", type=float, default=0.0)
parser.add_argument("--status", type=int, default=500)
parser.add_argument("--log-line", default="")
parser.add_argument(
    "--gate", default="", help="a file that answers wait for; PATH.waits says that one does"
)
parser.add_argument("--gate-after", type=int, default=0, help="requests that do not wait for it")
# Options come from the command line, and from STUB_ARGS where the command line is the real server's.
args, _ = parser.parse_known_args([*sys.argv[1:], *os.environ.get("STUB_ARGS", "").split()])

topk, steps = args.speculative_eagle_topk, args.speculative_num_steps
draft_tokens = args.speculative_num_draft_tokens
v2 = os.environ.get("SGLANG_ENABLE_SPEC_V2") == "True"
plan: Any = None
if args.model_path:
    from kit.planted import Plan

    plan = Plan.load(Path(args.model_path).parent)
if args.log_line:
    print(args.log_line, flush=True)
if args.mode == "never-listens":
    time.sleep(600)
if args.mode == "exit-at-start":
    raise RuntimeError("stub failure at start")
if args.mode == "ignore-sigint":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.mode == "litter":
    import tempfile

    _, name = tempfile.mkstemp(prefix="litter")
    shared = Path(f"/dev/shm/kit-test-{os.getpid()}")
    shared.write_bytes(bytes(4096))
    with shared.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), 0)
if args.mode == "leave-child":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)

lock = threading.Lock()
count = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply({})
        elif self.path == "/server_info" and args.mode == "huge-info":
            self.endless(b"[")
        elif self.path == "/server_info":
            spec = topk > 0
            self.reply(
                {
                    "version": "0.5.12.post1",
                    "disable_overlap_schedule": spec and v2 == args.wrong_worker,
                    "speculative_algorithm": "EAGLE3" if spec else None,
                    "speculative_num_steps": steps if spec else None,
                    "speculative_eagle_topk": topk if spec else None,
                    "speculative_num_draft_tokens": draft_tokens if spec else None,
                    "internal_states": [
                        {"effective_max_running_requests_per_dp": args.max_running_requests}
                    ],
                }
            )
        else:
            self.reply({}, 404)

    def endless(self, start: bytes) -> None:
        """A body that goes on until the client has had enough."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(start)
            while True:
                self.wfile.write(b"x" * (1 << 20))

    def break_answer(self) -> bool:
        """Do what the mode does instead of an answer; returns whether there was anything."""
        mode = args.mode
        if mode == "die-after":
            print("RuntimeError: stub died on purpose", flush=True)
            os._exit(9)
        elif mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif mode == "hang-after":
            time.sleep(600)
        elif mode == "error-500":
            self.reply({"error": {"message": "stub error"}}, 500)
        elif mode == "status":
            self.reply({"error": {"message": "stub error"}}, args.status)
        elif mode == "redirect":
            self.send_response(302)
            self.send_header("Location", "http://192.0.2.1/generate")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif mode == "bad-json":
            self.raw(b"<html>not what you asked for</html>")
        elif mode == "wrong-shape":
            self.reply({"text": "", "meta_info": [1]})
        elif mode == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            self.close_connection = True
        elif mode == "slow-loris":
            with contextlib.suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\n" * 1000:
                    self.connection.send(bytes([byte]))
                    time.sleep(0.1)
        elif mode == "huge-body":
            self.endless(b'{"text": "')
        else:
            return False
        return True

    def wait_at_the_gate(self) -> None:
        gate = Path(args.gate)
        gate.with_name(f"{gate.name}.waits").touch()
        while not gate.exists():
            time.sleep(0.005)

    def raw(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, out: list[int], meta: dict[str, Any], broken: bool) -> None:
        """Send events with running totals, four tokens each, as SGLang does."""
        events = []
        for end in range(4, len(out) + 4, 4):
            part = out[:end]
            totals = {**meta, "completion_tokens": len(part)}
            if end < len(out):
                totals["finish_reason"] = None
            events.append({"text": "", "output_ids": part, "meta_info": totals})
        if broken and args.mode == "duplicate":
            events = [event for event in events for _ in range(2)]
        if broken and args.mode == "reorder":
            events[0], events[1] = events[1], events[0]
        chunks = [b"data: " + json.dumps(e).encode() + b"\n\n" for e in events]
        if broken and args.mode == "half-stream":
            chunks = chunks[:1]
        else:
            chunks.append(b"data: [DONE]\n\n")
        if broken and args.mode == "after-end":
            chunks.append(chunks[-2])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        if broken and args.mode == "half-stream":
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def do_POST(self) -> None:
        global count
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["sampling_params"]["max_new_tokens"]
        ids = body["input_ids"]
        probe = ids == [5, 6, 7] and asked == 2
        with lock:
            count += not probe
            number = count
        if args.mode == "healthy-but-no-decode":
            self.close_connection = True
            return
        if args.gate and not probe and number > args.gate_after:
            self.wait_at_the_gate()
        broken = not probe and number > args.after
        if broken and self.break_answer():
            return
        time.sleep(args.delay)
        out = plan.continuation(ids, asked) if plan is not None else [9] * asked
        if broken and args.mode == "short":
            out = out[:-1]
        if broken and args.mode == "long":
            out = [*out, out[-1]]
        if broken and args.mode == "wrong-token":
            out = [*out[:-1], (out[-1] + 1) % 64]
        meta: dict[str, Any] = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(out),
            "cached_tokens": 16 if broken and args.mode == "cached" else 0,
            "finish_reason": {"type": "length", "length": asked},
        }
        if topk:
            verify = plan.verify_steps(ids, asked, topk, steps, draft_tokens) if plan else asked
            meta["spec_verify_ct"] = verify
            meta["spec_accept_length"] = len(out) / max(verify, 1)
        if broken and args.mode == "die-within":
            self.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{")
            os._exit(9)
        if body.get("stream"):
            self.stream(out, meta, broken)
        else:
            self.reply({"text": "", "output_ids": out, "meta_info": meta})
        if args.mode == "die-answered" and number >= args.after:
            self.wfile.flush()
            os._exit(9)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""

    request_queue_size = 128


Server(("127.0.0.1", args.port), Handler).serve_forever()
