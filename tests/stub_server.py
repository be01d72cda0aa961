"""A stand-in for the server's HTTP face, for faults and timing of the harness only; it decodes nothing.

    python stub_server.py --port N [--mode MODE] [the real server's flags]

It answers /health, /server_info and /generate like SGLang 0.5.12.post1 would for the same flags. With --model-path
it continues a planted pair's prompts exactly. Modes break one thing each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
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
    "ignore-sigint",  # must be killed
    "leave-child",  # starts a grandchild in a session of its own
]

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--mode", choices=MODES, default="ok")
parser.add_argument("--after", type=int, default=5)
parser.add_argument("--model-path", default="", help="target of a planted pair, continued exactly")
parser.add_argument("--speculative-eagle-topk", type=int, default=0)
parser.add_argument("--speculative-num-steps", type=int, default=0)
parser.add_argument("--speculative-num-draft-tokens", type=int, default=0)
parser.add_argument("--max-running-requests", type=int, default=32)
parser.add_argument("--wrong-worker", action="store_true")
parser.add_argument("--delay", type=float, default=0.0)
parser.add_argument("--log-line", default="")
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
if args.mode == "exit-at-start":
    raise RuntimeError("stub failure at start")
if args.mode == "ignore-sigint":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.mode == "leave-child":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)

lock = threading.Lock()
count = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

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
        if not probe and number > args.after:
            if args.mode == "die-after":
                print("RuntimeError: stub died on purpose", flush=True)
                os._exit(9)
            if args.mode == "hang-after":
                time.sleep(600)
        if args.mode == "error-500" and not probe:
            self.reply({"error": {"message": "stub error"}}, 500)
            return
        time.sleep(args.delay)
        out = plan.continuation(ids, asked) if plan is not None else [9] * asked
        if args.mode == "short" and not probe:
            out = out[:-1]
        if args.mode == "wrong-token" and not probe:
            out = [*out[:-1], (out[-1] + 1) % 64]
        meta: dict[str, Any] = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(out),
            "cached_tokens": 16 if args.mode == "cached" else 0,
            "finish_reason": {"type": "length", "length": asked},
        }
        if topk:
            verify = plan.verify_steps(ids, asked, topk, steps, draft_tokens) if plan else asked
            meta["spec_verify_ct"] = verify
            meta["spec_accept_length"] = len(out) / max(verify, 1)
        self.reply({"text": "", "output_ids": out, "meta_info": meta})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", args.port), Handler).serve_forever()
