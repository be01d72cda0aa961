"""What a run folder holds: the types and the JSON of ``run.json`` and ``samples.jsonl``.

``samples.jsonl`` has one object a line, appended as things happen, so that a killed run keeps everything it
measured. The kinds are :class:`LaunchRecord`, :class:`RequestRecord`, :class:`LevelRecord`,
:class:`FailureRecord` and :class:`ResumeRecord`; ``run.json`` is a :class:`Manifest`. Times are seconds; ``t`` is
Unix time.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from kit.telemetry.records import TelemetryHeader, TelemetrySample

SCHEMA = 1
Phase = Literal["warmup", "measure"]
RunStatus = Literal["running", "complete", "interrupted", "failed"]


class Record(BaseModel):
    """Base of run-folder data: immutable, tolerant of fields that a newer kit adds."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class ServerProof(Record):
    """What the running server said of itself, beside what the scenario wants.

    ``problems`` is empty when the scenario's worker is proven; each entry is one clause.
    """

    worker: str = Field(description="plain, v1 or v2, as resolved from the server's own answer")
    version: str
    disable_overlap_schedule: bool | None
    speculative: dict[str, Any]
    max_running_requests: int | None
    patches_live: list[str] = Field(default_factory=list)
    evidence: list[str] = Field(default_factory=list, description="log lines that prove something")
    problems: list[str] = Field(default_factory=list)


class LaunchRecord(Record):
    """One server start."""

    kind: Literal["launch"] = "launch"
    t: float
    scenario: str
    launch: int
    ready_s: float = Field(description="from start to the first decoded token")
    argv: list[str]
    env: dict[str, str]
    log: str = Field(description="log file, relative to the run folder")
    proof: ServerProof
    container: dict[str, Any] | None = None
    start: int = Field(default=0, description="how often the run had been taken up again by then")


class RequestRecord(Record):
    """One request as the client saw it. Times are seconds from the level's start."""

    kind: Literal["request"] = "request"
    t: float
    scenario: str
    launch: int
    sweep: int
    level: int
    phase: Phase
    index: int
    send_s: float
    first_s: float | None
    end_s: float
    prompt_tokens: int | None
    completion_tokens: int | None
    asked_tokens: int
    cached_tokens: int | None
    verify_steps: int | None = Field(description="spec_verify_ct; None without speculation")
    planned_verify_steps: int | None = Field(
        default=None, description="what the planted pair's plan demands; None for real weights"
    )
    mismatch_at: int | None = Field(
        default=None, description="first output token that is not the planted one"
    )
    checked: bool = Field(default=False, description="output was compared with the plan")
    finish_reason: str | None = None
    error: str | None = None
    error_detail: str | None = None


class ServerFigures(Record):
    """What the server's own log says of one pass."""

    lines: int = Field(description="log lines behind these figures")
    running_mean: float = Field(description="requests that the server decoded at once")
    running_max: int
    queue_max: int = Field(description="most requests that waited in the server's queue")
    step_time_s: float | None = Field(
        default=None, description="seconds per step at running_max, by the server's own clock"
    )
    queue_mean: float = 0.0
    concurrency: float | None = Field(
        default=None, description="requests decoding at once, mean over the pass; a line each step"
    )
    mean_step_s: float | None = Field(
        default=None, description="seconds per step, mean over requests; a line each step"
    )
    request_steps: int | None = Field(
        default=None, description="decode steps, summed over requests; a line each step"
    )
    decoded_tokens: float | None = Field(
        default=None, description="tokens of those steps, before what exceeds a request is cut off"
    )


class LevelRecord(Record):
    """One level of one sweep, summed up. Throughput is output tokens per second of the whole level."""

    kind: Literal["level"] = "level"
    t: float
    scenario: str
    launch: int
    sweep: int
    level: int
    phase: Phase
    requests: int
    failed: int
    wall_s: float
    output_tokens: int
    tok_s: float
    steady_tok_s: float | None
    effective_concurrency: float
    accept_length: float | None
    planned_accept_length: float | None
    step_time_s: float | None = Field(
        description="seconds per verify (or decode) step of a request"
    )
    latency_s: dict[str, float]
    ttft_s: dict[str, float] = Field(default_factory=dict)
    tpot_s: dict[str, float] = Field(default_factory=dict)
    itl_s: dict[str, float] = Field(default_factory=dict)
    cached_tokens: int | None = Field(description="None where no answer says it, which is not 0")
    client: dict[str, Any] = Field(description="the client's measurement of itself")
    server: ServerFigures | None = Field(
        default=None, description="the server's own figures, where its log can be read"
    )


