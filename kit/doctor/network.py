"""Checks of ports and of what stands between client and server."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from kit.backends.process import check_port_free
from kit.doctor.model import Check, Seen, blocker, ok, unavailable, warning
from kit.doctor.probes import Host, Job
from kit.errors import UserError

# SGLang's gRPC port lies this far above its port.
GRPC_OFFSET = 10000


def _listener(host: Host, port: int) -> str:
    """Return the inode of the socket that listens on a port, as text; empty if not seen."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (host.text(table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == "0A" and int(words[1].split(":")[1], 16) == port:
                return words[9]
    return ""


def _links(folder: Path) -> Iterator[str]:
    """Yield where a process's open files lead; those that close meanwhile, or belong to others, are left out."""
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            with contextlib.suppress(OSError):
                yield str(file.readlink())


def _owner(host: Host, port: int) -> str:
    """Return ``pid 12 python3``, who listens on a port; empty where that cannot be seen (another user's)."""
    inode = _listener(host, port)
    if not inode:
        return ""
    for folder in host.path("/proc").glob("[0-9]*/fd"):
        if f"socket:[{inode}]" in set(_links(folder)):
            pid = folder.parent.name
            return f"pid {pid} {host.text(f'/proc/{pid}/comm') or ''}".strip()
    return ""


def _port(host: Host, job: Job) -> Seen:
    if job.elsewhere:
        return unavailable("the server runs elsewhere")
    ports = [job.port] + ([job.port + GRPC_OFFSET] if job.port + GRPC_OFFSET <= 65535 else [])
    for port in ports:
        try:
            check_port_free("127.0.0.1", port)
        except UserError as error:
            owner = _owner(host, port)
            seen = error.sentence.rstrip(".") + (f": {owner}" if owner else "")
            what = "" if port == job.port else f" (SGLang's gRPC port, {job.port} + {GRPC_OFFSET})"
            pid = re.match(r"pid (\d+)", owner)
            end = (
                f"`kill {pid.group(1)}` ends it; or choose another port"
                if pid
                else "Choose another port"
            )
            return blocker(seen + what, f"{end} with --port.")
    return ok(f"port {' and '.join(map(str, ports))} free")


def _loopback(host: Host, _job: Job) -> Seen:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo("localhost", None)}
    except OSError as error:
        return warning(
            f"the name localhost is not known here: {error}",
            "Add `127.0.0.1 localhost` to /etc/hosts: torch.distributed looks the name up.",
        )
    if not found & {"127.0.0.1", "::1"}:
        return warning(
            f"localhost is {', '.join(sorted(found))}", "It must be 127.0.0.1: look at /etc/hosts."
        )
    proxies = [
        n for n in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if host.environ.get(n)
    ]
    exempt = host.environ.get("no_proxy", "") + "," + host.environ.get("NO_PROXY", "")
    if proxies and not re.search(r"(^|,)\s*(localhost|127\.0\.0\.1|\*)\s*(,|$)", exempt):
        return warning(
            f"{proxies[0]} is set and no_proxy does not name localhost",
            "`export no_proxy=localhost,127.0.0.1`: the kit's client does without, SGLang's own may not.",
        )
    return ok("localhost is the loopback address, no proxy before it")


CHECKS = (
    Check(
        "network.port", "A server that cannot bind its port ends after loading the weights.", _port
    ),
    Check("network.loopback", "Client and server talk over the loopback address.", _loopback),
)
