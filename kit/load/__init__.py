"""The load client: sends requests on schedule, brings back what each one took. Imports nothing else of the kit."""

from __future__ import annotations

from kit.load.client import run_level
from kit.load.metrics import summarize
from kit.load.model import (
    ClientHealth,
    ClosedLoop,
    Endpoint,
    LevelMetrics,
    LevelResult,
    Request,
    RequestError,
    RequestResult,
)

__all__ = [
    "ClientHealth",
    "ClosedLoop",
    "Endpoint",
    "LevelMetrics",
    "LevelResult",
    "Request",
    "RequestError",
    "RequestResult",
    "run_level",
    "summarize",
]
