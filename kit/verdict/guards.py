"""What makes a run's numbers mean nothing. Each guard looks at the records and returns findings.

Order does not matter: one invalid finding makes the run INVALID, and all are shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from statistics import median

from kit import stats
from kit.attempts import finished, planned_passes
from kit.golden import Golden
from kit.records import LevelRecord, RequestRecord, RunData
from kit.verdict.machine import machine_findings
from kit.verdict.model import Finding

# A pass is counted as capped when fewer requests than this share of C were in flight where C could be. Closed
# loops with few requests have a long tail, so the bound is on the best pass of a level, not on each.
CAPPED_SHARE = 0.5
ACCEPT_SLACK = 0.1
# A pass nearer to the median than this is no outlier, however close together the others are.
LEAST_OUTLYING = 0.02


def _measured(run: RunData) -> list[RequestRecord]:
    return [r for r in run.requests if r.phase == "measure"]


def wrong_worker(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """The server runs another worker, engine, setting or patch set than the scenario says."""
    seen: dict[tuple[str, str], None] = {}
    for launch in run.launches:
        for problem in launch.proof.problems:
            seen[(launch.scenario, problem)] = None
    for scenario, problem in seen:
        kind = problem.split(":")[0] if problem.startswith(("wrong", "missing")) else ""
        engine = kind in ("wrong worker", "wrong engine")
        yield Finding(
            id={
                "wrong worker": "wrong-worker",
                "wrong engine": "wrong-engine",
            }.get(
                kind, "missing-patch" if problem.startswith("missing patch") else "wrong-setting"
            ),
            severity="invalid",
            scenario=scenario,
            seen=f"{scenario}: {problem}.",
            why="Both speculative scenarios start and look healthy on engines that run one worker for both; "
            "their comparison would be void."
            if engine
            else "The server does not run what the scenario says, so its numbers are another scenario's.",
            remedy=(
                "Use SGLang 0.5.12.post1 from the kit's lock and look at "
                if engine
                else "Take away the flag, variable or patch state that differs from "
            )
            + f"`kit show {scenario}`"
            + (" and the server's log." if engine else ", and measure again."),
        )


def not_served(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """A scenario ended early: its server did not start, died, or stopped answering."""
    for failure in run.failures:
        where = "at start"
        if failure.level is not None:
            phase = "in the warm-up of" if failure.sweep == -1 else f"in sweep {failure.sweep} at"
            where = f"{phase} C={failure.level}"
        yield Finding(
            id="server-died",
            severity="invalid",
            scenario=failure.scenario,
            level=failure.level,
            seen=f"{failure.scenario} ended early, launch {failure.launch}, {where}: {failure.sentence}",
            why="What is missing cannot be judged; what was measured before is kept.",
            remedy=failure.remedy or "Read the server's log in the run folder.",
        )


def request_errors(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """Requests failed in measured passes."""
    failed: dict[tuple[str, int], list[RequestRecord]] = defaultdict(list)
    for r in _measured(run):
        if r.error:
            failed[(r.scenario, r.level)].append(r)
    for (scenario, level), bad in sorted(failed.items()):
        kinds = ", ".join(
            f"{n}× {kind}" for kind, n in Counter(r.error for r in bad).most_common(4)
        )
        yield Finding(
            id="request-errors",
            severity="invalid",
            scenario=scenario,
            level=level,
            seen=f"{scenario} at C={level}: {len(bad)} requests failed ({kinds}); first: {bad[0].error_detail}",
            why="Throughput with failed requests is not the throughput of the system.",
            remedy="Read the server's log in the run folder; repeat the run once the cause is gone.",
        )


def token_counts(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """The server produced another number of tokens than was asked for."""
    wrong: dict[tuple[str, int], list[RequestRecord]] = defaultdict(list)
    for r in _measured(run):
        if not r.error and r.completion_tokens != r.asked_tokens:
            wrong[(r.scenario, r.level)].append(r)
    for (scenario, level), bad in sorted(wrong.items()):
        yield Finding(
            id="token-count",
            severity="invalid",
            scenario=scenario,
            level=level,
            seen=f"{scenario} at C={level}: {len(bad)} requests returned {bad[0].completion_tokens} tokens "
            f"and not the {bad[0].asked_tokens} asked for.",
            why="Runs with different amounts of work cannot be compared.",
            remedy="Check that the server honours ignore_eos and that the context length is large enough.",
        )


def cached_tokens(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """Prompts were served from a prefix cache."""
    seen: dict[tuple[str, int], list[RequestRecord]] = defaultdict(list)
    for r in _measured(run):
        # A chat template's head may be shared by all prompts; a prompt's own words may not.
        if r.cached_tokens and r.prompt_tokens and r.cached_tokens > 0:
            seen[(r.scenario, r.level)].append(r)
    for (scenario, level), bad in sorted(seen.items()):
        yield Finding(
            id="cached-tokens",
            severity="invalid",
            scenario=scenario,
            level=level,
            seen=f"{scenario} at C={level}: {len(bad)} requests found prompt tokens in a cache "
            f"({sum(r.cached_tokens or 0 for r in bad)} tokens).",
            why="A warm prefix cache has inflated published throughput by up to 86 % "
            "(https://github.com/vllm-project/vllm/issues/52884).",
            remedy="Start the server with --disable-radix-cache, as the kit's scenarios do.",
        )
    answered = [r for r in _measured(run) if not r.error]
    silent = sum(r.cached_tokens is None for r in answered)
    if silent:
        yield Finding(
            id="cache-unknown",
            severity="warning",
            seen=f"For {silent} of {len(answered)} answers the server did not say how many prompt tokens came from a "
            "cache.",
            why="That the prefix cache was cold is then not shown: unknown is not zero.",
            remedy="Start the server with --disable-radix-cache, as the kit's scenarios do.",
        )


def not_exact(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """A planted pair's output is not the planted sequence."""
    total: Counter[tuple[str, int]] = Counter()
    bad: dict[tuple[str, int], list[RequestRecord]] = defaultdict(list)
    for r in run.requests:
        if r.checked:
            total[(r.scenario, r.level)] += 1
            if r.mismatch_at is not None:
                bad[(r.scenario, r.level)].append(r)
    for (scenario, level), records in sorted(bad.items()):
        first = min(r.mismatch_at or 0 for r in records)
        yield Finding(
            id="not-exact",
            severity="invalid",
            scenario=scenario,
            level=level,
            seen=f"{scenario} at C={level}: {len(records)} of {total[(scenario, level)]} outputs differ from the "
            f"planted sequence, the earliest at output token {first}.",
            why="Greedy speculative decoding must not change the output; a fast wrong answer is worth nothing.",
            remedy="This is a bug in the engine, its kernels or a patch, not noise: keep the run folder and report it.",
        )


