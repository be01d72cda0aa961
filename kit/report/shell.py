"""Commands as a shell takes them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence


def word(text: str) -> str:
    """Quote a word for a shell, except a variable that the reader is to set."""
    return text if text.startswith("$") else shlex.quote(text)


def server_command(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the command of a server, to paste into a shell: environment first, one option a line."""
    lines = [f"{name}={shlex.quote(env[name])} \\\n" for name in sorted(env)]
    words = ["python", *map(word, argv)]
    options = [" ".join(words[:3])]
    for each in words[3:]:
        if each.startswith("--"):
            options.append(f"  {each}")
        else:
            options[-1] += f" {each}"
    return "".join(lines) + " \\\n".join(options)
