"""Errors that carry a remedy.

Everything a user can fix is a :class:`UserError`: one sentence, what to do, exit code 2, no traceback.
"""

from __future__ import annotations


class KitError(Exception):
    """Base of the kit's own errors.

    Args:
        sentence: What happened, in one sentence.
        remedy: What the reader can do about it, in one sentence; may be empty.
    """

    exit_code = 2

    def __init__(self, sentence: str, remedy: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


class UserError(KitError):
    """Bad input or a missing prerequisite: the user can fix it (exit code 2)."""


class EngineError(KitError):
    """The server could not start, died, or does not answer.

    Args:
        sentence: What happened.
        remedy: What to do.
        log_tail: The last lines of the server's log, newest last.
    """

    def __init__(self, sentence: str, remedy: str = "", log_tail: str = "") -> None:
        super().__init__(sentence, remedy)
        self.log_tail = log_tail
