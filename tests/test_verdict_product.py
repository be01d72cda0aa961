"""The server's log as a witness beside the client: the product of the factors, and where a change comes from."""

from __future__ import annotations

from typing import Any

import pytest

from kit import serverlog
from kit.golden import Factors, Golden
from kit.recording import record
from kit.records import LevelRecord, RunData, ServerFigures
from kit.telemetry import GpuProcess, GpuSample, TelemetryHeader, TelemetrySample
from kit.verdict import judge
from kit.verdict.cause import cause_between, find_cause
from kit.verdict.guards import all_findings
from kit.verdict.product import product_error, product_findings
from tests.factory import level_record, manifest, plan, run_data
from tests.test_serverlog import line

STEPS, REQUESTS, TOKENS, STEP_S = 480, 12, 1200, 0.01


def told(**changes: Any) -> ServerFigures:
    """A server that decoded 4 at once in 480 request-steps of 10 ms."""
    data = {
        "lines": STEPS // 4,
        "running_mean": 4.0,
        "running_max": 4,
        "queue_max": 0,
        "concurrency": 4.0,
        "mean_step_s": STEP_S,
        "request_steps": STEPS,
        "decoded_tokens": TOKENS - REQUESTS,
    }
    return ServerFigures.model_validate({**data, **changes})


def passed(server: ServerFigures | None, *, steps: float = STEPS, **changes: Any) -> LevelRecord:
    """A pass of a speculating scenario; the client's figures multiply to its throughput by construction."""
    wall = (
        (server.concurrency if server and server.concurrency else 4.0) ** -1
        * STEPS
        * (server.mean_step_s if server and server.mean_step_s else STEP_S)
    )
    data = {
        "scenario": "spec-v2",
        "level": 4,
        "requests": REQUESTS,
        "output_tokens": TOKENS,
        "wall_s": wall,
        "tok_s": TOKENS / wall,
        "accept_length": TOKENS / steps,
        "effective_concurrency": 4.0,
        "step_time_s": 4.0 * wall / steps,
        "server": server,
    }
    return level_record(**{**data, **changes})


def run_of(server: ServerFigures | None, launches: int = 2, **changes: Any) -> RunData:
    rows = [
        passed(server, launch=i, sweep=j, **changes).model_copy()
        for i in range(launches)
        for j in range(2)
    ]
    # Noise of some per mille, or no interval could be made.
    rows = [
        r.model_copy(update={"tok_s": r.tok_s * (1 + 0.002 * (i % 3))}) for i, r in enumerate(rows)
    ]
    return run_data(
        rows, manifest=manifest(plan=plan(scenarios=["spec-v2"], levels=[4], requests={4: 12}))
    )


def ids(run: RunData) -> list[str]:
    return [f.id for f in product_findings(run)]


class TestProduct:
    def test_it_holds_where_log_and_requests_count_the_same_steps(self) -> None:
        assert product_error(passed(told())) == pytest.approx(0, abs=1e-9)
        assert ids(run_of(told())) == []

    def test_without_speculation_the_first_token_of_each_request_is_prefills(self) -> None:
        steps = TOKENS - REQUESTS
        server = told(request_steps=steps, concurrency=4.0, mean_step_s=STEP_S)
        wall = steps * STEP_S / 4
        row = passed(server, accept_length=None, wall_s=wall, tok_s=TOKENS / wall)
        assert product_error(row) == pytest.approx(0, abs=1e-9)

    def test_one_step_more_for_each_request_is_overlap_and_named(self) -> None:
        run = run_of(told(), steps=STEPS - REQUESTS)
        assert product_error(run.levels[0]) == pytest.approx(
            REQUESTS / (STEPS - REQUESTS), rel=0.01
        )
        note = next(f for f in product_findings(run) if f.id != "step-times-differ")
        assert (note.id, note.severity) == ("steps-beyond-the-end", "note")
        assert "480 steps in its log, 468 by the requests' own counts" in note.seen

    @pytest.mark.parametrize("steps", [STEPS - 3 * REQUESTS, STEPS + 8])
    def test_other_numbers_of_steps_are_a_warning_that_says_which_disagree(
        self, steps: int
    ) -> None:
        found = list(product_findings(run_of(told(), steps=steps)))
        assert found[0].id == "factors-do-not-multiply"
        assert found[0].severity == "warning"
        assert f"480 in the server's log, {steps} by the requests' own counts" in found[0].seen

    def test_time_outside_the_steps_is_a_note_with_both_figures(self) -> None:
        run = run_of(told(concurrency=3.2))
        (note,) = product_findings(run)
        assert note.id == "step-times-differ"
        assert "+25.0%, and its requests in flight are +25.0%" in note.seen

    def test_a_log_of_every_fortieth_step_gives_no_product(self) -> None:
        thin = told(concurrency=None, mean_step_s=None, request_steps=None, decoded_tokens=None)
        assert product_error(passed(thin)) == pytest.approx(0, abs=1e-9)
        assert ids(run_of(thin)) == []


