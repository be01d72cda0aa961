"""Measure: launches of scenarios, warm-up, sweeps over levels; every sample is written when it ends.

Nothing is printed here: what happens goes to an :class:`Observer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kit import serverlog
from kit.backends.base import Backend, ServerHandle, http_json
from kit.errors import EngineError
from kit.known_issues import installed_versions
from kit.known_issues.live import LogFollower
from kit.load import ClosedLoop, Endpoint, LevelResult, Request, RequestResult, run_level, summarize
from kit.planted import Plan
from kit.prompts import PromptSource
from kit.proof import prove
from kit.records import (
    FailureRecord,
    LaunchRecord,
    LevelRecord,
    Phase,
    PlanConfig,
    RequestRecord,
)
from kit.resume import Resumed, passes_of
from kit.runfolder import RunFolder
from kit.scenarios import Rig, Scenario, ServerCommand, plain_above
from kit.schedule import Clock, Step, launch_order

# Two successive warm passes that differ by less than this are called warm. The first pass at a level is up to
# half as fast as the next; two warm ones differ by a few percent.
WARM_AGREEMENT = 0.10
NS = 1e-9
MOST_REASONS = 3
# How long after a failed request a server's death may take to show.
DYING_S = 1.0


class Observer(Protocol):
    """Hears what happens during a run."""

    def opened(self, folder: Path) -> None:
        """The run folder was made."""
        ...

    def starting(self, step: Step, left_s: float) -> None:
        """A step starts; ``left_s`` seconds remain by estimate."""
        ...

    def waiting(self, scenario: str, waited_s: float) -> None:
        """The server is not ready yet."""
        ...

    def launched(self, record: LaunchRecord) -> None:
        """A server decodes and its worker was proven, or not."""
        ...

    def passed(self, record: LevelRecord) -> None:
        """A pass of a level is over."""
        ...

    def failed(self, record: FailureRecord) -> None:
        """A scenario ended early."""
        ...

    def note(self, text: str) -> None:
        """Something was decided outside a step: to measure more, or to stop."""
        ...


@dataclass
class Measurement:
    """What one run needs; made by the command, used by :func:`measure`.

    ``more`` is asked after the planned launches, with their number, and says why another one is wanted, a sentence
    each; none ends the run. ``ends_at`` is a reading of ``time.monotonic``: no step starts after it. With ``resumed``
    passes that the run folder holds already are left out, and so are servers that have none left.
    """

    plan: PlanConfig
    rig: Rig
    scenarios: dict[str, Scenario]
    commands: dict[str, ServerCommand]
    backend: Backend
    folder: RunFolder
    prompts: PromptSource
    observer: Observer
    clock: Clock
    pair_plan: Plan | None = None
    live_patches: list[str] | None = None
    more: Callable[[int], Sequence[str]] = field(default=lambda _launches: ())
    stream: bool = False
    ends_at: float | None = None
    resumed: Resumed | None = None

    def left(self, scenario: str, launch: int) -> list[tuple[int, int]]:
        """Return sweep and level of each pass of one server that is to be measured."""
        if self.resumed is None:
            return passes_of(self.plan)
        return self.resumed.left(self.plan, scenario, launch)


class _TimeIsUpError(Exception):
    """The budget is spent."""


def _check_time(job: Measurement) -> None:
    if job.ends_at is not None and time.monotonic() >= job.ends_at:
        raise _TimeIsUpError


def measure(job: Measurement) -> str:
    """Run every planned launch, then further ones while ``job.more`` asks for them, up to the cap.

    Returns:
        Empty if all that was planned was measured, else why not, as a clause.

    Raises:
        UserError: the port is taken, the disk is full.
        KeyboardInterrupt: as it came; everything measured before is in the run folder.
    """
    try:
        _all_launches(job)
    except _TimeIsUpError:
        job.observer.note("The budget is spent: what was measured so far is judged.")
        return "the budget was spent before everything planned was measured"
    return ""


def _all_launches(job: Measurement) -> None:
    broken: set[str] = set()
    launch = 0
    begun = job.resumed.launches if job.resumed else 0
    while True:
        for name in launch_order(job.plan.scenarios, launch):
            if name in broken or not job.left(name, launch):
                job.clock.skip_server(name, launch)
                continue
            _check_time(job)
            if not _one_server(job, name, launch):
                # A scenario that cannot be served once will not be served by trying again; the others go on.
                broken.add(name)
        launch += 1
        if launch < job.plan.launches:
            continue
        if launch < begun:
            # A launch beyond the plan that was decided before the run was cut short.
            job.clock.add_launch(launch)
            continue
        if len(broken) == len(job.plan.scenarios) or not _another(job, launch):
            return
        job.clock.add_launch(launch)


def _another(job: Measurement, launches: int) -> bool:
    """Return whether another launch follows ``launches`` of them; say why, or why not although it would help."""
    reasons = job.more(launches)
    if not reasons:
        return False
    why = "; ".join(reasons[:MOST_REASONS])
    if len(reasons) > MOST_REASONS:
        why += f"; and {len(reasons) - MOST_REASONS} more"
    if launches >= job.plan.max_launches:
        job.observer.note(f"The cap of {job.plan.max_launches} launches ends it: {why}.")
        return False
    if job.ends_at is not None and time.monotonic() + job.clock.launch_s() > job.ends_at:
        job.observer.note(f"Another launch would not fit into the budget: {why}.")
        return False
    job.observer.note(f"Launch {launches + 1} is added: {why}.")
    return True


def _one_server(job: Measurement, name: str, launch: int) -> bool:
    """Serve one scenario once and measure all sweeps. Returns False if it ended early."""
    step = Step("start", name, launch)
    log = job.folder.log_path(name, launch)
    where: dict[str, int] = {}
    passes = job.left(name, launch)
    # Only the process backend's server runs in this Python.
    installed = installed_versions() if job.backend.name == "process" else None
    follower = LogFollower(log, installed)

    def waiting(waited: float) -> None:
        job.observer.waiting(name, waited)
        _tell_known(job, name, follower)

    job.observer.starting(step, job.clock.left_s())
    begun = time.monotonic()
    try:
        with job.backend.serve(
            job.commands[name],
            log,
            job.rig.server.startup_timeout_s,
            waiting,
        ) as server:
            ready = time.monotonic() - begun
            job.clock.done(step, ready)
            _record_launch(job, name, launch, ready, server)
            levels = [c for c in job.plan.levels if any(c == level for _, level in passes)]
            _warm_up(job, server, name, launch, levels, where)
            for sweep, level in passes:
                where.update(sweep=sweep, level=level)
                _one_pass(job, server, Step("sweep", name, launch, level, sweep))
                _tell_known(job, name, follower)
    except EngineError as error:
        record = FailureRecord(
            t=time.time(),
            scenario=name,
            launch=launch,
            sweep=where.get("sweep"),
            level=where.get("level"),
            sentence=error.sentence,
            remedy=error.remedy,
            log_tail=error.log_tail,
        )
        job.folder.append(record)
        job.observer.failed(record)
        job.clock.skip_server(name, launch)
        return False
    return True


def _tell_known(job: Measurement, name: str, follower: LogFollower) -> None:
    """Say which known troubles the server's log shows since the last look."""
    for hit in follower.new_hits():
        job.observer.note(
            f"{name}: the log shows {hit.issue.id}: {hit.issue.cause} {hit.issue.advice}"
        )


