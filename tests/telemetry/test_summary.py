from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.nvml import Gpu, RecordedNvml
from kit.telemetry import GpuProcess, GpuSample, TelemetryHeader, TelemetrySample
from kit.telemetry.files import read_telemetry
from kit.telemetry.gpu import sample_gpu
from kit.telemetry.sampler import Reader, sampling
from kit.telemetry.summary import summarize
from kit.verdict.machine import machine_findings
from tests.factory import level_record, manifest, run_data


def sample(t: float, *, gpu: dict[str, Any] | None = None, **fields: Any) -> TelemetrySample:
    gpus = [GpuSample(index=0, **gpu)] if gpu is not None else []
    return TelemetrySample(t=t, gpus=gpus, **fields)


@given(st.floats(1, 1000), st.floats(0, 5), st.floats(1, 20))
def test_constant_power_gives_power_times_time(power: float, start: float, length: float) -> None:
    samples = [sample(t, gpu={"power_w": power}) for t in range(30)]
    found = summarize(samples, start, start + length, tokens=10)
    assert found.joules == pytest.approx(power * length)
    assert found.joules_per_token == pytest.approx(power * length / 10)
    assert found.gap_s == 0
    assert found.complete


def test_a_gap_is_marked_and_its_energy_not_made_up() -> None:
    samples = [sample(t, gpu={"power_w": 100.0}) for t in (0, 1, 2, 7, 8, 9)]
    found = summarize(samples, 0, 9)
    assert found.gap_s == 5
    assert found.joules == pytest.approx(400)
    assert not found.complete


def test_the_counter_holds_over_a_gap() -> None:
    samples = [
        sample(t, gpu={"power_w": 1.0, "energy_mj": 100_000 * t}) for t in (0, 1, 2, 7, 8, 9)
    ]
    found = summarize(samples, 0.5, 8.5)
    assert found.joules == pytest.approx(800)
    assert found.gap_s == 5
    assert "counter" in found.joules_of


def test_no_telemetry_gives_no_joules() -> None:
    found = summarize([], 0, 9, tokens=5)
    assert (found.joules, found.joules_per_token, found.gap_s) == (None, None, 9)


def findings(*samples: TelemetrySample, **changes: Any) -> dict[str, str]:
    """Of a run with one pass from 0 to 10."""
    run = run_data(
        [level_record(t=10.0, wall_s=10.0)],
        telemetry=list(samples),
        telemetry_header=TelemetryHeader(t=0, interval_s=1, cpus=2),
        manifest=manifest(**changes),
    )
    return {f.id: f.severity for f in machine_findings(run)}


def steady(**fields: Any) -> list[TelemetrySample]:
    return [sample(t, **fields) for t in range(12)]


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        (steady(gpu={"reasons": 0}, cpu=0.9, cpu_ours=0.89, steal=0.0), {}),
        (steady(gpu={"reasons": 0x1}), {}),
        (steady(gpu={"reasons": 0x40, "sm_mhz": 900}), {"gpu-throttled": "warning"}),
        (steady(gpu={"reasons": 0x4}), {"gpu-power-capped": "note"}),
        (steady(gpu={"processes": [GpuProcess(pid=7, ours=False)]}), {"gpu-shared": "warning"}),
        (steady(gpu={"processes": [GpuProcess(pid=7, ours=None)]}), {}),
        (steady(cpu=0.9, cpu_ours=0.5), {"cpu-shared": "warning"}),
        (steady(steal=0.1), {"cpu-steal": "warning"}),
        ([sample(t) for t in (0, 1, 9, 10)], {"telemetry-gaps": "note"}),
        ([], {}),
    ],
)
def test_findings(samples: list[TelemetrySample], wanted: dict[str, str]) -> None:
    assert findings(*samples) == wanted


def test_the_doctors_warnings_are_notes_and_told_once() -> None:
    told = {"id": "host.clock", "status": "warning", "seen": "hpet", "why": "w", "remedy": "r"}
    new = {**told, "id": "gpu.throttle"}
    found = findings(doctor=[told], doctor_after=[told, new])
    assert found == {"doctor-host.clock": "note", "doctor-gpu.throttle": "note"}


def test_units_of_a_gpu_sample() -> None:
    nvml = RecordedNvml(
        {
            "DeviceGetPowerUsage(gpu 0)": 350_500,
            "DeviceGetUtilizationRates(gpu 0)": {"gpu": 90, "memory": 40},
            "DeviceGetMemoryInfo(gpu 0)": {"total": 2 << 30, "used": 1 << 30, "free": 1 << 30},
            "DeviceGetPcieThroughput(gpu 0, 0)": 1000,
            "DeviceGetComputeRunningProcesses(gpu 0)": [{"pid": 3, "usedGpuMemory": None}],
        }
    )
    found = sample_gpu(nvml, Gpu(0), lambda pid: pid == 4)
    assert (found.power_w, found.utilisation, found.memory_used_mib) == (350.5, 0.9, 1024)
    assert found.pcie_tx_mb_s == pytest.approx(1.024)
    assert found.sm_mhz is None
    assert found.processes == [GpuProcess(pid=3, ours=False)]


def test_own_work_is_told_from_others() -> None:
    reader = Reader(None, [], local=True)
    reader.read(0)
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run(["python3", "-c", burn], check=True, start_new_session=True)
    found = reader.read(1)
    # Half a second of processor time over however long it took.
    assert found.cpu_ours is not None
    assert found.cpu is not None
    assert 0.0 < found.cpu_ours <= found.cpu + 0.05


def test_sampling_writes_what_is_read_back(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as server:
        with sampling(tmp_path, gpus=0, backend="process", interval_s=0.05):
            deadline = time.monotonic() + 20
            while len(read_telemetry(tmp_path)[1]) < 4 and time.monotonic() < deadline:
                time.sleep(0.05)
        server.kill()
    header, samples = read_telemetry(tmp_path)
    assert header is not None
    assert "gpus" in header.unavailable
    assert len(samples) >= 4
    assert any(s.server_rss_mib for s in samples)
    assert [s.t for s in samples] == sorted(s.t for s in samples)
    text = (tmp_path / "telemetry.jsonl").read_text()
    assert os.uname().nodename not in text
    with (tmp_path / "telemetry.jsonl").open("a") as out:
        out.write('{"kind": "sam')
    assert len(read_telemetry(tmp_path)[1]) == len(samples)
