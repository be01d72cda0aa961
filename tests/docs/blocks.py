"""Code blocks of the Markdown files that users read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """One line after a ``$`` of a console block, without its trailing comment."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    return [
        *(p for name in ("README.md", "CONTRIBUTING.md") if (p := ROOT / name).is_file()),
        *sorted((ROOT / "docs").glob("*.md")),
    ]


def blocks(path: Path) -> list[Block]:
    found = []
    language: str | None = None
    begin, lines = 0, list[str]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"^```(\w*)\s*$", line)
        if fence and language is None:
            language, begin, lines = fence[1], number + 1, []
        elif fence:
            page = path.relative_to(ROOT).as_posix()
            found.append(Block(page, begin, language or "", "\n".join(lines) + "\n"))
            language = None
        else:
            lines.append(line)
    assert language is None, f"{path}: a block is not closed"
    return found


def commands() -> list[Command]:
    found = []
    for path in pages():
        for block in blocks(path):
            if block.language != "console":
                continue
            for offset, line in enumerate(block.text.splitlines()):
                if line.startswith("$ "):
                    text = re.sub(r"\s+#\s.*$", "", line[2:]).strip()
                    found.append(Command(block.page, block.line + offset, text))
    return found
