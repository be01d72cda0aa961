"""`kit doctor` in a container with little of everything: what it must say there."""

from __future__ import annotations

import json
from typing import Any

import docker.types

from kit.image import Built

# Docker's default /dev/shm, a limit that the planted pair's server does not fit under, and few open files.
LITTLE = {
    "mem_limit": "512m",
    "memswap_limit": "512m",
    "shm_size": "64m",
    "ulimits": [docker.types.Ulimit(name="nofile", soft=512, hard=512)],
    "user": "10002:10002",
    "network_mode": "none",
    "read_only": True,
    "tmpfs": {"/tmp": "size=64m,mode=1777", "/runs": "size=512m,mode=1777"},
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}


def doctor(client: Any, image: Built, *words: str, **options: Any) -> tuple[int, str]:
    container = client.containers.run(
        image.name, ["kit", "doctor", "--rig", "cpu", *words], detach=True, **options
    )
    try:
        code = container.wait(timeout=120)["StatusCode"]
        return code, container.logs(stdout=True, stderr=True).decode()
    finally:
        container.remove(force=True, v=True)


def test_little_of_everything_is_told(client: Any, cpu_image: Built) -> None:
    code, text = doctor(client, cpu_image, "--backend", "process", "--json", **LITTLE)
    found = {r["id"]: r for r in json.loads(text)["results"]}
    told = {name: (found[name]["status"], found[name]["seen"]) for name in found}
    assert code == 2, text

    status, seen = told["host.memory-limit"]
    assert status == "blocker", seen
    assert seen.startswith("limit 0.5 GiB")
    assert "docker run --memory" in found["host.memory-limit"]["remedy"]

    status, seen = told["host.shm"]
    assert status == "warning", seen
    assert "/dev/shm has 64 MiB" in seen
    assert "--shm-size" in found["host.shm"]["remedy"]

    status, seen = told["host.ulimits"]
    assert status == "warning", seen
    assert "open files 512" in seen

    # The image's user may write there, this one on a read-only root may not.
    status, seen = told["host.disk"]
    assert status == "blocker", seen
    assert "the planted pair cannot be written to /pairs/cpu" in seen
    assert "KIT_PAIRS" in found["host.disk"]["remedy"]

    assert "container" in told["host.where"][1]
    assert told["docker.engine"][0] == "unavailable", "the process backend needs none"
    assert told["network.loopback"][0] == "ok", told["network.loopback"]
    # A user whom the image does not know, on a root that cannot be written: no check may break on it.
    assert "Traceback" not in text
    for result in found.values():
        assert result["status"] in ("ok", "unavailable") or result["remedy"], result


def test_enough_is_not_complained_of(client: Any, cpu_image: Built) -> None:
    enough = {**LITTLE, "shm_size": "1g", "ulimits": []}
    enough["environment"] = {"KIT_PAIRS": "/runs/pairs"}
    del enough["mem_limit"], enough["memswap_limit"]
    code, text = doctor(client, cpu_image, "--backend", "process", "--json", **enough)
    found = {r["id"]: r for r in json.loads(text)["results"]}
    assert found["host.shm"]["status"] == "ok", found["host.shm"]
    assert found["host.disk"]["status"] == "ok", found["host.disk"]
    assert found["host.memory-limit"]["status"] == "ok", found["host.memory-limit"]
    assert found["host.memory-limit"]["seen"] == "no limit below the machine's memory"
    assert code == (2 if any(r["status"] == "blocker" for r in found.values()) else 0), text
