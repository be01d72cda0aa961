"""The doctor around a run: blockers stop it, warnings go into its record, and are looked at again at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kit import paths
from kit.doctor.model import Result
from kit.doctor.probes import Job
from kit.doctor.run import CHECKS, Report, examine, this_host, worth_keeping
from kit.errors import UserError
from kit.runfolder import MANIFEST, dump, read_manifest, write_atomic
from kit.scenarios import Rig

NEEDS_IDLE = ("host.load", "network.port", "gpu.memory", "host.leftovers")
"""What the run itself changes: looked at before it, not after."""


def stop_at_blockers(report: Report) -> None:
    """Raise if something stands in the way.

    Raises:
        UserError: with every blocker and its remedy.
    """
    blockers = report.having("blocker")
    if not blockers:
        return
    seen = "; ".join(f"{r.seen} [{r.id}]" for r in blockers)
    remedies = " ".join(dict.fromkeys(r.remedy for r in blockers))
    raise UserError(
        f"This run cannot work here: {seen}.",
        f"{remedies} `kit doctor` tells more; --no-doctor goes on all the same.",
    )


def before(
    rig: Rig, backend: str, port: int, note: Callable[[str], None], out: Path | None = None
) -> list[Result]:
    """Look at the machine before a run, say what was found, and return what its record keeps.

    Args:
        rig: What will be run.
        backend: Name of the backend.
        port: Where the server will listen.
        note: Says a line.
        out: Parent of the run folder; the project's by default.

    Raises:
        UserError: a blocker stands.
    """
    with this_host() as machine:
        report = examine(machine, Job(rig, backend, port, out or paths.runs_dir()))
    stop_at_blockers(report)
    kept = worth_keeping(report.results)
    for result in kept:
        note(f"doctor: {result.id}: {result.seen} → {result.remedy}")
    if not kept:
        good = len(report.having("ok"))
        note(
            f"doctor: {good} checks are well, {len(report.having('unavailable'))} cannot be made here"
        )
    return kept


def again(rig: Rig, backend: str, folder: Path) -> list[Result]:
    """Look again after a run whose verdict is not a pass, and write into its record what is wrong now.

    Kernels are not run again, and what the run itself changes is not looked at.
    """
    checks = [c for c in CHECKS if not c.once and c.id not in NEEDS_IDLE]
    with this_host() as machine:
        report = examine(machine, Job(rig, backend, runs=folder.parent), checks)
    kept = worth_keeping(report.results)
    manifest = read_manifest(folder).model_copy(update={"doctor_after": as_records(kept)})
    write_atomic(folder / MANIFEST, dump(manifest))
    return kept


def as_records(results: Sequence[Result]) -> list[dict[str, str | None]]:
    """Return results as the manifest holds them."""
    return [r.model_dump(mode="json") for r in results]