def golden() -> Golden:
    return record(run_of(told(), launches=3), "test", decides="levels")


class TestOrigin:
    """By the client's clock all four look alike: four in flight, slower steps."""

    @pytest.mark.parametrize(
        ("server", "client", "factor", "origin"),
        [
            (told(mean_step_s=0.02), {}, "step time", "steps"),
            (
                told(concurrency=1.0, running_mean=1.0, running_max=1, queue_mean=3, queue_max=3),
                {},
                "effective concurrency",
                "cap",
            ),
            (told(concurrency=2.0), {"client_bound": True}, "effective concurrency", "client"),
            (told(concurrency=2.0), {}, "effective concurrency", "load"),
        ],
    )
    def test_the_servers_log_tells_them_apart(
        self, server: ServerFigures, client: dict[str, Any], factor: str, origin: str
    ) -> None:
        run = run_of(server, client=client)
        cause = find_cause(run, golden(), "spec-v2", 4)
        assert cause is not None
        assert (cause.main, cause.origin, cause.witness) == (factor, origin, "server")
        again = cause_between(run_of(told()), run, "spec-v2", 4)
        assert again is not None
        assert (again.main, again.origin, again.witness) == (factor, origin, "server")
        assert [c.factor for c in cause.factors if c.moved] == [factor]

    def test_accept_length(self) -> None:
        # Twice the steps for the same tokens.
        server = told(request_steps=2 * STEPS)
        wall = 2 * STEPS * STEP_S / 4
        run = run_of(server, steps=2 * STEPS, wall_s=wall, tok_s=TOKENS / wall)
        cause = find_cause(run, golden(), "spec-v2", 4)
        assert cause is not None
        assert (cause.main, cause.origin) == ("accept length", "draft")
        assert cause.product_error == pytest.approx(0, abs=0.005)

    def test_without_the_servers_figures_on_both_sides_the_clients_are_compared(self) -> None:
        thin = golden()
        factors = thin.factors_at("spec-v2", 4)
        kept = factors.model_dump(exclude={"decoding", "decode_step_s"})
        old = thin.model_copy(update={"factors": {"spec-v2": {4: Factors.model_validate(kept)}}})
        cause = find_cause(run_of(told(concurrency=2.0)), old, "spec-v2", 4)
        assert cause is not None
        assert (cause.main, cause.witness) == ("step time", "client")

    def test_an_invalid_run_gets_its_cause_too(self) -> None:
        server = told(concurrency=1.0, running_mean=1.0, running_max=1, queue_mean=3, queue_max=3)
        base = golden()
        run = run_of(server)
        result = judge(run, base.model_copy(update={"fingerprint": {}}))
        assert result.status == "INVALID"
        assert [c.origin for c in result.causes] == ["cap"]


class TestWholePass:
    PREFILL = "Prefill batch, #new-seq: 1, #new-token: 32, #running-req: {n}, #queue-req: 0\n"

    def test_steps_and_times_add_up(self) -> None:
        # Tokens over throughput: 10 ms, 20 ms, 20 ms.
        text = (
            self.PREFILL.format(n=0)
            + line(2, 1.0)
            + line(2, 500.0)
            + line(4, 500.0)
            + line(4, 500.0)
        )
        found = serverlog.figures(text, 0.1, each=True)
        assert found is not None
        # The first step's time began before the pass: it is taken to be as long as the median, 20 ms.
        assert found.request_steps == 12
        assert found.decoded_tokens == pytest.approx(30)
        assert found.concurrency == pytest.approx((2 * 20 + 2 * 10 + 4 * 20 + 4 * 20) / 100)
        assert found.mean_step_s == pytest.approx(0.220 / 12)

    def test_a_step_after_idleness_is_not_as_long_as_the_idleness(self) -> None:
        text = "".join(
            [self.PREFILL.format(n=0), line(1, 250.0), line(1, 250.0), line(1, 250.0)] * 2
        ).replace(line(1, 250.0), line(1, 2.5), 0)
        slow_first = self.PREFILL.format(n=0) + line(1, 2.5) + line(1, 250.0) + line(1, 250.0)
        found, plain = (serverlog.figures(t, 1.0, each=True) for t in (slow_first * 2, text))
        assert found is not None
        assert plain is not None
        assert found.concurrency == pytest.approx(plain.concurrency) == pytest.approx(0.06)

    def test_a_prefill_beside_running_requests_is_part_of_the_step(self) -> None:
        text = self.PREFILL.format(n=0) + line(1, 1.0) + line(1, 250.0) + self.PREFILL.format(n=1)
        found = serverlog.figures(text + line(1, 100.0), 1.0, each=True)
        assert found is not None
        assert found.mean_step_s == pytest.approx((0.010 + 0.0175 + 0.025) / 3)

    def test_steps_of_the_pass_before_are_left_out(self) -> None:
        text = line(8, 1.0) + self.PREFILL.format(n=0) + line(1, 250.0) + line(1, 250.0)
        found = serverlog.figures(text, 1.0, each=True)
        assert found is not None
        assert found.request_steps == 2

    def test_a_line_every_forty_steps_gives_none(self) -> None:
        found = serverlog.figures(self.PREFILL.format(n=0) + line(1, 1.0) + line(1, 250.0), 1.0)
        assert found is not None
        assert (found.concurrency, found.request_steps) == (None, None)

    @pytest.mark.parametrize(
        ("argv", "each"),
        [
            (["-m", "x"], False),
            (["--decode-log-interval", "1"], True),
            (["--decode-log-interval", "1", "--decode-log-interval", "40"], False),
            (["--decode-log-interval=1"], True),
            (["--decode-log-interval"], False),
        ],
    )
    def test_it_is_known_from_the_command(self, argv: list[str], each: bool) -> None:
        assert serverlog.every_step(argv) is each


