"""What a check is, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kit.doctor.probes import Host, Job

Status = Literal["ok", "warning", "blocker", "unavailable"]


class Result(BaseModel):
    """What one check says. ``id`` is ``topic.name``, stable and listed in docs/doctor.md."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    status: Status
    seen: str = Field(description="what was seen, one clause; for unavailable, why nothing was")
    why: str = Field(description="why it matters")
    remedy: str = Field(default="", description="what to do; empty when ok")
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A check's finding, without what is the same every time."""

    status: Status
    text: str
    remedy: str = ""


def ok(text: str) -> Seen:
    """Return "as it should be"."""
    return Seen("ok", text)


def warning(text: str, remedy: str) -> Seen:
    """Return "it works, and numbers may suffer"."""
    return Seen("warning", text, remedy)


def blocker(text: str, remedy: str) -> Seen:
    """Return "this run cannot work, or cannot mean anything"."""
    return Seen("blocker", text, remedy)


def unavailable(reason: str, remedy: str = "") -> Seen:
    """Return "this cannot be seen here", with the reason."""
    return Seen("unavailable", reason, remedy)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at.

    Args:
        id: ``topic.name``.
        why: Why it matters, one sentence.
        look: Looks; returns what was seen.
        link: Where more is written.
        once: Slow or disturbing: not looked at again while a run is judged.
    """

    id: str
    why: str
    look: Callable[[Host, Job], Seen]
    link: str | None = None
    once: bool = False

    def run(self, host: Host, job: Job) -> Result:
        """Look; a check that fails itself says so and never stops the others."""
        try:
            seen = self.look(host, job)
        except Exception as error:  # noqa: BLE001 - the others must still be told
            text = str(error).split("\n")[0]
            seen = unavailable(f"the check itself failed: {type(error).__name__}: {text}")
        return Result(
            id=self.id,
            status=seen.status,
            seen=seen.text,
            why=self.why,
            remedy=seen.remedy,
            link=self.link,
        )
