"""The load client: sends requests on schedule and brings back what each one took.

Imports nothing else of the kit but its errors.
"""

from __future__ import annotations

from kit.load.client import run_level, run_level_async
from kit.load.metrics import summarize
from kit.load.model import (
    Arrival,
    ChunkLog,
    ClientHealth,
    ClosedLoop,
    ConstantRate,
    Endpoint,
    LevelMetrics,
    LevelResult,
    Poisson,
    Request,
    RequestError,
    RequestResult,
    Trace,
)
from kit.load.workers import workers_for

__all__ = [
    "Arrival",
    "ChunkLog",
    "ClientHealth",
    "ClosedLoop",
    "ConstantRate",
    "Endpoint",
    "LevelMetrics",
    "LevelResult",
    "Poisson",
    "Request",
    "RequestError",
    "RequestResult",
    "Trace",
    "run_level",
    "run_level_async",
    "summarize",
    "workers_for",
]
