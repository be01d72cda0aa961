"""Which lock a host gets, and which hosts get none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.errors import UserError
from kit.setup_env.choose import Gpu, check_host, choose, driver_major, probe_gpu

if TYPE_CHECKING:
    from pathlib import Path

PROC_TEXT = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)


def host(root: Path, driver: str | None) -> Path:
    """Lay out ``/dev`` and ``/proc`` of a host with a GPU."""
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()
    if driver is not None:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text(PROC_TEXT.format(driver=driver))
    return root


def smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an ``nvidia-smi`` of our own, and nothing else, on PATH."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("asked", "gpu", "kind"),
    [
        ("", Gpu(False), "cpu"),
        ("", Gpu(True, 580), "cuda13"),
        ("", Gpu(True, 610), "cuda13"),
        ("", Gpu(True, 579), "cpu"),
        ("", Gpu(True, None), "cuda13"),
        ("cpu", Gpu(True, 580), "cpu"),
        ("cuda", Gpu(False), "cuda13"),
        ("cuda", Gpu(True, 550), "cuda13"),
    ],
)
def test_lock_follows_gpu_driver_and_override(asked: str, gpu: Gpu, kind: str) -> None:
    assert choose({"KIT_LOCK": asked}, gpu).kind == kind


def test_old_driver_is_named_in_the_reason() -> None:
    reason = choose({}, Gpu(True, 550)).reason
    assert "550" in reason
    assert "580" in reason


def test_unknown_override_is_refused() -> None:
    with pytest.raises(UserError, match="KIT_LOCK=rocm is not a lock"):
        choose({"KIT_LOCK": "rocm"}, Gpu(False))


def test_driver_is_read_from_proc(tmp_path: Path) -> None:
    assert probe_gpu(host(tmp_path, "580.159.03")) == Gpu(True, 580)


def test_gpu_without_a_readable_driver_version(tmp_path: Path) -> None:
    assert probe_gpu(host(tmp_path, None)) == Gpu(True, None)


def test_no_device_node_and_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_gpu(tmp_path) == Gpu(False)


def test_tool_is_asked_where_there_is_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, "echo 581.42", monkeypatch)
    assert probe_gpu(tmp_path) == Gpu(True, 581)


@pytest.mark.parametrize("script", ["echo 'No devices were found'; exit 6", "exit 0"])
def test_tool_that_lists_no_gpu(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, script, monkeypatch)
    assert probe_gpu(tmp_path) == Gpu(False)


def test_text_without_a_version() -> None:
    assert driver_major("N/A") is None


@pytest.mark.parametrize(
    ("system", "machine", "libc", "words"),
    [
        ("Darwin", "arm64", ("", ""), "Darwin on arm64"),
        ("Linux", "aarch64", ("glibc", "2.36"), "Linux on aarch64"),
        ("Linux", "x86_64", ("glibc", "2.31"), "glibc 2.31"),
        ("Linux", "x86_64", ("", ""), "another C library"),
    ],
)
def test_hosts_that_no_lock_fits(
    system: str, machine: str, libc: tuple[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        check_host(system, machine, libc)


@pytest.mark.parametrize("version", ["2.34", "2.36", "2.100"])
def test_hosts_that_fit(version: str) -> None:
    check_host("Linux", "x86_64", ("glibc", version))