class FailureRecord(Record):
    """Something ended early: the scenario, where, and why."""

    kind: Literal["failure"] = "failure"
    t: float
    scenario: str
    launch: int
    sweep: int | None = None
    level: int | None = None
    sentence: str
    remedy: str = ""
    known_issue: str | None = None
    log_tail: str = ""


class ResumeRecord(Record):
    """The run was taken up again; :mod:`kit.attempts` says what of the records before it still counts."""

    kind: Literal["resume"] = "resume"
    t: float
    start: int = Field(description="1 for the first time")
    cut_bytes: int = Field(default=0, description="half a line that a killed writer left, removed")
    command: list[str] = Field(default_factory=list)


AnyRecord = Annotated[
    LaunchRecord | RequestRecord | LevelRecord | FailureRecord | ResumeRecord,
    Field(discriminator="kind"),
]
record_adapter: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)


class PlanConfig(Record):
    """What the run set out to measure."""

    scenarios: list[str]
    levels: list[int]
    protocol: Literal["published", "steady"]
    launches: int
    sweeps: int
    max_launches: int
    output_tokens: int
    warm_output_tokens: int | None = Field(
        default=None, description="output tokens of a warm-up request; None: as when measuring"
    )
    input_tokens: int
    requests: dict[int, int] = Field(description="requests a level sends, by concurrency")
    stream: bool = Field(default=False, description="answers were streamed")

    def tokens_in(self, phase: Phase) -> int:
        """Return the output tokens that each request of a pass asks for."""
        return (phase == "warmup" and self.warm_output_tokens) or self.output_tokens


class Manifest(Record):
    """``run.json``."""

    schema_version: int = Field(default=SCHEMA, alias="schema")
    run_id: str
    kit_version: str
    created: str
    command: list[str]
    status: RunStatus
    status_detail: str = ""
    rig: dict[str, Any]
    scenarios: dict[str, dict[str, Any]]
    plan: PlanConfig
    backend: str
    backend_reason: str = ""
    pair: dict[str, Any]
    expected_accept_length: dict[str, float] = Field(
        default_factory=dict, description="theory for the planted pair, by scenario"
    )
    fingerprint: dict[str, Any]
    fingerprint_hash: str
    patches: list[dict[str, Any]]
    git_commit: str | None
    lock: str | None
    image_digest: str | None = None
    caveat: str = ""
    pair_digest: str = Field(
        default="", description="names, sizes and headers of the models' files, hashed"
    )
    doctor: list[dict[str, Any]] = Field(
        default_factory=list, description="warnings of the doctor before the run"
    )
    doctor_after: list[dict[str, Any]] = Field(
        default_factory=list,
        description="the same, looked at again after a verdict that is no pass",
    )

    @field_validator("rig")
    @classmethod
    def _rig_has_a_name(cls, rig: dict[str, Any]) -> dict[str, Any]:
        # It leads to the golden file of that name, and a run folder may come from anywhere.
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", str(rig.get("name", ""))):
            raise ValueError("the rig has no name that is one")
        return rig


class RunData(Record):
    """Everything a verdict needs: the manifest and the records, in the order they were written."""

    manifest: Manifest
    launches: list[LaunchRecord]
    requests: list[RequestRecord]
    levels: list[LevelRecord]
    failures: list[FailureRecord]
    truncated_lines: int = 0
    telemetry_header: TelemetryHeader | None = None
    telemetry: list[TelemetrySample] = Field(default_factory=list, description="in order of time")
    resumes: int = Field(default=0, description="how often the run was taken up again")
    set_aside: list[RequestRecord] = Field(
        default_factory=list, description="requests of passes that were measured again"
    )
    healed: list[FailureRecord] = Field(
        default_factory=list, description="failures before the last resumption"
    )
    being_written: bool = Field(default=False, description="another process holds the run folder")

    def measured(self, scenario: str, level: int) -> list[LevelRecord]:
        """Return the measured (not warm-up) passes of one scenario at one level."""
        return [
            r
            for r in self.levels
            if r.phase == "measure" and r.scenario == scenario and r.level == level
        ]

    def grouped(self, scenario: str, level: int) -> list[list[LevelRecord]]:
        """Return the measured passes as launches of sweeps, in order."""
        groups: dict[int, list[LevelRecord]] = {}
        for record in self.measured(scenario, level):
            groups.setdefault(record.launch, []).append(record)
        return [sorted(groups[k], key=lambda r: r.sweep) for k in sorted(groups)]

    def scenarios(self) -> list[str]:
        """Return the scenarios that have measured levels, in the plan's order."""
        have = {r.scenario for r in self.levels if r.phase == "measure"}
        return [s for s in self.manifest.plan.scenarios if s in have]