def unchecked(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """A planted pair was served and outputs came back without token ids, so exactness is unknown."""
    if run.manifest.pair.get("kind") != "planted":
        return
    missing = [r for r in _measured(run) if not r.error and not r.checked]
    if missing:
        yield Finding(
            id="not-checked",
            severity="invalid",
            seen=f"{len(missing)} outputs of the planted pair came back without token ids.",
            why="Exactness was not checked, so nothing shows that the server computed the right thing.",
            remedy="Measure over /generate, which returns output_ids.",
        )


def accept_length(run: RunData, golden: Golden | None) -> Iterator[Finding]:
    """A planted pair's accept length is off what its plan demands."""
    slack = golden.tolerance.accept_length if golden else ACCEPT_SLACK
    worst: dict[tuple[str, int], LevelRecord] = {}
    for r in run.levels:
        if r.phase == "measure" and r.accept_length and r.planned_accept_length:
            off = abs(r.accept_length - r.planned_accept_length)
            known = worst.get((r.scenario, r.level))
            if off > slack and (
                known is None
                or off > abs((known.accept_length or 0) - (known.planned_accept_length or 0))
            ):
                worst[(r.scenario, r.level)] = r
    for (scenario, level), r in sorted(worst.items()):
        assert r.accept_length is not None
        assert r.planned_accept_length is not None
        released_bug = (
            scenario in ("spec-v1", "spec-v1-topk1")
            and not run.manifest.rig.get("server", {}).get("cpu_plugin")
            and r.accept_length < r.planned_accept_length
            and level > 1
        )
        hint = (
            " In SGLang 0.5.12.post1 the v1 worker loses acceptance as the batch grows when CUDA graphs are on: "
            "docs/v1-acceptance.md has cause and figures."
            if released_bug
            else ""
        )
        # The released engine loses acceptance by itself: the published comparison ran it like that, so it
        # is told loudly and does not void the run.
        yield Finding(
            id="v1-acceptance-loss" if released_bug else "accept-length",
            severity="warning" if released_bug else "invalid",
            scenario=scenario,
            level=level,
            seen=f"{scenario} at C={level}: accept length {r.accept_length:.2f}, and the planted pair demands "
            f"{r.planned_accept_length:.2f} (allowed: ±{slack}).",
            why="Acceptance depends on the two models only; a deviation is a bug in the engine, not noise.",
            remedy="Keep the run folder and report it." + hint,
        )


def client_bound(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """The load client was the bottleneck of a level: in most of its passes, or in a few that something disturbed."""
    passes: Counter[tuple[str, int]] = Counter()
    bound: dict[tuple[str, int], list[str]] = defaultdict(list)
    for r in run.levels:
        if r.phase == "measure":
            passes[(r.scenario, r.level)] += 1
            if r.client.get("client_bound"):
                bound[(r.scenario, r.level)].append(str(r.client.get("bound_reason") or r.client))
    for (scenario, level), reasons in sorted(bound.items()):
        count = passes[(scenario, level)]
        mostly = 2 * len(reasons) >= count
        yield Finding(
            id="client-bound" if mostly else "client-disturbed",
            severity="invalid" if mostly else "warning",
            scenario=scenario,
            level=level,
            seen=f"{scenario} at C={level}: the load client was the bottleneck in {len(reasons)} of {count} passes: "
            f"{reasons[0]}.",
            why="The number would measure the client and not the server."
            if mostly
            else "Something else used the machine then; those passes are in the figures and widen the intervals.",
            remedy="Give the client an idle core, or see `kit bench --self-test` for what it can carry.",
        )


def capped(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """Fewer requests were decoded at once than the level says, in every pass.

    Two ways to see it: the server's log shows a queue beside fewer running requests than were sent at once; or the
    client never had enough in flight.
    """
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            passes = [r for r in run.measured(scenario, level) if not r.failed]
            if not passes:
                continue
            possible = min(level, max(r.requests for r in passes))
            told = [r.server for r in passes if r.server]
            best = max(r.effective_concurrency for r in passes)
            running = max((s.running_max for s in told), default=possible)
            queued = max((s.queue_max for s in told), default=0)
            if running < possible and queued:
                seen = (
                    f"running requests are capped: the server decoded at most {running} at once while up to "
                    f"{queued} waited in its queue (its log, {sum(s.lines for s in told)} lines)"
                )
            elif best < CAPPED_SHARE * possible:
                seen = f"on average {best:.1f} requests were in flight"
            else:
                continue
            yield Finding(
                id="concurrency-capped",
                severity="invalid",
                scenario=scenario,
                level=level,
                seen=f"{scenario} at C={level}: {seen}.",
                why="The level's concurrency was never reached, so the number is not of that level.",
                remedy="Look for a cap in /server_info and the server's log: --max-running-requests, or a KV cache "
                "too small for this many requests (--mem-fraction-static, --max-total-tokens).",
            )


def outlying(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """A measured pass is far from the others of its level. It stays in every figure."""
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            passes = [r for r in run.measured(scenario, level) if not r.failed and r.tok_s > 0]
            if not passes:
                continue
            middle = median(r.tok_s for r in passes)
            flags = stats.outliers([r.tok_s for r in passes])
            far = [
                r
                for r, flag in zip(passes, flags, strict=True)
                if flag and abs(r.tok_s / middle - 1) >= LEAST_OUTLYING
            ]
            if far:
                which = ", ".join(
                    f"launch {r.launch + 1} sweep {r.sweep + 1}: {r.tok_s / middle - 1:+.0%}"
                    for r in far[:4]
                )
                yield Finding(
                    id="outlier",
                    severity="note",
                    scenario=scenario,
                    level=level,
                    seen=f"{scenario} at C={level}: {len(far)} of {len(passes)} passes lie far from the median "
                    f"({which}).",
                    why="They are in every figure and make the intervals wider: nothing is dropped.",
                    remedy="Look for what else the machine did then; measure again if it was not the server.",
                )


def machine(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """Something else used the machine, or it slowed itself down."""
    yield from machine_findings(run)


def incomplete(run: RunData, _golden: Golden | None) -> Iterator[Finding]:
    """The run was interrupted, or its file has lines that cannot be read."""
    if run.manifest.status in ("interrupted", "running"):
        state = {True: "still being measured", False: "cut short: its kit was killed"}[
            run.being_written
        ]
        if run.manifest.status == "interrupted":
            state = "interrupted"
        yield Finding(
            id="incomplete",
            severity="warning",
            seen=f"The run is {state}; {len(finished(run.levels))} of {planned_passes(run.manifest.plan)} planned "
            f"passes and {len(run.requests)} requests are there.",
            why="What was measured is judged; what is missing is not.",
            remedy="Wait for its end."
            if run.being_written
            else "Measure the rest with `kit reproduce --resume RUN`.",
        )
    if run.resumes:
        failed = f"; before, {run.healed[0].sentence}" if run.healed else ""
        yield Finding(
            id="resumed",
            severity="warning" if run.healed else "note",
            seen=f"The run was taken up again {run.resumes} time{'s'[: run.resumes > 1]}; {len(run.set_aside)} "
            f"requests of passes that were cut short or failed are set aside, and those passes were measured again"
            f"{failed}",
            why="A launch may have been served by more than one server start, so the noise between launches is "
            "known a little less well.",
            remedy="Nothing; the records of both attempts are in samples.jsonl.",
        )
    if run.truncated_lines:
        yield Finding(
            id="truncated",
            severity="warning",
            seen=f"{run.truncated_lines} lines of samples.jsonl cannot be read.",
            why="A writer that was killed leaves a half line; more than one means damage.",
            remedy="If it is more than one, measure again.",
        )
    if not any(r.phase == "measure" for r in run.levels):
        yield Finding(
            id="nothing-measured",
            severity="invalid",
            seen="No level was measured.",
            why="There is nothing to judge.",
            remedy="See the findings above, or the run's logs.",
        )


GUARDS: tuple[Callable[[RunData, Golden | None], Iterator[Finding]], ...] = (
    wrong_worker,
    not_served,
    request_errors,
    token_counts,
    cached_tokens,
    not_exact,
    unchecked,
    accept_length,
    client_bound,
    capped,
    outlying,
    machine,
    incomplete,
)


def all_findings(run: RunData, golden: Golden | None) -> list[Finding]:
    """Return every finding of every guard."""
    return [finding for guard in GUARDS for finding in guard(run, golden)]