class TestForeignProcess:
    @staticmethod
    def run(mib: int, ours: bool | None = False) -> RunData:
        row = level_record(t=100.0, wall_s=10.0)
        process = GpuProcess(pid=4711, memory_mib=mib, ours=ours)
        server = GpuProcess(pid=1, memory_mib=90_000, ours=True)
        samples = [
            TelemetrySample(t=90.0 + i, gpus=[GpuSample(index=0, processes=[process, server])])
            for i in range(11)
        ]
        header = TelemetryHeader(t=80.0, interval_s=1.0, cpus=2)
        return run_data([row], telemetry=samples, telemetry_header=header)

    def severity(self, run: RunData) -> list[str]:
        return [f.severity for f in all_findings(run, None) if f.id == "gpu-shared"]

    def test_one_that_holds_a_models_worth_of_memory_voids_the_run(self) -> None:
        run = self.run(20_000)
        assert self.severity(run) == ["invalid"]
        result = judge(run, None)
        assert result.status == "INVALID"
        assert "pid 4711 on GPU 0, with 20000 MiB" in result.headline

    def test_a_desktops_is_a_warning_and_ones_own_nothing(self) -> None:
        assert self.severity(self.run(80)) == ["warning"]
        assert self.severity(self.run(20_000, ours=True)) == []
        assert self.severity(self.run(20_000, ours=None)) == []


def test_what_telemetry_saw_of_the_machine_is_told_with_the_cause() -> None:
    slow = run_of(told(mean_step_s=0.02))
    rows = [r.model_copy(update={"t": 100.0}) for r in slow.levels]
    samples = [TelemetrySample(t=90.0 + i, cpu=0.9, cpu_ours=0.4) for i in range(11)]
    header = TelemetryHeader(t=80.0, interval_s=1.0, cpus=2)
    rows = [r.model_copy(update={"wall_s": 10.0}) for r in rows]
    run = slow.model_copy(update={"levels": rows, "telemetry": samples, "telemetry_header": header})
    result = judge(run, golden().model_copy(update={"fingerprint": {}}))
    (cause,) = result.causes
    assert cause.main == "step time"
    assert "seen meanwhile: Other processes had 50% of the processors" in cause.text


def test_another_amount_of_work_is_said_in_the_headline() -> None:
    base = golden().model_copy(update={"output_tokens": 47})
    result = judge(run_of(told()), base)
    assert result.status == "NOT COMPARABLE"
    assert "Golden has 47 output tokens a request, this run 48" in result.headline
    assert "another than golden's" not in result.headline


def test_a_noisy_run_says_how_many_launches_would_decide_or_that_golden_is_the_limit() -> None:
    def noisy(launches: int, spread: float, shift: float = 1.0) -> RunData:
        run = run_of(told(), launches=launches)
        signs = (1, -1, 0.5, -0.5)
        rows = [
            r.model_copy(update={"tok_s": r.tok_s * shift * (1 + spread * signs[r.launch % 4])})
            for r in run.levels
        ]
        return run.model_copy(update={"levels": rows})

    base = record(noisy(20, 0.06), "test", decides="levels").model_copy(update={"fingerprint": {}})
    result = judge(noisy(2, 0.06, 0.95), base)
    assert result.status == "INCONCLUSIVE"
    (note,) = (f for f in result.findings if f.id == "too-noisy")
    assert "spec-v2 at C=4, against golden, is known to" in note.seen
    assert "launches are expected to decide: --launches" in note.remedy
    poor = record(noisy(2, 0.04), "test", decides="levels").model_copy(update={"fingerprint": {}})
    result = judge(noisy(4, 0.04, 0.97), poor)
    assert result.status == "INCONCLUSIVE"
    (note,) = (f for f in result.findings if f.id == "too-noisy")
    assert note.remedy.startswith("Golden's own launches are the limit")


def test_what_telemetry_saw_is_told_once() -> None:
    result = judge(TestForeignProcess.run(20_000), None)
    assert [f.id for f in result.findings].count("gpu-shared") == 1