def server_info(server: ServerHandle) -> Mapping[str, Any]:
    """Ask a server what it is.

    Raises:
        EngineError: it does not answer with a JSON object.
    """
    try:
        info = http_json(f"{server.base_url}/server_info", timeout_s=30)
    except (OSError, ValueError) as error:
        if not server.alive():
            raise server.why_dead() from None
        raise EngineError(f"The server does not answer /server_info: {error}.") from None
    if not isinstance(info, dict):
        raise EngineError("The server's /server_info is not a JSON object.")
    return info


def _log_lines(log: Path | None) -> list[str]:
    if log is None:
        return []
    try:
        return log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _record_launch(
    job: Measurement, name: str, launch: int, ready: float, server: ServerHandle
) -> None:
    proof = prove(
        job.scenarios[name],
        job.rig,
        server_info(server),
        _log_lines(server.log),
        job.live_patches,
    )
    command = job.commands[name]
    record = LaunchRecord(
        t=time.time(),
        scenario=name,
        launch=launch,
        ready_s=ready,
        argv=command.argv,
        env=command.env,
        log=str(job.folder.log_path(name, launch).relative_to(job.folder.path)),
        proof=proof,
        container=server.details(),
        start=job.folder.start,
    )
    if job.resumed is not None:
        job.resumed.check_patches(name, proof.patches_live)
    job.folder.append(record)
    job.observer.launched(record)


def _warm_up(
    job: Measurement,
    server: ServerHandle,
    name: str,
    launch: int,
    levels: Sequence[int],
    where: dict[str, int],
) -> None:
    """Repeat each level with prompts of its own until two passes agree, at most ``max_warm_passes`` times."""
    for level in levels:
        where.update(sweep=-1, level=level)
        last = 0.0
        for warm in range(job.rig.repetition.max_warm_passes):
            tok_s = _one_pass(job, server, Step("warm", name, launch, level, warm)).tok_s
            if last and abs(tok_s - last) <= WARM_AGREEMENT * max(tok_s, last):
                break
            last = tok_s


