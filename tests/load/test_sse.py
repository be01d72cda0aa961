"""The event-stream parser against a slow, plain reading of the standard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.load.sse import Event, EventTooLargeError, SseParser
from tests.load.fuzzing import plain_events as plain


def read(pieces: list[bytes]) -> list[Event]:
    parser = SseParser()
    events = [e for piece in pieces for e in parser.feed(piece)]
    return events + parser.close()


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({c % (len(stream) + 1) for c in cuts})
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


payloads = st.one_of(
    st.text(max_size=30).map(lambda t: t.replace("\r", "").replace("\n", "")),
    st.sampled_from(['{"text":"é\\n𝄞","n":1}', "[DONE]", "", " two spaces", "data: no", ": no"]),
)
newline = st.sampled_from([b"\n", b"\r\n", b"\r"])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    end = draw(newline)
    parts = [b"\xef\xbb\xbf"] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 6))):
        for _ in range(draw(st.integers(0, 2))):
            parts.append(
                draw(
                    st.sampled_from(
                        [b": ping", b":", b"id: 7", b"retry: 1", b"event: error", b"odd"]
                    )
                )
                + end
            )
        for _ in range(draw(st.integers(0, 3))):
            parts.append(
                draw(st.sampled_from([b"data: ", b"data:"])) + draw(payloads).encode() + end
            )
        if draw(st.booleans()):
            parts.append(draw(st.sampled_from([end, end + end])))
    stream = b"".join(parts)
    # A connection can break anywhere.
    return stream[: len(stream) - draw(st.integers(0, 12))] if draw(st.booleans()) else stream


@given(streams(), st.lists(st.integers(0, 500), max_size=12))
def test_any_stream_cut_anywhere_is_read_as_the_standard_says(
    stream: bytes, cuts: list[int]
) -> None:
    assert read(cut(stream, cuts)) == plain(stream)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_any_bytes_at_all_are_read_alike_however_they_are_cut(raw: bytes, cuts: list[int]) -> None:
    assert read(cut(raw, cuts)) == read([raw]) == plain(raw)


@given(streams())
def test_byte_by_byte(stream: bytes) -> None:
    assert read([stream[i : i + 1] for i in range(len(stream))]) == plain(stream)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40), st.data())
def test_no_event_is_lost_or_doubled_between_packets_of_whole_events_and_others(
    numbers: list[int], data: st.DataObject
) -> None:
    # Most packets take the fast path; every other kind must leave it in the right state.
    end = data.draw(newline)
    stream = b"".join(b"data: %d" % n + end + end for n in numbers)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    assert [int(e.data) for e in read(cut(stream, cuts))] == numbers


def test_a_character_cut_in_two_comes_out_whole() -> None:
    raw = "data: 𝄞é\n\n".encode()
    for at in range(len(raw)):
        assert read([raw[:at], raw[at:]]) == [Event("𝄞é".encode())]


def test_an_event_without_its_blank_line_is_not_lost() -> None:
    assert read([b"data: 1\n\ndata: 2"]) == [Event(b"1"), Event(b"2")]
    assert read([b"data: 1\n\ndata: 2\n"]) == [Event(b"1"), Event(b"2")]


def test_named_events_keep_their_name_and_pass_it_to_no_other() -> None:
    assert read([b"event: error\ndata: x\n\ndata: y\n\n"]) == [Event(b"x", b"error"), Event(b"y")]


@pytest.mark.parametrize(
    "stream", [b"x" * 101, b"data: " + b"x" * 101 + b"\n\n", b"data: x\n" * 60]
)
def test_endless_lines_and_events_are_an_error_not_memory(stream: bytes) -> None:
    for size in (7, 1000):
        parser = SseParser(limit=100)
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        with pytest.raises(EventTooLargeError):
            [parser.feed(piece) for piece in pieces]


def test_the_limit_is_on_each_line_not_on_their_sum() -> None:
    parser = SseParser(limit=10)
    for _ in range(5):
        # In three reads each, of which none is an event of its own.
        assert parser.feed(b": 3456") == []
        assert parser.feed(b"7890") == []
        assert parser.feed(b"\n") == []
    parser.feed(b": 34567890")
    with pytest.raises(EventTooLargeError):
        parser.feed(b"1")


def test_a_line_feed_belongs_to_the_carriage_return_right_before_it_only() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"data: b") == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"\n") == [Event(b"a\nb")]
