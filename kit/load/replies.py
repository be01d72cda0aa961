"""How the answers of each API are read. Pure: bytes and time stamps in, a filled result out.

SGLang 0.5.12.post1, ``managers/tokenizer_manager.py``: every event of a ``/generate`` stream holds running totals
in ``meta_info``; ``text`` and ``output_ids`` hold everything so far, or only what is new when the server runs with
``--incremental-streaming-output``. Both are told apart by their lengths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import orjson

from kit.load.model import ChunkLog, Endpoint, ErrorKind, Request, RequestError, RequestResult
from kit.load.sse import Event

# Text and token ids kept of one answer; beyond it the server is not sending an answer.
KEEP_LIMIT = 64 << 20
_COUNT_KEY = b'"completion_tokens":'


class ReplyError(Exception):
    """An answer is wrong in a way that has a name."""

    def __init__(self, kind: ErrorKind, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.error = RequestError(kind, message[:500], status)


def scan_count(data: bytes) -> int | None:
    """Return the ``completion_tokens`` of a JSON object without parsing it; None where that is not certain.

    A stream that repeats its whole output in every event grows with the square of its length; only the count is
    needed of all but the last. The key cannot be taken for text: inside a JSON string its closing quote would
    be escaped.
    """
    at = data.rfind(_COUNT_KEY)
    if at < 1 or not data.endswith(b"}") or data[at - 1] == 0x5C:
        return None
    begin = at + len(_COUNT_KEY)
    end = data.find(b",", begin, begin + 24)
    if end < 0:
        end = data.find(b"}", begin, begin + 24)
    try:
        return int(data[begin:end]) if end > begin else None
    except ValueError:
        return None


def load_object(raw: bytes) -> dict[str, Any]:
    """Parse one JSON object.

    Raises:
        ReplyError: it is not one, or it is an error message.
    """
    try:
        value = orjson.loads(raw)
    except ValueError:
        start = raw[:80].decode("utf-8", "replace")
        raise ReplyError("bad-json", f"not JSON: {start}") from None
    if not isinstance(value, dict):
        raise ReplyError("bad-json", "not a JSON object")
    error = value.get("error")
    if error is not None or value.get("object") == "error":
        told = value if error is None else error
        raise ReplyError(
            "server-error", str(told.get("message", told) if isinstance(told, dict) else told)
        )
    return value


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class Reply(ABC):
    """Reads one answer into a result.

    Args:
        request: What was asked.
        result: What is filled in.
        zero_ns: The start of the level on the monotonic clock.
    """

    __slots__ = ("_kept", "_log", "done", "events", "request", "result", "zero_ns")

    def __init__(self, request: Request, result: RequestResult, zero_ns: int = 0) -> None:
        self.request = request
        self.result = result
        self.zero_ns = zero_ns
        self.done = False  # the stream said that it was over
        self.events = 0
        self._kept = 0
        self._log = ChunkLog()
        result.chunks = self._log

    def event(self, event: Event, at_ns: int) -> None:
        """Read one event that arrived at ``at_ns``.

        Raises:
            ReplyError: it is wrong; counts that came before stay on the result.
        """
        self.events += 1
        if event.data == b"[DONE]":
            self.done = True
        elif event.name == b"error":
            load_object(event.data)
            raise ReplyError("server-error", event.data[:300].decode("utf-8", "replace"))
        elif self.done and event.data:
            raise ReplyError("token-count", "more came after [DONE]")
        elif event.data:
            self.update(event.data, at_ns)

    def count(self, tokens: int, at_ns: int) -> None:
        """Note that the server has produced ``tokens`` output tokens so far.

        Raises:
            ReplyError: fewer than before, or more than were asked for.
        """
        before = self.result.completion_tokens or 0
        self.result.completion_tokens = tokens
        if tokens > before:
            if self.result.first_ns is None:
                self.result.first_ns = at_ns - self.zero_ns
            self._log.add(at_ns - self.zero_ns, tokens)
            if tokens > self.request.max_new_tokens:
                raise ReplyError(
                    "token-count",
                    f"{tokens} output tokens where {self.request.max_new_tokens} were asked for",
                )
        elif tokens < before:
            raise ReplyError("token-count", f"the count of tokens fell from {before} to {tokens}")

    def keep(self, size: int) -> None:
        """Account for ``size`` bytes kept of the answer.

        Raises:
            ReplyError: too many.
        """
        self._kept += size
        if self._kept > KEEP_LIMIT:
            raise ReplyError("too-large", f"the answer is larger than {KEEP_LIMIT} bytes")

    @abstractmethod
    def update(self, data: bytes, at_ns: int) -> None:
        """Read the data of one event."""

    @abstractmethod
    def whole(self, raw: bytes) -> None:
        """Read an answer that came in one piece.

        Raises:
            ReplyError: it is wrong.
        """

    @abstractmethod
    def finish(self) -> None:
        """Check that a stream that ended was complete.

        Raises:
            ReplyError: it was not.
        """


class GenerateReply(Reply):
    """SGLang's ``/generate``."""

    __slots__ = ("_ids", "_last", "_scan", "_text")

    def __init__(self, request: Request, result: RequestResult, zero_ns: int = 0) -> None:
        super().__init__(request, result, zero_ns)
        self._ids: list[int] = []
        self._text: list[str] = []
        self._last = b""  # scanned for its count only
        self._scan = False

    def update(self, data: bytes, at_ns: int) -> None:
        """Read the data of one event."""
        if self._scan:
            tokens = scan_count(data)
            if tokens is not None:
                self._last = data
                self.count(tokens, at_ns)
                return
        self._read(load_object(data), at_ns)
        self._last = b""

    def whole(self, raw: bytes) -> None:
        """Read an answer that came in one piece."""
        reply = load_object(raw)
        meta = self._meta(reply)
        self.result.completion_tokens = meta["completion_tokens"]
        ids, text = reply.get("output_ids"), reply.get("text")
        if isinstance(ids, list):
            self.result.output_ids = ids
        self.result.text = text if isinstance(text, str) else None
        if meta["completion_tokens"] > self.request.max_new_tokens:
            raise ReplyError("token-count", f"{meta['completion_tokens']} output tokens came back")
        self._ids_agree()

    def finish(self) -> None:
        """Check that the stream was complete."""
        if self._last:
            last, self._last = self._last, b""
            self._read(load_object(last), None)
        if not self.done:
            raise ReplyError("truncated", "the stream ended without [DONE]")
        if self.result.completion_tokens is None:
            raise ReplyError("truncated", "the stream brought no tokens")
        if self._ids:
            self.result.output_ids = self._ids
        self.result.text = "".join(self._text)
        self._ids_agree()

    def _ids_agree(self) -> None:
        ids, tokens = self.result.output_ids, self.result.completion_tokens
        if ids is not None and len(ids) != tokens:
            raise ReplyError("token-count", f"{len(ids)} token ids for a count of {tokens}")

    def _read(self, reply: dict[str, Any], at_ns: int | None) -> None:
        meta = self._meta(reply)
        tokens: int = meta["completion_tokens"]
        ids, text = reply.get("output_ids"), reply.get("text")
        had = len(self._ids)
        if isinstance(ids, list):
            if had and had + len(ids) == tokens and (len(ids) < tokens):
                # Only what is new: every event has to be read.
                self._ids += ids
                if isinstance(text, str):
                    self._text.append(text)
                    self.keep(len(text) + 8 * len(ids))
            else:
                # Everything so far; once that is certain, the count is enough until the last event.
                self._scan = bool(had)
                self._ids = ids
                self._text = [text] if isinstance(text, str) else []
        elif isinstance(text, str):
            self._text = [text]
        if at_ns is not None:
            self.count(tokens, at_ns)

    def _meta(self, reply: dict[str, Any]) -> dict[str, Any]:
        meta = reply.get("meta_info")
        if not isinstance(meta, dict) or _whole(meta.get("completion_tokens")) is None:
            raise ReplyError("bad-json", "no meta_info.completion_tokens")
        result = self.result
        result.prompt_tokens = _whole(meta.get("prompt_tokens"))
        result.cached_tokens = _whole(meta.get("cached_tokens"))
        result.spec_verify_ct = _whole(meta.get("spec_verify_ct"))
        reason = meta.get("finish_reason")
        if isinstance(reason, dict):
            result.finish_reason = str(reason.get("type"))
            if result.finish_reason == "abort":
                raise ReplyError("server-error", f"aborted: {reason.get('message', '')}")
        elif reason is not None:
            result.finish_reason = str(reason)
        return meta


