"""The compose files with a real engine and a real server: `docker compose up`, a request, what a container shows."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit import reproduce as pipeline
from kit.backends.base import http_json
from kit.image import Built
from kit.planted import Plan, make_pair
from kit.scenarios import all_scenarios, load_rig
from tests.docker.conftest import ROOT

OVERRIDES = [
    [],
    ["compose.devices.yaml"],
    ["compose.cpu.yaml"],
    ["compose.cpu.yaml", "compose.devices.yaml"],
]
TOKEN = f"hf_{uuid.uuid4().hex}"


@dataclass
class Project:
    """A Compose project with names of its own, so that nobody's volumes are touched."""

    name: str
    port: int
    image: str
    token_file: Path

    def __call__(
        self, *argv: str, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        files = ["-f", "compose.yaml", "-f", "compose.cpu.yaml"]
        own = {
            "KIT_IMAGE": self.image,
            "KIT_VOLUMES": self.name,
            "PORT": str(self.port),
            "HF_TOKEN": "",
            "HF_TOKEN_FILE": str(self.token_file),
        }
        done = subprocess.run(
            ["docker", "compose", "-p", self.name, *files, *argv],
            cwd=ROOT,
            env={**os.environ, **own, **env},
            capture_output=True,
            text=True,
            timeout=240,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="module")
def project(cpu_image: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    # In a folder that only this user may enter; the container gets the file, and reads it as another user.
    token_file = tmp_path_factory.mktemp("secret") / "token"
    token_file.write_text(f"{TOKEN}\n")
    token_file.chmod(0o444)
    made = Project(f"kit-test-{uuid.uuid4().hex[:8]}", port, cpu_image.name, token_file)
    yield made
    made("--profile", "*", "down", "--volumes", "--timeout", "5")


@pytest.fixture(scope="module")
def up(project: Project) -> Project:
    project("up", "--wait", "spec-v2")
    return project


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The pair's plan, made here: the same spec gives the same bytes everywhere."""
    spec = pipeline.pair_spec(load_rig("cpu"))
    assert spec is not None
    return Plan.load(make_pair(spec, tmp_path_factory.mktemp("pair") / "cpu"))


def inspect(client: Any, project: Project, service: str) -> dict[str, Any]:
    labels = [
        f"com.docker.compose.project={project.name}",
        f"com.docker.compose.service={service}",
    ]
    (container,) = client.containers.list(all=True, filters={"label": labels})
    facts: dict[str, Any] = container.attrs
    return facts


@pytest.mark.parametrize("overrides", OVERRIDES, ids="+".join)
def test_every_combination_of_override_and_profile_is_valid(overrides: list[str]) -> None:
    names = [s.name for s in all_scenarios()]
    profiles = [[], *([n] for n in [*names, "bench", "servers"]), ["*"]]
    for profile in profiles:
        files = itertools.chain(*(("-f", f) for f in ["compose.yaml", *overrides]))
        flags = itertools.chain(*(("--profile", p) for p in profile))
        done = subprocess.run(
            ["docker", "compose", *files, *flags, "config"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (overrides, profile, done.stderr)
        services = yaml.safe_load(done.stdout)["services"]
        expected = {"pair"}
        if profile and profile[0] in names:
            expected |= {profile[0]}
        if profile and profile[0] in ("servers", "*"):
            expected |= set(names)
        if profile and profile[0] in ("bench", "*"):
            expected |= {"bench"}
        assert set(services) == expected
        for name in set(services) - {"bench"}:
            gpu = (
                services[name]
                .get("deploy", {})
                .get("resources", {})
                .get("reservations", {})
                .get("devices")
            )
            assert bool(gpu) == (not overrides), name
            assert bool(services[name].get("devices")) == ("compose.devices.yaml" in overrides), (
                name
            )


def test_config_with_real_weights_mounts_them_read_only(tmp_path: Path) -> None:
    env = {**os.environ, "MODEL_PATH": "/m/target", "DRAFT_MODEL_PATH": "/m/draft", "TP": "8"}
    done = subprocess.run(
        ["docker", "compose", "-f", "compose.yaml", "--profile", "spec-v2", "config"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    service = yaml.safe_load(done.stdout)["services"]["spec-v2"]
    mounts = {v["target"]: v for v in service["volumes"]}
    assert mounts["/m/target"]["source"] == "/m/target"
    assert mounts["/m/target"]["read_only"] is mounts["/m/draft"]["read_only"] is True
    argv = service["command"]
    assert argv[argv.index("--model-path") + 1] == "/m/target"
    assert argv[argv.index("--speculative-draft-model-path") + 1] == "/m/draft"
    assert argv[argv.index("--tp-size") + 1] == "8"


def test_healthy_after_a_decoded_token_and_output_is_exact(
    up: Project, plan: Plan, client: Any
) -> None:
    assert inspect(client, up, "spec-v2")["State"]["Health"]["Status"] == "healthy"
    assert "decodes" in json.dumps(inspect(client, up, "spec-v2")["State"]["Health"]["Log"])
    prompt = plan.prompt(7, 32)
    body = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True},
    }
    reply = http_json(f"http://127.0.0.1:{up.port}/generate", body, 60)
    assert reply["output_ids"] == plan.continuation(prompt, 64)
    assert reply["meta_info"]["spec_verify_ct"] == plan.verify_steps(prompt, 64, 1, 3, 4)
    assert inspect(client, up, "pair")["State"]["ExitCode"] == 0


def test_container_has_no_privilege_and_listens_on_loopback(up: Project, client: Any) -> None:
    facts = inspect(client, up, "spec-v2")
    host = facts["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert not host["Privileged"]
    assert host["RestartPolicy"]["Name"] == "no"
    assert facts["Config"]["User"] == "kit"
    for service in ("spec-v2", "pair"):
        assert inspect(client, up, service)["HostConfig"]["ReadonlyRootfs"], service
    (binding,) = facts["NetworkSettings"]["Ports"]["30000/tcp"]
    assert binding["HostIp"] == "127.0.0.1"
    pairs = [m for m in facts["Mounts"] if m["Destination"] == "/pairs"]
    assert [m["RW"] for m in pairs] == [False]
    try_all = "id -u; for p in /pairs /opt/kit /home/kit /var/tmp /cache /tmp; do touch $p/x && echo $p; done"
    # The real server runs in it: what it has to write finds a place.
    assert up("exec", "spec-v2", "sh", "-c", try_all, check=False).stdout.split() == [
        "10001",
        "/cache",
        "/tmp",
    ]


def test_token_reaches_the_container_and_nothing_that_is_shown(up: Project, client: Any) -> None:
    assert up("exec", "spec-v2", "cat", "/run/secrets/hf_token").stdout.strip() == TOKEN
    assert (
        up("exec", "spec-v2", "printenv", "HF_TOKEN_PATH").stdout.strip() == "/run/secrets/hf_token"
    )
    assert TOKEN not in json.dumps(inspect(client, up, "spec-v2"))
    assert TOKEN not in up("logs").stdout
    assert TOKEN not in up("--profile", "*", "config").stdout
    assert TOKEN not in up("exec", "spec-v2", "sh", "-c", "cat /proc/[0-9]*/cmdline").stdout


def test_token_in_a_variable_reaches_the_container_too(project: Project, client: Any) -> None:
    """Compose copies it in, so that this root file system is the one that is not read-only."""
    name = f"{project.name}-token"
    flags = ["run", "--detach", "--no-deps", "--name", name, "--entrypoint", "sleep"]
    project(*flags, "baseline", "600", HF_TOKEN=TOKEN)
    container = client.containers.get(name)
    try:
        shown = container.exec_run(["cat", "/run/secrets/hf_token"]).output
        assert shown.decode().strip() == TOKEN
        assert not container.attrs["HostConfig"]["ReadonlyRootfs"]
        assert TOKEN not in json.dumps(container.attrs)
        assert TOKEN not in container.exec_run(["printenv"]).output.decode()
        assert TOKEN not in project("--profile", "*", "config", HF_TOKEN=TOKEN).stdout
    finally:
        container.remove(force=True, v=True)


def test_no_token_set_is_no_error(project: Project) -> None:
    shown = yaml.safe_load(project("--profile", "spec-v2", "config", HF_TOKEN_FILE="").stdout)
    service = shown["services"]["spec-v2"]
    assert service["secrets"] == [{"source": "token", "target": "hf_token"}]
    assert shown["secrets"]["token"]["file"] == "/dev/null"
    assert service["read_only"] is True


def test_bench_measures_from_inside_the_network(up: Project) -> None:
    words = ["kit", "bench", "spec-v2", "--rig", "cpu", "--url", "http://spec-v2:30000"]
    done = up("run", "--rm", "bench", *words, "--levels", "2", check=False)
    text = done.stdout + done.stderr
    # Server and client share a test host's few cores: that the client was held up may be found, and nothing else.
    found = set(re.findall(r"INVALID \[([a-z-]+)\]", text))
    assert found <= {"client-bound"}, text
    assert "spec-v2" in text
    # No golden file for it, or another machine's: the measurement itself must have worked.
    assert done.returncode in ((3,) if found else (0, 1, 4, 5)), text


def test_second_up_reuses_the_pair(up: Project) -> None:
    made = up("logs", "pair").stdout
    assert "making a planted pair" in made
    up("up", "--no-deps", "--force-recreate", "--no-log-prefix", "pair")
    assert "making a planted pair" not in up("logs", "pair").stdout


def test_down_leaves_nothing_but_named_volumes(up: Project, client: Any) -> None:
    up("--profile", "*", "down", "--timeout", "10")
    mine = {"label": f"com.docker.compose.project={up.name}"}
    assert client.containers.list(all=True, filters=mine) == []
    assert client.networks.list(filters=mine) == []
    assert {v.name for v in client.volumes.list(filters=mine)} <= {
        f"{up.name}-{part}" for part in ("pairs", "jit", "runs")
    }
