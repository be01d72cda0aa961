"""The CPU engine starts where SGLang's own guess leaves no memory for the KV cache."""

from __future__ import annotations

import os
import subprocess
import sys

from kit import reproduce as pipeline
from kit.planted import PairSpec, make_pair
from kit.scenarios import ModelPaths, load_rig, load_scenario

# What a virtual machine shows whose memory grows with its use, and what a small host has.
PROGRAM = """
import sys
from sglang.srt import server_args
server_args.get_device_memory_capacity = lambda *a, **k: 6000.0
print("fraction", server_args.prepare_server_args(sys.argv[1:]).mem_fraction_static)
"""


def test_the_share_of_memory_is_positive_on_a_node_of_six_gib(tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    pair = make_pair(
        PairSpec(hidden=128, layers=4, intermediate=128, heads=2, kv_heads=1, vocab=256),
        tmp_path_factory.mktemp("small") / "pair",
    )
    models = ModelPaths(target=str(pair / "target"), draft=str(pair / "draft"))
    command = pipeline.command_for(load_scenario("spec-v2"), load_rig("cpu"), models, 30000)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.argv[2:]],
        env={**os.environ, **command.env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    line = next((x for x in done.stdout.splitlines() if x.startswith("fraction")), done.stderr)
    assert 0 < float(line.split()[1]) < 1, line
