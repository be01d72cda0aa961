"""Records made up for tests of what judges them."""

from __future__ import annotations

from typing import Any

from kit.records import (
    LaunchRecord,
    LevelRecord,
    Manifest,
    PlanConfig,
    RequestRecord,
    RunData,
    ServerProof,
)
from kit.scenarios import load_rig


def plan(**changes: Any) -> PlanConfig:
    data = {
        "scenarios": ["baseline", "spec-v1", "spec-v2"],
        "levels": [1, 4],
        "protocol": "steady",
        "launches": 2,
        "sweeps": 3,
        "max_launches": 2,
        "output_tokens": 48,
        "input_tokens": 32,
        "requests": {1: 12, 4: 12},
    }
    return PlanConfig.model_validate({**data, **changes})


def manifest(rig: str = "cpu", **changes: Any) -> Manifest:
    data = {
        "run_id": "20261201T000000Z-cpu",
        "kit_version": "0",
        "created": "2026-12-01T00:00:00+00:00",
        "command": ["kit", "reproduce"],
        "status": "complete",
        "rig": load_rig(rig).model_dump(mode="json", by_alias=True),
        "scenarios": {},
        "plan": plan(),
        "backend": "process",
        "pair": {"kind": "planted"},
        "fingerprint": {},
        "fingerprint_hash": "0",
        "patches": [],
        "git_commit": None,
        "lock": None,
    }
    return Manifest.model_validate({**data, **changes})


def request_record(**changes: Any) -> RequestRecord:
    data = {
        "t": 1.0,
        "scenario": "baseline",
        "launch": 0,
        "sweep": 0,
        "level": 1,
        "phase": "measure",
        "index": 0,
        "send_s": 0.0,
        "first_s": None,
        "end_s": 0.5,
        "prompt_tokens": 32,
        "completion_tokens": 48,
        "asked_tokens": 48,
        "cached_tokens": 0,
        "verify_steps": None,
        "checked": True,
    }
    return RequestRecord.model_validate({**data, **changes})


def level_record(**changes: Any) -> LevelRecord:
    data = {
        "t": 1.0,
        "scenario": "baseline",
        "launch": 0,
        "sweep": 0,
        "level": 1,
        "phase": "measure",
        "requests": 12,
        "failed": 0,
        "wall_s": 5.0,
        "output_tokens": 576,
        "tok_s": 115.2,
        "steady_tok_s": None,
        "effective_concurrency": 1.0,
        "accept_length": None,
        "planned_accept_length": None,
        "step_time_s": 1 / 115.2,
        "latency_s": {"p50": 0.4},
        "cached_tokens": 0,
        "client": {"client_bound": False},
    }
    return LevelRecord.model_validate({**data, **changes})


def launch_record(problems: list[str] | None = None, **changes: Any) -> LaunchRecord:
    proof = ServerProof(
        worker="plain",
        version="0.5.12.post1",
        disable_overlap_schedule=False,
        speculative={},
        max_running_requests=32,
        problems=problems or [],
    )
    data = {
        "t": 1.0,
        "scenario": "baseline",
        "launch": 0,
        "ready_s": 10.0,
        "argv": [],
        "env": {},
        "log": "logs/x.log",
        "proof": proof,
    }
    return LaunchRecord.model_validate({**data, **changes})


def run_data(levels: list[LevelRecord], **changes: Any) -> RunData:
    data = {
        "manifest": manifest(),
        "launches": [],
        "requests": [request_record()],
        "levels": levels,
        "failures": [],
    }
    return RunData.model_validate({**data, **changes})
