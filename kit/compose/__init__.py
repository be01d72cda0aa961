"""The project's compose files: rendered from scenarios and rigs, committed, held in step by a check."""

from kit.compose.render import FILES, render_all, stale, write_all

__all__ = ["FILES", "render_all", "stale", "write_all"]
