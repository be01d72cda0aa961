from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kit.attempts import finished, planned_passes, settle
from kit.records import AnyRecord, FailureRecord, ResumeRecord
from tests.factory import level_record, plan, request_record


def failure(**changes: object) -> FailureRecord:
    data = {"t": 1.0, "scenario": "baseline", "launch": 0, "sentence": "It died."}
    return FailureRecord.model_validate({**data, **changes})


RESUME = ResumeRecord(t=2.0, start=1)


def test_without_a_resumption_everything_counts() -> None:
    records: list[AnyRecord] = [request_record(), level_record(failed=1), failure()]
    settled = settle(records)
    assert settled.records == records
    assert (settled.resumes, settled.set_aside, settled.healed) == (0, [], [])


def test_a_whole_pass_is_kept_and_an_unfinished_one_set_aside() -> None:
    whole = [request_record(sweep=0, index=i) for i in range(2)]
    half = request_record(sweep=1)
    again = [request_record(sweep=1, index=i) for i in range(2)]
    settled = settle([*whole, level_record(sweep=0), half, RESUME, *again, level_record(sweep=1)])
    assert settled.set_aside == [half]
    assert [r for r in settled.records if r.kind == "request"] == [*whole, *again]


def test_a_pass_with_a_failed_request_is_measured_again() -> None:
    bad = request_record(error="reset")
    settled = settle([bad, level_record(failed=1), failure(), RESUME])
    assert settled.records == []
    assert settled.set_aside == [bad]
    assert [f.sentence for f in settled.healed] == ["It died."]


def test_a_failure_after_the_resumption_counts() -> None:
    late = failure(sentence="It died again.")
    assert settle([failure(), RESUME, late]).records == [late]


def test_a_wrong_output_is_never_set_aside() -> None:
    wrong = request_record(mismatch_at=3, checked=True)
    assert settle([wrong, RESUME]).records == [wrong]


def test_warm_up_is_kept() -> None:
    warm = request_record(phase="warmup")
    assert settle([warm, RESUME]).records == [warm]


records = st.lists(
    st.one_of(
        st.builds(
            lambda sweep, index, error: request_record(sweep=sweep, index=index, error=error),
            st.integers(0, 2),
            st.integers(0, 2),
            st.sampled_from([None, "reset"]),
        ),
        st.builds(
            lambda sweep, failed: level_record(sweep=sweep, failed=failed),
            st.integers(0, 2),
            st.integers(0, 1),
        ),
        st.just(failure()),
        st.just(RESUME),
    ),
    max_size=20,
)


@given(records)
def test_nothing_vanishes(given_records: list[AnyRecord]) -> None:
    settled = settle(given_records)
    asked = [r for r in given_records if r.kind == "request"]
    kept = [r for r in settled.records if r.kind == "request"]
    assert len(kept) + len(settled.set_aside) == len(asked)
    assert settled.resumes == sum(r.kind == "resume" for r in given_records)
    # What counts as finished is never lost by a resumption.
    assert finished(settled.records) == finished(given_records)


def test_planned_passes() -> None:
    assert planned_passes(plan()) == 3 * 2 * 3 * 2
