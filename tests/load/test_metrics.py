"""Metrics of a level: worked examples and identities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.load import (
    ClientHealth,
    ClosedLoop,
    LevelResult,
    Poisson,
    RequestError,
    RequestResult,
    summarize,
)
from kit.load.metrics import full_window, percentiles, token_gaps

HEALTH = ClientHealth(0, 0, 0, False)
S = 1_000_000_000


def result(
    send: int,
    end: int,
    tokens: int = 10,
    chunks: list[tuple[int, int]] | None = None,
    index: int = 0,
) -> RequestResult:
    found = RequestResult(index=index, send_ns=send, end_ns=end, completion_tokens=tokens)
    if chunks:
        found.chunks, found.first_ns = chunks, chunks[0][0]
    return found


def level(results: list[RequestResult]) -> LevelResult:
    return LevelResult(
        results, min(r.send_ns for r in results), max(r.end_ns for r in results), HEALTH
    )


def test_a_speculative_chunks_gap_is_shared_by_its_tokens() -> None:
    metrics = summarize(level([result(0, 5 * S, 5, [(S, 1), (4 * S, 4), (5 * S, 5)])]))
    assert metrics.ttft_s["p50"] == 1
    assert metrics.tpot_s["p50"] == 1
    # Counting chunks would have said 3 s and 1 s.
    assert metrics.itl_s == dict.fromkeys(("p50", "p90", "p95", "p99"), 1.0)


def test_gaps_count_each_token_once() -> None:
    gaps = token_gaps([result(0, 9 * S, 6, [(S, 2), (3 * S, 3), (9 * S, 6)])])
    assert list(gaps) == [2, 2, 2, 2]
    assert list(token_gaps([result(0, S, 5, [(S, 5)]), result(0, S)])) == []


def test_time_per_token_leaves_the_tokens_of_the_first_chunk_out() -> None:
    metrics = summarize(level([result(0, 9 * S, 6, [(S, 2), (9 * S, 6)])]))
    assert metrics.tpot_s["p50"] == 2


def test_without_running_counts_there_are_no_gaps_but_a_mean() -> None:
    one = result(0, 10 * S, 5, [(9 * S, 5)])
    one.first_ns = S
    metrics = summarize(level([one]))
    assert metrics.itl_s == {}
    assert metrics.tpot_s["p50"] == 2


def test_time_per_token_begins_with_the_first_count_where_text_came_before_it() -> None:
    one = result(0, 9 * S, 6, [(5 * S, 2), (9 * S, 6)])
    one.first_ns = S
    metrics = summarize(level([one]))
    # Four tokens in the four seconds between the counts.
    assert (metrics.ttft_s["p50"], metrics.tpot_s["p50"]) == (1, 1)


def test_steady_window_ends_when_nothing_was_left_to_send() -> None:
    # Four slots for three seconds; one more request runs alone for five.
    results = [result(0, 3 * S, 30) for _ in range(4)] + [result(3 * S, 8 * S, 50)]
    assert full_window(results) == (0, 3 * S)
    metrics = summarize(level(results))
    assert metrics.tok_s == pytest.approx(170 / 8)
    assert metrics.steady_tok_s == pytest.approx(40)
    assert metrics.steady_s == 3
    assert metrics.effective_concurrency == pytest.approx(17 / 8)


def test_steady_window_counts_chunks_where_they_came() -> None:
    early = result(0, 4 * S, 8, [(S, 1), (2 * S, 2), (3 * S, 3), (4 * S, 8)])
    late = result(S, 6 * S, 4, [(2 * S, 1), (5 * S, 4)])
    # Full from 1 s to 4 s: of the first request 7 tokens came after the start, of the second 1 before the end.
    assert full_window([early, late]) == (S, 4 * S)
    assert summarize(level([early, late])).steady_tok_s == pytest.approx(8 / 3)


def test_an_open_loop_has_no_steady_window() -> None:
    found = level([result(0, S)])
    found.arrival = Poisson(1)
    assert summarize(found).steady_tok_s is None
    found.arrival = ClosedLoop(1)
    assert summarize(found).steady_tok_s == pytest.approx(10)


def test_failed_requests_bring_no_tokens_and_no_times() -> None:
    bad = result(0, 100 * S, 7)
    bad.error = RequestError("timeout", "m")
    good = result(0, 2 * S, 10)
    good.spec_verify_ct, good.cached_tokens = 4, 3
    metrics = summarize(level([good, bad]))
    assert metrics.tok_s == pytest.approx(10 / 100)
    assert metrics.latency_s["p99"] == 2
    assert metrics.accept_length == 2.5
    assert (metrics.cached_tokens, metrics.errors, metrics.error_kinds) == (3, 1, {"timeout": 1})


def test_cached_tokens_that_no_answer_told_are_unknown_and_not_none() -> None:
    silent, told, bad = result(0, S), result(0, S, index=1), result(0, S, index=2)
    told.cached_tokens, bad.cached_tokens, bad.error = 0, 5, RequestError("reset", "m")
    assert summarize(level([silent, bad])).cached_tokens is None
    assert summarize(level([silent, told, bad])).cached_tokens == 0
    told.cached_tokens = 7
    assert summarize(level([silent, told])).cached_tokens == 7


def test_accept_length_weighs_by_steps_and_is_none_without_speculation() -> None:
    a, b = result(0, S, 30), result(0, S, 10)
    assert summarize(level([a, b])).accept_length is None
    a.spec_verify_ct, b.spec_verify_ct = 10, 10
    assert summarize(level([a, b])).accept_length == 2.0


def test_percentiles_are_interpolated_order_statistics() -> None:
    assert percentiles([]) == {}
    found = percentiles([float(i) for i in range(101)])
    assert found == {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
    assert percentiles([1.0, 2.0])["p90"] == pytest.approx(1.9)


rows = st.tuples(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 99))


@given(st.lists(rows, min_size=1, max_size=20))
def test_metrics_of_any_level_are_sane(found: list[tuple[int, int, int]]) -> None:
    results = [result(s, s + d, n) for s, d, n in found]
    whole = level(results)
    metrics = summarize(whole)
    span = (whole.end_ns - whole.start_ns) * 1e-9
    assert metrics.tok_s * span == pytest.approx(sum(n for _, _, n in found))
    assert metrics.effective_concurrency * span == pytest.approx(sum(d for _, d, _ in found) * 1e-9)
    assert metrics.effective_concurrency <= len(found) + 1e-6
    assert (
        metrics.latency_s["p50"]
        <= metrics.latency_s["p99"]
        <= max(d for _, d, _ in found) * 1e-9 + 1e-9
    )
    window = full_window(results)
    assert window is None or whole.start_ns <= window[0] < window[1] <= whole.end_ns


@given(st.integers(1, 8), st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_a_closed_loop_is_full_all_through_its_window(slots: int, lengths: list[int]) -> None:
    # Simulate: each slot takes the next request when it is free.
    free, results = [0] * slots, []
    for length in lengths:
        at = free.index(min(free))
        results.append(result(free[at], free[at] + length, length))
        free[at] += length
    window = full_window(results)
    if window is None:
        return
    most = min(slots, len(lengths))
    for t in range(window[0], window[1]):
        assert sum(r.send_ns <= t < r.end_ns for r in results) == most
    # Every request makes one token a tick: the steady rate is exactly the number of slots.
    assert summarize(level(results)).steady_tok_s == pytest.approx(most * 1e9)


def test_the_window_opens_when_the_loop_was_full_for_the_first_time() -> None:
    # Two at once, then one after the other: full from the start, although it is refilled later.
    rows = [result(0, 10 * S), result(0, 2 * S, index=1), result(2 * S + 1, 6 * S, index=2)]
    assert full_window(rows) == (0, 6 * S)
    assert full_window([]) is None
    assert full_window([result(0, 0)]) is None


def test_a_level_without_any_length_has_no_rates() -> None:
    metrics = summarize(LevelResult([result(5, 5)], 5, 5, HEALTH))
    assert (metrics.tok_s, metrics.effective_concurrency) == (0.0, 0.0)