def _one_pass(job: Measurement, server: ServerHandle, step: Step) -> LevelRecord:
    """Send one level once; append its requests and its summary.

    Raises:
        EngineError: the server died during the pass (what ended before is kept).
    """
    _check_time(job)
    job.observer.starting(step, job.clock.left_s())
    count = job.plan.requests[step.level]
    phase: Phase = "warmup" if step.kind == "warm" else "measure"
    prompts = (
        job.prompts.warm(count) if phase == "warmup" else job.prompts.measured(step.level, count)
    )
    requests = [
        Request(index=i, prompt_ids=ids, max_new_tokens=job.plan.tokens_in(phase))
        for i, ids in enumerate(prompts)
    ]
    endpoint = Endpoint(server.base_url, api="generate", stream=job.stream)
    logged = serverlog.size(server.log)

    def keep(result: RequestResult) -> None:
        # Written when it ends, not when the level ends: a killed run loses nothing that was measured.
        job.folder.append(_request_record(job, step, phase, prompts[result.index], result))

    level = run_level(
        endpoint,
        requests,
        ClosedLoop(step.level),
        timeout_s=job.rig.load.request_timeout_s,
        on_result=keep,
    )
    record = _level_record(job, step, phase, prompts, level)
    told = serverlog.figures(
        serverlog.since(server.log, logged),
        record.wall_s,
        each=serverlog.every_step(job.commands[step.scenario].argv),
    )
    record = record.model_copy(update={"server": told})
    job.folder.append(record)
    job.clock.done(step, record.wall_s)
    job.observer.passed(record)
    if record.failed and _has_died(server):
        raise server.why_dead()
    if record.failed == record.requests:
        detail = next((r.error.message for r in level.results if r.error), "")
        raise EngineError(
            f"Every request of {step.scenario} at C={step.level} failed: {detail}",
            "Look at the server's log.",
        )
    return record


def _has_died(server: ServerHandle) -> bool:
    """Return whether a server is dead or dying: its connections break a moment before its process ends."""
    deadline = time.monotonic() + DYING_S
    while server.alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _planned(job: Measurement, step: Step, phase: Phase, prompt: list[int]) -> int | None:
    spec = job.scenarios[step.scenario].speculative
    plain = plain_above(job.scenarios[step.scenario], job.rig)
    if job.pair_plan is None or spec is None or (plain is not None and step.level > plain):
        # Above the threshold how many steps a request takes depends on the batches that it met.
        return None
    return job.pair_plan.verify_steps(
        prompt, job.plan.tokens_in(phase), spec.topk, spec.num_steps, spec.num_draft_tokens
    )


def _request_record(
    job: Measurement, step: Step, phase: Phase, prompt: list[int], result: RequestResult
) -> RequestRecord:
    checked = job.pair_plan is not None and result.output_ids is not None
    mismatch = None
    if job.pair_plan is not None and result.output_ids is not None:
        mismatch = job.pair_plan.first_mismatch(prompt, result.output_ids)
    return RequestRecord(
        t=time.time(),
        scenario=step.scenario,
        launch=step.launch,
        sweep=step.sweep,
        level=step.level,
        phase=phase,
        index=result.index,
        send_s=result.send_ns * NS,
        first_s=None if result.first_ns is None else result.first_ns * NS,
        end_s=result.end_ns * NS,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        asked_tokens=job.plan.tokens_in(phase),
        cached_tokens=result.cached_tokens,
        verify_steps=result.spec_verify_ct,
        planned_verify_steps=_planned(job, step, phase, prompt),
        mismatch_at=mismatch,
        checked=checked,
        finish_reason=result.finish_reason,
        error=result.error.kind if result.error else None,
        error_detail=result.error.message[:300] if result.error else None,
    )


def _level_record(
    job: Measurement,
    step: Step,
    phase: Phase,
    prompts: list[list[int]],
    level: LevelResult,
) -> LevelRecord:
    metrics = summarize(level)
    good = [r for r in level.results if r.error is None]
    tokens = sum(r.completion_tokens or 0 for r in good)
    busy_s = sum(r.end_ns - r.send_ns for r in good) * NS
    verify = sum(r.spec_verify_ct or 0 for r in good)
    # A step of the baseline makes one token; the first token of each request comes from prefill.
    spec = job.scenarios[step.scenario].speculative
    steps = verify if spec else tokens
    planned_steps = [_planned(job, step, phase, prompts[r.index]) for r in good]
    planned = sum(s for s in planned_steps if s)
    asked = job.plan.tokens_in(phase) * len(good)
    return LevelRecord(
        t=time.time(),
        scenario=step.scenario,
        launch=step.launch,
        sweep=step.sweep,
        level=step.level,
        phase=phase,
        requests=len(level.results),
        failed=len(level.results) - len(good),
        wall_s=(level.end_ns - level.start_ns) * NS,
        output_tokens=tokens,
        tok_s=metrics.tok_s,
        steady_tok_s=metrics.steady_tok_s,
        effective_concurrency=metrics.effective_concurrency,
        accept_length=metrics.accept_length,
        planned_accept_length=asked / planned if planned else None,
        step_time_s=busy_s / steps if steps else None,
        latency_s=metrics.latency_s,
        ttft_s=metrics.ttft_s,
        tpot_s=metrics.tpot_s,
        itl_s=metrics.itl_s,
        cached_tokens=metrics.cached_tokens,
        client=asdict(level.health),
    )