def written(part: dict[str, Any]) -> str:
    """Return all that the model wrote in a chat message or delta: reasoning, content, refusal, calls of tools.

    Each of them is made of output tokens, so each counts for the time to first token.
    """
    # Some servers send the reasoning under its old and its new name at once.
    said = [part.get("reasoning_content") or part.get("reasoning")]
    said += [part.get("content"), part.get("refusal")]
    calls = part.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            said += [function.get("name"), function.get("arguments")]
    return "".join(s for s in said if isinstance(s, str))


class OpenAiReply(Reply):
    """``/v1/completions`` and ``/v1/chat/completions``."""

    __slots__ = ("_chat", "_last_text_ns", "_text")

    def __init__(
        self, request: Request, result: RequestResult, chat: bool, zero_ns: int = 0
    ) -> None:
        super().__init__(request, result, zero_ns)
        self._chat = chat
        self._text: list[str] = []
        self._last_text_ns: int | None = None

    def update(self, data: bytes, at_ns: int) -> None:
        """Read the data of one event."""
        reply = load_object(data)
        text = self._choice(reply, "delta" if self._chat else "")
        if text:
            self._text.append(text)
            self.keep(len(text))
            self._last_text_ns = at_ns
            if self.result.first_ns is None:
                # Text is a token that came, whatever the counts say, or lack.
                self.result.first_ns = at_ns - self.zero_ns
        tokens = self._usage(reply)
        if tokens is None:
            return
        if reply.get("choices"):
            self.count(tokens, at_ns)
        else:
            # The closing summary comes after the last token; its own time means nothing.
            at = self._last_text_ns if self._last_text_ns is not None else at_ns
            if self._log:
                at = max(at, self._log.times[-1] + self.zero_ns)
            self.count(tokens, at)

    def whole(self, raw: bytes) -> None:
        """Read an answer that came in one piece."""
        reply = load_object(raw)
        self.result.text = self._choice(reply, "message" if self._chat else "") or ""
        tokens = self._usage(reply)
        if tokens is None:
            raise ReplyError("bad-json", "no usage.completion_tokens")
        self.result.completion_tokens = tokens
        if tokens > self.request.max_new_tokens:
            raise ReplyError("token-count", f"{tokens} output tokens came back")

    def finish(self) -> None:
        """Check that the stream was complete; one that gave its finish reason and counts may lack [DONE]."""
        self.result.text = "".join(self._text)
        if not self.done and self.result.finish_reason is None:
            raise ReplyError("truncated", "the stream ended without [DONE] or a finish reason")
        if self.result.completion_tokens is None:
            raise ReplyError(
                "truncated", "the stream gave no usage, so its tokens cannot be counted"
            )

    def _choice(self, reply: dict[str, Any], part: str) -> str | None:
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices:
            return None
        choice = choices[0]
        if not isinstance(choice, dict):
            raise ReplyError("bad-json", "choices[0] is not an object")
        if choice.get("finish_reason") is not None:
            self.result.finish_reason = str(choice["finish_reason"])
        if not part:
            text = choice.get("text")
            return text if isinstance(text, str) else None
        inner = choice.get(part)
        return written(inner) if isinstance(inner, dict) else None

    def _usage(self, reply: dict[str, Any]) -> int | None:
        usage = reply.get("usage")
        if not isinstance(usage, dict):
            return None
        result = self.result
        prompt = _whole(usage.get("prompt_tokens"))
        result.prompt_tokens = result.prompt_tokens if prompt is None else prompt
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = _whole(details.get("cached_tokens"))
            result.cached_tokens = result.cached_tokens if cached is None else cached
        return _whole(usage.get("completion_tokens"))


def reply_for(endpoint: Endpoint, request: Request, result: RequestResult, zero_ns: int) -> Reply:
    """Return the reader of one answer of ``endpoint``."""
    if endpoint.api == "generate":
        return GenerateReply(request, result, zero_ns)
    return OpenAiReply(request, result, endpoint.api == "chat", zero_ns)
