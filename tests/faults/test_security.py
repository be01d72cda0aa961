"""Secrets stay out of everything the kit writes or shows; names from files lead nowhere; loopback only."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kit.backends.process import ProcessBackend
from tests.faults.bench import ROOT, Bench

CANARY = "hf_Canary9f8e7d6c5b4a"
SECRETS = {"HF_TOKEN": CANARY, "HUGGING_FACE_HUB_TOKEN": CANARY, "SOME_API_KEY": CANARY}


def holders(*folders: Path) -> list[str]:
    """Return the files that hold the canary."""
    return [
        str(path)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]


def command_lines(bench: Bench) -> str:
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in bench.reapers()]
    return b"\0".join(lines).decode("utf-8", "replace")


@pytest.mark.parametrize("stub", ["", "--log-line $HF_TOKEN"])
def test_a_secret_is_nowhere(bench: Bench, stub: str) -> None:
    """Also where the server itself prints it into its log."""
    gate = bench.gate(4)
    kit = bench.reproduce(stub=f"{gate.stub} {stub}".replace("$HF_TOKEN", CANARY), **SECRETS)
    gate.reached(kit)
    seen = command_lines(bench)
    assert "stub_server" in seen
    assert "kit.backends.reaper" in seen
    assert CANARY not in seen
    gate.open()
    assert kit.wait() == 5
    for command in (["check"], ["report"], ["show", "baseline", "--rig", "tiny"], ["fingerprint"]):
        shown = bench.run(*command, **SECRETS)
        assert CANARY not in shown.out + shown.err
    assert CANARY not in kit.out + kit.err
    assert holders(bench.runs, bench.temp) == []
    assert list(bench.latest().glob("report.html"))


def test_a_dying_server_does_not_give_it_away(bench: Bench) -> None:
    kit = bench.reproduce(stub=f"--mode exit-at-start --log-line {CANARY}", **SECRETS)
    assert kit.wait() == 3
    assert "***" in kit.out
    assert CANARY not in kit.out + kit.err
    assert holders(bench.runs) == []


def test_a_secret_is_in_no_compose_file(bench: Bench, tmp_path: Path) -> None:
    kit = bench.run("compose", "render", **SECRETS)
    assert CANARY not in kit.out + kit.err
    assert holders(bench.folder) == []


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "..", "a/b", "-rf", "$(id)", "a" * 300, ""]
)
@pytest.mark.parametrize("option", ["--rig", "-s"])
def test_names_lead_nowhere(bench: Bench, option: str, name: str) -> None:
    other = ["--rig", "tiny"] if option == "-s" else []
    kit = bench.run("reproduce", option, name, *other, "--backend", "process")
    assert kit.wait() == 2
    assert "Traceback" not in kit.err
    assert not bench.runs.exists()


def test_a_manifest_that_names_paths_leads_nowhere(bench: Bench) -> None:
    assert bench.reproduce(stub="--mode die-after --after 20").wait() == 3
    path = bench.latest()
    manifest = json.loads((path / "run.json").read_text())
    before = sorted(p for p in bench.folder.rglob("*") if "kit" not in p.name)
    for key, value in (
        ("run_id", "../../../outside"),
        ("rig", {**manifest["rig"], "name": "../../outside"}),
        ("plan", {**manifest["plan"], "scenarios": ["../../outside"]}),
        ("backend", "../outside"),
        ("scenarios", {"../../outside": {}}),
    ):
        (path / "run.json").write_text(json.dumps({**manifest, key: value}))
        for argv in (
            ["reproduce", "--resume", str(path)],
            ["check", str(path)],
            ["report", str(path)],
        ):
            kit = bench.run(*argv, stub="--mode exit-at-start")
            kit.wait()
            assert not re.search(r'File ".*/kit/', kit.out + kit.err), kit.out + kit.err
    after = sorted(p for p in bench.folder.rglob("*") if "kit" not in p.name)
    new = [p for p in after if p not in before and not p.is_relative_to(path)]
    assert new == []


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!x"]
)
def test_yaml_builds_no_objects(bench: Bench, tag: str) -> None:
    evil = bench.folder / "evil"
    text = f"schema: 1\nname: tiny\ntitle: {tag} ['touch {evil}']\n"
    (bench.home / "scenarios" / "rigs" / "tiny.yaml").write_text(text)
    kit = bench.run("show", "baseline", "--rig", "tiny")
    assert kit.wait() == 2
    assert not evil.exists()


def test_the_server_listens_on_loopback_only(bench: Bench) -> None:
    kit = bench.run("show", "baseline", "--rig", "tiny", "--json")
    shown = kit.out
    assert "127.0.0.1" in shown
    assert "0.0.0.0" not in shown
    assert ProcessBackend().host == "127.0.0.1"


def test_no_module_loads_yaml_or_pickles_unsafely() -> None:
    bad = re.compile(
        r"yaml\.(unsafe_load|full_load|load)\(|\bpickle\b|torch\.load\(|(?<![\w.])eval\(|shell=True"
    )
    found = []
    for path in (ROOT / "kit").rglob("*.py"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if bad.search(line) and not line.lstrip().startswith("#"):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    # The one loader is a subclass of SafeLoader.
    assert [f for f in found if "Loader=_UniqueKeyLoader" not in f] == []


def test_code_from_a_model_folder_runs_only_where_asked_and_is_said(bench: Bench) -> None:
    bench.reproduce().wait()
    launch = bench.data().launches[0]
    assert "--trust-remote-code" not in launch.argv
    bench.clear()
    bench.rig(server={"trust_remote_code": True})
    kit = bench.reproduce()
    assert kit.wait() == 5
    assert "--trust-remote-code" in bench.data().launches[0].argv
    said = "allowed to run code from the model's folder"
    assert said in bench.data().manifest.caveat
    assert said in kit.out.replace("\n", " ")
    page = (bench.latest() / "report.html").read_text(encoding="utf-8")
    assert "trust_remote_code" in page


@pytest.mark.parametrize("name", ["trust-remote-code", "host", "model-path"])
def test_a_rig_cannot_set_it_by_the_way(bench: Bench, name: str) -> None:
    bench.rig(server={"args": {name: True}})
    kit = bench.run("show", "baseline", "--rig", "tiny")
    assert kit.wait() == 2
    assert name in kit.err
