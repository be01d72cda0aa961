"""When an aiohttp client's requests leave and their first events arrive, seen at the socket.

``sglang.bench_serving`` starts its clock before it opens a connection and stops it when its loop has come round to
an event and parsed it. This client's clock runs from the write of a prepared request to the arrival of the bytes.
To compare what both saw of the *server*, :class:`Wire` notes the same two moments for bench_serving.
"""

from __future__ import annotations

import statistics
import time
import weakref
from typing import Any


class Wire:
    """Watches every aiohttp request of this process until :meth:`stop`.

    Attributes:
        sent: Just before the body of each request was written to its connection, ``time.perf_counter`` seconds: the
            same moment as this client's send.
        first: When the first bytes that hold an event arrived, one of each connection. bench_serving opens a
            connection a request, so that this is one of each request.
    """

    def __init__(self) -> None:
        from aiohttp.client_proto import ResponseHandler

        self.sent: list[float] = []
        self.first: list[float] = []
        self._handler: Any = ResponseHandler
        self._real: Any = ResponseHandler.data_received
        begun: weakref.WeakSet[Any] = weakref.WeakSet()

        def data_received(protocol: Any, data: bytes) -> None:
            if protocol not in begun and b"data:" in data:
                self.first.append(time.perf_counter())
                begun.add(protocol)
            self._real(protocol, data)

        self._handler.data_received = data_received

    def watch(self, session: Any) -> Any:
        """Note the sends of a new ``aiohttp.ClientSession``; return it."""
        import aiohttp

        async def gone(*_: Any) -> None:
            self.sent.append(time.perf_counter())

        config: Any = aiohttp.TraceConfig()
        config.on_request_chunk_sent.append(gone)
        config.freeze()
        session.trace_configs.append(config)
        return session

    def stop(self) -> None:
        """Give aiohttp its own method back."""
        self._handler.data_received = self._real

    def split(self, outputs: list[Any]) -> dict[str, float]:
        """Return the mean TTFT at the socket, and what the client put before and behind it, in seconds.

        Args:
            outputs: bench_serving's, with ``start_time``, ``ttft`` and ``success``.

        Empty where requests failed or a connection was used twice: the means would be of different requests.
        """
        good = [o for o in outputs if o.success]
        if not good or not len(good) == len(outputs) == len(self.sent) == len(self.first):
            return {}
        begun = statistics.fmean(o.start_time for o in good)
        stamped = statistics.fmean(o.start_time + o.ttft for o in good)
        sent, first = statistics.fmean(self.sent), statistics.fmean(self.first)
        return {
            "ttft_wire_s": first - sent,
            "before_s": sent - begun,
            "behind_s": stamped - first,
        }
