"""Before a run: which patches are live here, and whether every scenario has those it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kit.errors import UserError
from kit.patches.series import available, checksums, patches_dir
from kit.patches.site import find_site, live


def run_patches(
    backend: str, needed: Mapping[str, Iterable[str]], site: Path | None = None
) -> list[dict[str, Any]]:
    """Return what a run's manifest says about the patches.

    The ``process`` backend serves this host's SGLang, so its files are compared with the recorded checksums. Any other
    backend serves files that are not within reach; the server's log, quoted in each launch, speaks for them.

    Args:
        backend: Name of the backend.
        needed: Patch ids without which a scenario is meaningless, by scenario.
        site: The site-packages that is served from; where this Python finds SGLang when None.

    Returns:
        Nothing where the checkout has no series, else one entry a patch: id, title, whether it is live (None: not
        known here), and the checksums of its files.

    Raises:
        UserError: a scenario needs a patch that is not live, on the process backend.
    """
    if not (patches_dir() / "series").is_file():
        return []
    after = {s.path: dict(s.after) for s in checksums()}
    states: dict[str, bool | None] = {p.id: None for p in available()}
    if backend == "process":
        try:
            states |= {s.id: s.live for s in live(site or find_site())}
        except UserError:
            # No SGLang, or another one: the server's proof says so with more words.
            states = dict.fromkeys(states)
        for scenario, ids in needed.items():
            missing = [i for i in ids if states.get(i) is False]
            if missing:
                raise UserError(
                    f"The scenario {scenario} needs patch {', '.join(missing)}, which is not live.",
                    "Run `kit patches apply`.",
                )
    return [
        {
            "id": patch.id,
            "title": patch.title,
            "live": states[patch.id],
            "files": {d.path: after.get(d.path, {}).get(patch.id) for d in patch.files},
        }
        for patch in available()
    ]
