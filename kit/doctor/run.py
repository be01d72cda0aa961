"""Run every check and say what stands in the way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import BaseModel, ConfigDict

from kit import nvml
from kit.doctor import (
    containers,
    gpu,
    host,
    kernels,
    models,
    network,
    processes,
    topology,
)
from kit.doctor.model import Check, Result, Status
from kit.doctor.probes import Host, Job

CHECKS: tuple[Check, ...] = (
    *host.CHECKS,
    *gpu.CHECKS,
    *processes.CHECKS,
    *topology.CHECKS,
    *kernels.CHECKS,
    *containers.CHECKS,
    *models.CHECKS,
    *network.CHECKS,
)
FIRST = "host.load"
"""This check needs idle processors, so it runs alone before the others."""

ORDER: dict[Status, int] = {"blocker": 0, "warning": 1, "unavailable": 2, "ok": 3}


class Report(BaseModel):
    """What the doctor found."""

    model_config = ConfigDict(frozen=True)

    rig: str | None
    backend: str
    results: list[Result]

    def having(self, status: Status) -> list[Result]:
        """Return the results with a status."""
        return [r for r in self.results if r.status == status]

    @property
    def exit_code(self) -> int:
        """Return 2 if a blocker stands, else 0."""
        return 2 if self.having("blocker") else 0


@contextlib.contextmanager
def this_host() -> Iterator[Host]:
    """Open the machine that this runs on."""
    with contextlib.ExitStack() as stack:
        try:
            library = stack.enter_context(nvml.opened())
        except nvml.NvmlError as error:
            yield Host(nvml_error=str(error))
            return
        yield Host(nvml=library)


def examine(
    machine: Host,
    job: Job,
    checks: Sequence[Check] = CHECKS,
    progress: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Run checks and return their results in the checks' order.

    Checks run side by side, but for kernels that compete for one device: these come one after another.

    Args:
        machine: Where to look.
        job: What is to be run.
        checks: Which checks; all by default.
        progress: Called with each result as it comes, from any thread.
    """

    def one(check: Check) -> Result:
        result = check.run(machine, job)
        progress(result)
        return result

    found: dict[str, Result] = {}
    for check in checks:
        if check.id == FIRST:
            found[check.id] = one(check)
    rest = [c for c in checks if c.id not in found]
    quick = [c for c in rest if not c.once]
    slow = [c for c in rest if c.once]
    with ThreadPoolExecutor(max_workers=8) as pool:
        # Memory and processes are looked at before a kernel takes some of either.
        found |= {c.id: r for c, r in zip(quick, pool.map(one, quick), strict=True)}
        found |= {c.id: r for c, r in zip(slow, pool.map(one, slow), strict=True)}
    return Report(
        rig=job.rig.name if job.rig else None,
        backend=job.backend,
        results=[found[c.id] for c in checks],
    )


def worth_keeping(results: Iterable[Result]) -> list[Result]:
    """Return the warnings and blockers, blockers first: what a run's record keeps."""
    bad = [r for r in results if r.status in ("warning", "blocker")]
    return sorted(bad, key=lambda r: ORDER[r.status])
