"""What is read out of answers, without a network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import UserError
from kit.load.bodies import request_body
from kit.load.model import Api, Endpoint, Request, RequestResult
from kit.load.replies import Reply, ReplyError, load_object, reply_for, scan_count
from kit.load.sse import Event
from tests.load.scripted import meta, state


def reader(api: Api = "generate", asked: int = 6) -> Reply:
    request = Request(index=0, max_new_tokens=asked, prompt_ids=[1, 2])
    return reply_for(Endpoint("http://x", api, stream=True), request, RequestResult(0, 0), 0)


def feed(reply: Reply, values: list[Any], done: bool = True) -> RequestResult:
    for at, value in enumerate(values):
        reply.event(Event(json.dumps(value).encode()), (at + 1) * 10)
    if done:
        reply.event(Event(b"[DONE]"), 999)
    reply.finish()
    return reply.result


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize(
    "steps", [[6], [1, 6], [1, 2, 3, 4, 5, 6], [1, 4, 6], [3, 6], [2, 4, 6], [1, 2, 6]]
)
def test_generate_stream_whole_or_incremental(steps: list[int], incremental: bool) -> None:
    values, before = [], 0
    for done in steps:
        values.append(state(done, 6, before if incremental else 0))
        before = done
    values[-1]["meta_info"]["spec_verify_ct"] = 3
    result = feed(reader(), values)
    assert result.output_ids == [0, 1, 2, 3, 4, 5]
    assert result.text == "éééééé"
    assert list(result.chunks) == [((i + 1) * 10, n) for i, n in enumerate(steps)]
    assert (result.first_ns, result.completion_tokens, result.spec_verify_ct) == (10, 6, 3)
    assert (result.prompt_tokens, result.cached_tokens, result.finish_reason) == (2, 0, "length")


def test_the_counts_of_an_event_that_brings_no_token_are_not_a_chunk() -> None:
    result = feed(
        reader(asked=2), [state(0, 2), state(1, 2), state(1, 2), state(2, 2), state(2, 2)]
    )
    assert [n for _, n in result.chunks] == [1, 2]
    assert result.first_ns == 20


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([state(3, 6), state(2, 6)], "token-count"),
        ([state(3, 6), state(4, 6), state(5, 6), state(4, 6)], "token-count"),
        ([state(7, 7)], "token-count"),
        ([state(2, 6), {"error": {"message": "no memory"}}], "server-error"),
        (
            [state(1, 6), state(2, 6), state(3, 6), {"error": {"message": "no memory"}}],
            "server-error",
        ),
        ([{"object": "error", "message": "m"}], "server-error"),
        ([state(1, 1, finish_reason={"type": "abort", "message": "m"})], "server-error"),
        ([state(1, 6), state(2, 6), state(2, 6, finish_reason={"type": "abort"})], "server-error"),
        ([{"text": "x"}], "bad-json"),
        ([{"meta_info": {"completion_tokens": "3"}}], "bad-json"),
        ([{"meta_info": {"completion_tokens": -3}}], "bad-json"),
        ([{"meta_info": {"completion_tokens": True}}], "bad-json"),
        ([[1]], "bad-json"),
        ([], "truncated"),
        ([{**state(3, 6), "output_ids": [1]}], "token-count"),
    ],
)
def test_wrong_streams_have_a_name(values: list[Any], kind: str) -> None:
    with pytest.raises(ReplyError) as caught:
        feed(reader(), values)
    assert caught.value.error.kind == kind


def test_what_came_before_an_error_is_kept() -> None:
    reply = reader()
    with pytest.raises(ReplyError):
        feed(reply, [state(1, 6), state(3, 6), {"error": {"message": "died"}}])
    assert reply.result.completion_tokens == 3
    assert [n for _, n in reply.result.chunks] == [1, 3]


def test_a_stream_without_its_end_is_truncated() -> None:
    with pytest.raises(ReplyError, match="DONE"):
        feed(reader(), [state(1, 6), state(6, 6)], done=False)


@pytest.mark.parametrize("values", [[state(1, 6), state(2, 6), b"{broken"], [b"nope"]])
def test_events_that_are_not_json(values: list[Any]) -> None:
    reply = reader()
    *good, last = values
    for at, value in enumerate(good):
        reply.event(Event(json.dumps(value).encode()), at)
    with pytest.raises(ReplyError) as caught:
        reply.event(Event(last), 99)
    assert caught.value.error.kind == "bad-json"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**12) | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
HOSTILE = [
    '"completion_tokens":5}',
    '\\"completion_tokens":7,',
    'x"completion_tokens": 9',
    '"completion_tokens":',
]


@given(
    st.integers(0, 10**9),
    st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60)),
    json_values,
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
)
def test_scanning_for_the_count_agrees_with_parsing_or_gives_up(
    tokens: int, text: str, other: Any, separators: tuple[str, str], text_last: bool
) -> None:
    value = {
        "meta_info": {
            "a": other if not isinstance(other, dict) else 1,
            "completion_tokens": tokens,
            "z": 0,
        }
    }
    value = {**value, "text": text} if text_last else {"text": text, **value}  # type: ignore[dict-item]
    found = scan_count(json.dumps(value, separators=separators, ensure_ascii=False).encode())
    assert found in (tokens, None)
    if separators == (",", ":"):
        assert found == tokens


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b'{"completion_tokens":1', b'{"completion_tokens":}', b'{"completion_tokens":x}'],
)
def test_scanning_gives_up_on_anything_else(raw: bytes) -> None:
    assert scan_count(raw) is None


# -- the OpenAI-compatible forms


def openai(api: str, text: str, done: int | None, finish: str | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if api == "chat":
        choice["delta"] = {"content": text}
    else:
        choice["text"] = text
    value: dict[str, Any] = {"id": "x", "choices": [choice]}
    if done is not None:
        value["usage"] = {"prompt_tokens": 2, "completion_tokens": done}
    return value


def summary(done: int, cached: int = 0) -> dict[str, Any]:
    usage = {
        "prompt_tokens": 2,
        "completion_tokens": done,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {"id": "x", "choices": [], "usage": usage}


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_openai_stream_with_running_counts(api: Api) -> None:
    values = [
        openai(api, "a", 1),
        openai(api, "bc", 4),
        openai(api, "d", 6, "length"),
        summary(6, 1),
    ]
    result = feed(reader(api), values)
    assert list(result.chunks) == [(10, 1), (20, 4), (30, 6)]
    assert (result.text, result.first_ns, result.finish_reason) == ("abcd", 10, "length")
    assert (result.prompt_tokens, result.cached_tokens, result.completion_tokens) == (2, 1, 6)
    assert result.output_ids is None


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_openai_stream_with_a_final_count_only(api: Api) -> None:
    values = [openai(api, "a", None), openai(api, "b", None, "length"), summary(6)]
    result = feed(reader(api), values)
    # Two chunks came, and six tokens: nothing is made up about when.
    assert list(result.chunks) == [(20, 6)]
    assert (result.first_ns, result.completion_tokens) == (10, 6)


def test_chat_role_chunk_is_not_a_token() -> None:
    role = {
        "choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        "usage": {"completion_tokens": 0},
    }
    result = feed(reader("chat"), [role, openai("chat", "a", 1), openai("chat", "b", 6, "length")])
    assert result.first_ns == 20


def delta(part: dict[str, Any], done: int | None = None) -> dict[str, Any]:
    value: dict[str, Any] = {"choices": [{"index": 0, "delta": part, "finish_reason": None}]}
    return value if done is None else {**value, "usage": {"completion_tokens": done}}


WRITTEN: list[tuple[dict[str, Any], str]] = [
    ({"reasoning_content": "hm", "content": None}, "hm"),
    ({"reasoning": "hm"}, "hm"),
    ({"reasoning": "hm", "reasoning_content": "hm"}, "hm"),
    ({"refusal": "no"}, "no"),
    ({"content": None, "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}, "f"),
    ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}, {"index": 1, "function": {"name": "g"}}]}, "{g"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "text"), WRITTEN)
def test_reasoning_and_calls_of_tools_are_tokens(part: dict[str, Any], text: str) -> None:
    role = delta({"role": "assistant", "content": "", "tool_calls": []})
    # With running counts: each is a chunk, so that inter-token latency has its gap.
    result = feed(
        reader("chat"), [role, delta(part, 1), delta(part, 3), openai("chat", "b", 6, "length")]
    )
    assert list(result.chunks) == [(20, 1), (30, 3), (40, 6)]
    assert (result.first_ns, result.text) == (20, text * 2 + "b")
    # With a final count only: the first of them is the first token, the last is when the last token came.
    ending = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    result = feed(reader("chat"), [role, delta(part), delta(part), ending, summary(6)])
    assert (result.first_ns, list(result.chunks), result.text) == (20, [(30, 6)], text * 2)


@pytest.mark.parametrize("calls", [None, 5, [None], [{}], [{"function": 3}]])
def test_calls_of_tools_of_another_shape_are_no_tokens(calls: Any) -> None:
    result = feed(reader("chat"), [delta({"tool_calls": calls}), openai("chat", "b", 6, "length")])
    assert (result.first_ns, result.text) == (20, "b")


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": 2}, {"completion_tokens": None}, {"completion_tokens": 0}]
)
def test_a_usage_without_a_count_does_not_hide_the_first_token(
    api: Api, usage: dict[str, Any]
) -> None:
    values = [{**openai(api, text, None), "usage": usage} for text in "ab"]
    result = feed(reader(api), [*values, openai(api, "c", None, "length"), summary(6)])
    assert (result.first_ns, list(result.chunks)) == (10, [(30, 6)])


def test_openai_stream_may_lack_done_if_it_said_why_it_finished() -> None:
    assert (
        feed(reader("chat"), [openai("chat", "a", 6, "length")], done=False).completion_tokens == 6
    )
    with pytest.raises(ReplyError, match="finish reason"):
        feed(reader("chat"), [openai("chat", "a", 3)], done=False)


def test_openai_stream_without_usage_cannot_be_counted() -> None:
    with pytest.raises(ReplyError, match="usage"):
        feed(reader("chat"), [openai("chat", "a", None, "length")])


def test_openai_summary_that_contradicts_the_running_count() -> None:
    with pytest.raises(ReplyError) as caught:
        feed(reader("chat"), [openai("chat", "a", 5), summary(4)])
    assert caught.value.error.kind == "token-count"


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_openai_whole_answer(api: Api) -> None:
    choice = {"text": "hello", "message": {"content": "hello"}, "finish_reason": "length"}
    reply = reader(api)
    reply.whole(
        json.dumps(
            {"choices": [choice], "usage": {"prompt_tokens": 2, "completion_tokens": 6}}
        ).encode()
    )
    result = reply.result
    assert (result.text, result.completion_tokens, result.finish_reason) == ("hello", 6, "length")


def test_whole_answer_with_other_ids_than_its_count() -> None:
    with pytest.raises(ReplyError) as caught:
        reader().whole(json.dumps({**state(4, 4), "output_ids": [1, 2, 3]}).encode())
    assert caught.value.error.kind == "token-count"


# -- bodies


def body(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    value = json.loads(request_body(endpoint, request))
    assert isinstance(value, dict)
    return value


def test_bodies_ask_for_exactly_the_tokens() -> None:
    ids, text = Request(0, 9, prompt_ids=[4, 5]), Request(0, 9, text="hi")
    talk = Request(0, 9, messages=[{"role": "user", "content": "hi"}])
    sampling = {"temperature": 0, "max_new_tokens": 9, "ignore_eos": True}
    assert body(Endpoint("http://x"), ids) == {
        "input_ids": [4, 5],
        "sampling_params": sampling,
        "stream": False,
    }
    assert body(Endpoint("http://x", stream=True), text) == {
        "text": "hi",
        "sampling_params": sampling,
        "stream": True,
    }
    common = {"max_tokens": 9, "temperature": 0, "ignore_eos": True}
    assert body(Endpoint("http://x", "completions", model="m"), ids) == {
        "model": "m", "prompt": [4, 5], "stream": False, **common,
    }  # fmt: skip
    assert body(Endpoint("http://x", "chat", stream=True), talk) == {
        "model": "default", "messages": talk.messages, "stream": True, **common,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    assert body(Endpoint("http://x", "chat"), text)["messages"] == talk.messages
    final = body(Endpoint("http://x", "chat", stream=True, usage="final"), talk)
    assert final["stream_options"] == {"include_usage": True}
    unasked = body(Endpoint("http://x", "chat", stream=True, usage="unasked"), talk)
    assert "stream_options" not in unasked


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        ("generate", Request(0, 1, messages=[])),
        ("completions", Request(0, 1, messages=[])),
        ("chat", Request(0, 1, prompt_ids=[1])),
    ],
)
def test_a_prompt_that_an_api_cannot_take(api: Api, request_: Request) -> None:
    with pytest.raises(UserError):
        request_body(Endpoint("http://x", api), request_)


def test_meta_without_speculation_has_no_verify_steps() -> None:
    assert (
        feed(reader(), [{"output_ids": list(range(6)), "meta_info": meta(6, 6)}]).spec_verify_ct
        is None
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"error": {"message": "first", "code": 1}}, "first"),
        ({"object": "error", "message": "second"}, "second"),
        ({"error": "third"}, "third"),
        ({"error": {"code": 4}}, "{'code': 4}"),
    ],
)
def test_an_error_says_what_the_server_said(value: Any, told: str) -> None:
    with pytest.raises(ReplyError) as caught:
        load_object(json.dumps(value).encode())
    assert caught.value.error.kind == "server-error"
    assert caught.value.error.message == told


@pytest.mark.parametrize(
    ("told", "kept"), [(None, None), ("stop", "stop"), ({"type": "length"}, "length")]
)
def test_a_finish_reason_of_any_form(told: Any, kept: str | None) -> None:
    result = RequestResult(index=0, send_ns=0)
    reply = reply_for(Endpoint("http://x"), Request(0, 4, prompt_ids=[1]), result, 0)
    reply.whole(json.dumps({"meta_info": {"completion_tokens": 2, "finish_reason": told}}).encode())
    assert result.finish_reason == kept
