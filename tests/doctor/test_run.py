"""The doctor and telemetry around a run of the whole pipeline, over the stub server."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kit.errors import UserError
from kit.runfolder import latest_run, read_run
from tests.test_reproduce_stub import pairs, stub  # noqa: F401 - fixtures


def test_a_run_keeps_what_the_doctor_and_telemetry_saw(
    stub: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KIT_NO_DOCTOR", "0")
    # A governor and processors of a shared test host vary; this warning comes from the environment alone.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    result = stub("-s", "baseline", "--levels", "1")
    assert "doctor: network.loopback: http_proxy is set" in result.output
    folder = latest_run(stub.runs)
    assert folder is not None
    run = read_run(folder)
    assert "network.loopback" in [r["id"] for r in run.manifest.doctor]
    # There is no golden file, so the verdict is no pass and the machine was looked at again.
    assert "network.loopback" in [r["id"] for r in run.manifest.doctor_after]
    assert run.telemetry_header is not None
    assert run.telemetry[0].t <= run.launches[0].t <= run.telemetry[-1].t
    assert result.output.count("the doctor saw: http_proxy") <= 1


def test_a_blocker_ends_it_before_a_run_folder_is_made(
    stub: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KIT_NO_DOCTOR", "0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", stub.port))
        taken.listen()
        result = stub("-s", "baseline")
    assert isinstance(result.exception, UserError)
    assert "network.port" in result.exception.sentence
    assert latest_run(stub.runs) is None
