"""Prove which worker a running server uses, from what the server itself says.

Both later and older SGLang releases accept the flags of both speculative scenarios and then run one and the same
worker; such a comparison is void. So the server is asked, and a mismatch is "wrong worker", never "slow".
Source: SGLang 0.5.12.post1, ``server_args.py`` (v1 switches the overlap scheduler off, v2 keeps it on).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kit.records import ServerProof
from kit.scenarios import Rig, Scenario

SGLANG_VERSION = "0.5.12.post1"
_EVIDENCE = re.compile(
    r"kit patches live:|kit \d{4}:|kit cpu plug-in live:|symm(etric)? mem|allreduce.fusion", re.I
)
_PATCHES = re.compile(r"kit patches live:\s*([0-9 ,]*)")


def log_evidence(lines: Sequence[str]) -> list[str]:
    """Return the lines of a server's log that prove something, each once, at most 40 of 400 characters."""
    found = dict.fromkeys(line.strip()[:400] for line in lines if _EVIDENCE.search(line))
    return list(found)[:40]


def patches_in(lines: Sequence[str]) -> list[str]:
    """Return the patch ids that the server's log names as live."""
    ids: set[str] = set()
    for line in lines:
        hit = _PATCHES.search(line)
        if hit:
            ids.update(re.findall(r"\d{4}", hit.group(1)))
    return sorted(ids)


def _effective_max(info: Mapping[str, Any]) -> int | None:
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], Mapping):
        value = states[0].get("effective_max_running_requests_per_dp")
        if isinstance(value, int):
            return value
    value = info.get("max_running_requests")
    return value if isinstance(value, int) else None


def prove(
    scenario: Scenario,
    rig: Rig,
    info: Mapping[str, Any],
    log_lines: Sequence[str] = (),
    live_patches: Sequence[str] | None = None,
) -> ServerProof:
    """Compare a server's ``/server_info`` with what ``scenario`` wants.

    Args:
        scenario: What should run.
        rig: Its rig.
        info: The answer of ``/server_info``.
        log_lines: The server's log so far.
        live_patches: Patch ids known to be live by checksum; read from the log when None.

    Returns:
        The proof; ``problems`` says what differs, and is empty when the worker is proven.
    """
    problems: list[str] = []
    algorithm = info.get("speculative_algorithm")
    overlap_off = info.get("disable_overlap_schedule")
    overlap_off = overlap_off if isinstance(overlap_off, bool) else None
    version = str(info.get("version", "unknown"))
    if not algorithm:
        worker = "plain"
    elif overlap_off is None:
        worker = "unknown"
    else:
        worker = "v1" if overlap_off else "v2"
    if worker != scenario.worker:
        problems.append(f"wrong worker: {scenario.worker} is wanted and {worker} runs")
    if version != SGLANG_VERSION:
        problems.append(
            f"wrong engine: SGLang {SGLANG_VERSION} is wanted, the last with both workers, "
            f"and {version} runs"
        )
    spec = scenario.speculative
    seen = {
        key: info.get(f"speculative_{key}")
        for key in ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    }
    if spec:
        wanted = {
            "algorithm": spec.algorithm,
            "num_steps": spec.num_steps,
            "eagle_topk": spec.topk,
            "num_draft_tokens": spec.num_draft_tokens,
        }
        problems += [
            f"speculative {key} is {seen[key]!r}, not {value!r}"
            for key, value in wanted.items()
            if seen[key] != value
        ]
    limit = _effective_max(info)
    highest = max(rig.load.levels)
    if limit is None:
        problems.append("the server does not say how many requests it runs at once")
    elif limit < highest:
        problems.append(
            f"running requests are capped at {limit}, below the highest level C={highest}"
        )
    live = sorted(live_patches) if live_patches is not None else patches_in(log_lines)
    missing = sorted({*scenario.patches, *rig.server.patches} - set(live))
    if missing:
        problems.append(f"missing patch {', '.join(missing)}, without which this scenario is void")
    problems += [
        f"the server's log does not show {text!r}, which this rig's flags ask for"
        for text in rig.server.log_must_show
        if not any(text in line for line in log_lines)
    ]
    return ServerProof(
        worker=worker,
        version=version,
        disable_overlap_schedule=overlap_off,
        speculative=seen if algorithm else {},
        max_running_requests=limit,
        patches_live=live,
        evidence=log_evidence(log_lines),
        problems=problems,
    )
