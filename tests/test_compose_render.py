"""The compose files, the launch overrides and the engine's messages, without an engine."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kit import image
from kit.backends import engine
from kit.backends.watch import probe_command
from kit.cli.containers import compose_group, image_group
from kit.compose import FILES, render_all, stale, write_all
from kit.compose.launch import container_user, inner_argv, launch_override, model_mounts
from kit.compose.render import SGLANG, image_name, lock_sha256, patch_ids
from kit.container import cache_key, command, environment
from kit.errors import UserError
from kit.healthcheck import main as healthcheck
from kit.scenarios import ServerCommand, all_scenarios, load_rig
from kit.sglang_plugin import cpu_server_args

ROOT = Path(__file__).resolve().parent.parent


class _Loader(yaml.SafeLoader):
    """Reads Compose's own tags as (tag, value)."""


def _tagged(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> tuple[str, object]:
    if isinstance(node, yaml.SequenceNode):
        return tag, loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return tag, loader.construct_mapping(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    return tag, loader.construct_scalar(node)


_Loader.add_multi_constructor("!", _tagged)


def load(text: str) -> dict[str, dict[str, dict[str, object]]]:
    loaded: dict[str, dict[str, dict[str, object]]] = yaml.load(text, _Loader)
    return loaded


# --- the committed files


def test_committed_files_are_what_is_rendered() -> None:
    assert stale(ROOT) == [], "run `kit compose render` and commit"


def test_a_changed_scenario_makes_them_stale_and_render_mends(project: Path) -> None:
    shutil.copytree(ROOT / "locks", project / "locks")
    assert write_all(project) == list(FILES)
    assert stale(project) == []
    scenario = project / "scenarios" / "spec-v2.yaml"
    scenario.write_text(scenario.read_text() + "args: {watchdog-timeout: 77}\n")
    assert stale(project) == ["compose.yaml", "compose.cpu.yaml"]
    assert write_all(project) == ["compose.yaml", "compose.cpu.yaml"]
    assert '"--watchdog-timeout", "77"' in (project / "compose.yaml").read_text()


def test_a_changed_lock_makes_them_stale(project: Path) -> None:
    shutil.copytree(ROOT / "locks", project / "locks")
    write_all(project)
    lock = project / "locks" / "cuda13-py312.txt"
    lock.write_text(lock.read_text() + "\n")
    assert stale(project) == ["compose.yaml"]


def test_every_scenario_is_a_service_behind_its_own_profile() -> None:
    services = load(render_all(ROOT)["compose.yaml"])["services"]
    for scenario in all_scenarios():
        assert scenario.name in services[scenario.name]["profiles"]  # type: ignore[operator]
    assert "profiles" not in services["pair"], "a dependency must not need a profile of its own"


def test_cpu_services_carry_the_plug_in_and_no_gpu() -> None:
    services = load(render_all(ROOT)["compose.cpu.yaml"])["services"]
    for scenario in all_scenarios():
        service = services[scenario.name]
        assert service["deploy"] == ("reset", "null")
        assert service["environment"]["SGLANG_USE_CPU_ENGINE"] == "1"  # type: ignore[index]
        argv = service["command"]
        assert isinstance(argv, list)
        assert argv[-len(cpu_server_args()) :] == cpu_server_args()


def test_every_server_is_contained() -> None:
    services = load(render_all(ROOT)["compose.yaml"])["services"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "no", name
        assert "privileged" not in service, name
        assert service.get("read_only") == "${READ_ONLY_ROOT:-true}" or "root" in str(
            service["extends"]
        ), name
        ports = service.get("ports", [])
        assert isinstance(ports, list)
        assert all(str(p).startswith("127.0.0.1:") for p in ports), name
        volumes = service.get("volumes", [])
        assert isinstance(volumes, list)
        for volume in map(str, volumes):
            if "MODEL_PATH" in volume:
                assert volume.endswith(":ro"), name


def test_the_token_is_a_secret_and_nothing_else() -> None:
    text = render_all(ROOT)["compose.yaml"]
    for line in text.splitlines():
        if "HF_TOKEN" in line and not line.lstrip().startswith("#"):
            # `:+` puts in a word of ours where the variable is set, never its value.
            rest = line.replace("${HF_TOKEN:+hf_}token", "").replace(
                "${HF_TOKEN:+-for-hf_token}", ""
            )
            assert "HF_TOKEN" not in rest or rest.strip() in (
                "hf_token: {environment: HF_TOKEN}",
                'token: {file: "${HF_TOKEN_FILE:-/dev/null}"}',
            )


def test_a_root_that_can_be_written_to_is_for_a_token_in_a_variable_only() -> None:
    roots = yaml.safe_load((ROOT / "compose.root.yaml").read_text())["services"]
    assert roots["root"]["read_only"] == "${READ_ONLY_ROOT:-true}"
    assert roots["root-for-hf_token"] == {"tmpfs": roots["root"]["tmpfs"]}
    services = load(render_all(ROOT)["compose.yaml"])["services"]
    for scenario in all_scenarios():
        assert services[scenario.name]["extends"] == {
            "file": "compose.root.yaml",
            "service": "root${HF_TOKEN:+-for-hf_token}",
        }


def test_cli_render_check(project: Path) -> None:
    shutil.copytree(ROOT / "locks", project / "locks")
    run = CliRunner()
    done = run.invoke(compose_group, ["render", "--check"])
    assert done.exit_code == 1
    assert "out of step: compose.yaml" in done.stdout
    assert run.invoke(compose_group, ["render"]).exit_code == 0
    assert run.invoke(compose_group, ["render", "--check"]).exit_code == 0
    (project / "compose.cpu.yaml").write_text("")
    assert (
        "out of step: compose.cpu.yaml" in run.invoke(compose_group, ["render", "--check"]).stdout
    )


def test_lock_hash_is_what_the_image_build_computes(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "cpu-py311.txt").write_bytes(b"a")
    (tmp_path / "locks" / "cpu-py312.txt").write_bytes(b"b")
    (tmp_path / "locks" / "cpu-torch-py311.txt").write_bytes(b"not this one")
    # printf ab | sha256sum
    assert lock_sha256(tmp_path, "cpu") == (
        "fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603"
    )


def test_patch_ids_come_from_the_series(tmp_path: Path) -> None:
    assert patch_ids(tmp_path) == []
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "series").write_text("# all\n0001-a.patch\n\n0002-b.patch  # off\n")
    assert patch_ids(tmp_path) == ["0001", "0002"]


# --- what a launch adds


def _command(**env: str) -> ServerCommand:
    return ServerCommand(
        scenario="spec-v2",
        rig="cpu",
        argv=["-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", "30000"],
        env=env,
    )


def _launch(command: ServerCommand, **changed: object) -> dict[str, object]:
    given: dict[str, object] = {
        "port": 31000,
        "image": "i:1",
        "project": "kit-p",
        "cache": "kit-jit-x",
        "folders": ["/m/target"],
    }
    text = launch_override(command, **{**given, **changed})  # type: ignore[arg-type]
    return load(text)["services"]["spec-v2"]


def test_launch_listens_everywhere_inside_and_on_loopback_outside() -> None:
    service = _launch(_command())
    argv = service["command"]
    assert isinstance(argv, list)
    assert argv[argv.index("--host") + 1] == "0.0.0.0"
    assert service["ports"] == ("override", ["127.0.0.1:31000:31000"])


def test_launch_turns_off_the_service_that_makes_models_and_with_it_their_volume() -> None:
    given = launch_override(
        _command(), port=1, image="i", project="p", cache="c", folders=["/m/target"]
    )
    assert load(given)["services"]["pair"] == {"profiles": ["pair"]}


def test_launch_mounts_models_read_only_at_their_own_path() -> None:
    tag, volumes = _launch(_command())["volumes"]  # type: ignore[misc]
    assert tag == "override"
    (model,) = [v for v in volumes if v["type"] == "bind"]
    assert model["source"] == model["target"] == "/m/target"
    assert model["read_only"] is True
    assert model["bind"] == {"create_host_path": False}


def test_launch_brings_the_drivers_libraries_without_a_toolkit() -> None:
    _, volumes = _launch(_command(), libraries=["/usr/lib/x/libcuda.so.1"])["volumes"]  # type: ignore[misc]
    (driver,) = [v for v in volumes if "libcuda" in v["source"]]
    assert driver["target"] == "/usr/local/nvidia/lib64/libcuda.so.1"
    assert driver["read_only"] is True


def test_launch_leaves_the_hosts_python_path_out() -> None:
    service = _launch(_command(PYTHONPATH="/host/standins", OMP_NUM_THREADS="1"))
    assert service["environment"] == {"OMP_NUM_THREADS": "1"}


def test_launch_limits_memory_and_swap_together() -> None:
    service = _launch(_command(), memory="300m", user="1:2", devices=["/dev/nvidia1"])
    assert (service["mem_limit"], service["memswap_limit"]) == ("300m", "300m")
    assert service["user"] == "1:2"
    assert service["devices"] == ["/dev/nvidia1"]


@given(st.text(st.characters(codec="utf-8")))
def test_launch_passes_any_value_as_it_is(value: str) -> None:
    service = _launch(_command(A=value))
    assert service["environment"]["A"].replace("$$", "$") == value  # type: ignore[index]
    assert service["environment"]["A"].count("$") == 2 * value.count("$")  # type: ignore[index]


def test_inner_argv_without_a_host_is_left_alone() -> None:
    assert inner_argv(["a", "b"]) == ["a", "b"]


def test_linked_snapshot_brings_its_blobs(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "abc").write_text("x")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    (snapshot / "config.json").write_text("{}")
    assert model_mounts(["--model-path", str(snapshot)]) == [str(snapshot), str(blobs)]
    assert model_mounts([]) == []


def test_missing_model_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no folder"):
        model_mounts(["--model-path", str(tmp_path / "none")])


def test_user_that_can_read_the_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    tmp_path.chmod(0o755)
    (tmp_path / "config.json").chmod(0o644)
    assert container_user([str(tmp_path)]) is None
    (tmp_path / "config.json").chmod(0o600)
    if os.getuid() == 0:
        with pytest.raises(UserError, match="Only root may read"):
            container_user([str(tmp_path)])
        os.chown(tmp_path / "config.json", 1234, 1235)
        assert container_user([str(tmp_path)]) == "1234:1235"
    else:
        assert container_user([str(tmp_path)]) == f"{os.getuid()}:{os.getgid()}"


# --- sentences


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]',
            "no NVIDIA runtime",
        ),
        (
            "driver failed programming external connectivity on endpoint x: Bind for 127.0.0.1:30000 failed: "
            "port is already allocated",
            "port is in use",
        ),
        (
            "listen tcp4 127.0.0.1:30000: bind: address already in use",
            "port is in use",
        ),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "may not use the Docker Engine's socket",
        ),
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "does not answer",
        ),
        ("Error response from daemon: No such image: kit-sglang:x", "image is not on this engine"),
        (
            'error gathering device information while adding custom device "/dev/nvidia7": no such file',
            "/dev/nvidia7",
        ),
        ("write /var/lib/docker/x: no space left on device", "disk is full"),
        (
            "error setting rlimits for ready process: error setting rlimit type 8: operation not permitted",
            "locked memory",
        ),
    ],
)
def test_known_messages_become_one_sentence(message: str, sentence: str) -> None:
    error = engine.explain(message)
    assert error is not None
    assert sentence in error.sentence
    assert error.remedy


def test_unknown_message_is_not_explained_away() -> None:
    assert engine.explain("something else entirely") is None


def test_no_engine_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no Docker Engine at unix://"):
        engine.connect(f"unix://{tmp_path}/none.sock")


def test_forbidden_socket_is_one_sentence(tmp_path: Path) -> None:
    # Imported before the user changes: it may not be allowed to read this environment.
    code = (
        "import os\n"
        "from kit.backends import engine\n"
        "from kit.errors import UserError\n"
        "os.setuid(65534)\n"
        "try: engine._knock('unix:///run/kit-test.sock')\n"
        "except UserError as error: print(error.sentence)\n"
    )
    if os.getuid() != 0:
        pytest.skip("only root can make a socket that this user may not use")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("/run/kit-test.sock")
        try:
            Path("/run/kit-test.sock").chmod(0o600)
            door.listen()
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        finally:
            Path("/run/kit-test.sock").unlink()
    assert "may not use the Docker Engine's socket" in done.stdout, done.stderr


def test_dead_engine_is_one_sentence(free_port: int) -> None:
    with pytest.raises(UserError, match="does not answer"):
        engine.connect(f"tcp://127.0.0.1:{free_port}", timeout_s=5)


def _fake_docker(folder: Path, output: str, code: int = 0) -> str:
    fake = folder / "docker"
    fake.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
    fake.chmod(0o755)
    return str(fake)


@pytest.mark.parametrize(
    ("output", "code", "sentence"),
    [
        ("docker: 'compose' is not a docker command.", 1, "Compose v2 plug-in is missing"),
        ("2.20.3", 0, "Docker Compose 2.20.3 is too old"),
        ("v2.24.3-desktop.1", 0, "is too old"),
    ],
)
def test_compose_that_will_not_do(tmp_path: Path, output: str, code: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        engine.compose_version([_fake_docker(tmp_path, output.replace("'", ""), code)])


@pytest.mark.parametrize("output", ["2.24.4", "2.26.1-4", "v2.29.7", "5.0.0"])
def test_compose_that_will_do(tmp_path: Path, output: str) -> None:
    assert engine.compose_version([_fake_docker(tmp_path, output)]) == output


def test_no_docker_command_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`docker` command is not installed"):
        engine.compose_version([str(tmp_path / "none")])


def test_endpoint_prefers_the_variable() -> None:
    assert engine.endpoint({"DOCKER_HOST": "tcp://h:1"}) == "tcp://h:1"


def test_probe_names_the_device_that_cannot_be_opened(tmp_path: Path) -> None:
    good = subprocess.run(probe_command(["/dev/null"]), capture_output=True, text=True)
    assert (good.returncode, good.stdout) == (0, "")
    bad = subprocess.run(
        probe_command(["/dev/null", f"{tmp_path}/gone"]), capture_output=True, text=True
    )
    assert (bad.returncode, bad.stdout.strip()) == (1, f"{tmp_path}/gone")


# --- inside the image


def test_caches_are_kept_apart_by_image(tmp_path: Path) -> None:
    facts = tmp_path / "image.json"
    facts.write_text(json.dumps({"cache_key": "abc"}))
    assert cache_key(facts) == "abc"
    assert cache_key(tmp_path / "none") == "unknown"
    env = environment(
        {"KIT_CACHE": str(tmp_path), "HOME": str(tmp_path), "TRITON_CACHE_DIR": "/t"}, "abc"
    )
    assert env["FLASHINFER_WORKSPACE_BASE"] == f"{tmp_path}/abc/flashinfer"
    assert env["TRITON_CACHE_DIR"] == "/t", "what is set is kept"
    assert env["HOME"] == str(tmp_path)
    assert "SGLANG_USE_CPU_ENGINE" not in env


def test_user_without_a_home_gets_one(tmp_path: Path) -> None:
    env = environment({"KIT_CACHE": str(tmp_path), "HOME": str(tmp_path / "none")}, "abc")
    assert env["HOME"] == f"{tmp_path}/abc/home"


def test_caches_and_home_are_temporary_where_nothing_else_can_be_written(tmp_path: Path) -> None:
    env = environment({"KIT_CACHE": str(tmp_path / "none"), "HOME": "/none"}, "abc")
    temporary = tempfile.gettempdir()
    assert env["TRITON_CACHE_DIR"] == f"{temporary}/kit-cache/abc/triton"
    assert env["HOME"] == f"{temporary}/kit-cache/abc/home"


def test_cpu_engine_gets_its_environment() -> None:
    env = environment({"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "2"}, "abc")
    assert env["TORCHDYNAMO_DISABLE"] == "1"
    assert env["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("argv", "becomes"),
    [
        (["kit", "pair", "make"], ["py", "-m", "kit", "pair", "make"]),
        (["-m", "sglang.launch_server"], ["py", "-m", "sglang.launch_server"]),
        (["sh", "-c", "x"], ["sh", "-c", "x"]),
        ([], ["py"]),
    ],
)
def test_entry_point_becomes_the_command(argv: list[str], becomes: list[str]) -> None:
    assert command(argv, "py") == becomes


def test_health_check_needs_a_decoded_token(
    free_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert healthcheck([f"http://127.0.0.1:{free_port}"]) == 1
    assert "does not decode" in capsys.readouterr().out
    asked: list[str] = []
    monkeypatch.setattr(
        "kit.healthcheck.decodes", lambda url, _timeout: bool(asked.append(url)) or True
    )
    monkeypatch.setenv("KIT_HEALTH_URL", "http://127.0.0.1:1/")
    assert healthcheck([]) == 0
    assert asked == ["http://127.0.0.1:1"]


# --- the build


def test_context_holds_what_the_dockerfiles_copy_and_no_more(tmp_path: Path) -> None:
    names = [name for name, _ in image.context_files(ROOT)]
    for line in (ROOT / "Dockerfile.cuda13").read_text().splitlines():
        if line.startswith("COPY ") and "[" not in line:
            for source in line.split()[1:-1]:
                assert any(n == source or n.startswith(f"{source}/") for n in names), source
    assert "scripts/image/install.sh" in names
    assert not [n for n in names if n.startswith(("tests/", "runs/", ".git")) or "__pycache__" in n]


def test_context_stream_depends_on_contents_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "kit").mkdir(parents=True)
    (root / "kit" / "a.py").write_text("1")
    (root / "pyproject.toml").write_text("")

    def stream() -> bytes:
        out = io.BytesIO()
        image.send_context(out, root)
        return out.getvalue()

    first = stream()
    os.utime(root / "kit" / "a.py", (1, 1))
    (root / "kit" / "a.py").chmod(0o600)
    assert stream() == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert archive.getnames() == ["kit/a.py", "pyproject.toml"]


def test_wheelhouse_joins_the_context(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no wheels"):
        list(image.context_files(ROOT, tmp_path))
    (tmp_path / "x-1-py3-none-any.whl").write_text("w")
    assert "wheelhouse/x-1-py3-none-any.whl" in [n for n, _ in image.context_files(ROOT, tmp_path)]


def test_build_command_holds_paths_of_secrets_not_their_contents(tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.write_text("https://user:hunter2@index.example/simple")
    request = image.Request(
        flavour="cpu", base_image="b:1", index_url_file=index, offline=True, network="host"
    )
    argv = image.command(request, ROOT)
    assert not any("hunter2" in word for word in argv)
    assert f"id=index,src={index}" in argv
    assert {"BASE_IMAGE=b:1", "OFFLINE=1"} <= set(argv)
    assert f"LOCK_SHA256={lock_sha256(ROOT, 'cpu')}" in argv
    assert argv[argv.index("--tag") + 1] == image_name("cpu")


DIGEST = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("local", "registry", "named", "digest"),
    [
        (f'["debian@{DIGEST}"] sha256:own', "", "debian:12", DIGEST),
        ("[] sha256:own", "", "debian:12", "sha256:own"),
        ("", DIGEST, f"debian:12@{DIGEST}", DIGEST),
        ("", "", "debian:12", ""),
    ],
    ids=["pulled", "made here", "in its registry", "out of reach"],
)
def test_base_is_pinned_by_what_can_be_known_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    local: str,
    registry: str,
    named: str,
    digest: str,
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        f"#!/bin/sh\ncase $1 in image) t='{local}';; buildx) t='{registry}';; esac\n"
        '[ -n "$t" ] && echo "$t"\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    base = image.resolve_base("debian:12")
    assert base == image.Base(named, digest)
    argv = image.command(image.Request(flavour="cpu", base_image="debian:12"), ROOT, base)
    assert {f"BASE_IMAGE={named}", f"BASE_DIGEST={digest}"} <= set(argv)


def test_base_named_with_its_digest_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    assert image.resolve_base(f"d:1@{DIGEST}") == image.Base(f"d:1@{DIGEST}", DIGEST)


@pytest.mark.parametrize("flavour", image.FLAVOURS)
def test_labels_say_what_an_image_is_made_of(flavour: str) -> None:
    text = (ROOT / f"Dockerfile.{flavour}").read_text()
    for label, argument in {
        "org.opencontainers.image.revision": "GIT_COMMIT",
        "org.opencontainers.image.base.name": "BASE_IMAGE",
        "org.opencontainers.image.base.digest": "BASE_DIGEST",
        "kit.patches": "PATCH_IDS",
        "kit.lock.sha256": "LOCK_SHA256",
    }.items():
        assert f'{label}="${{{argument}}}"' in text
    assert f'org.opencontainers.image.version="{SGLANG}"' in text


def test_too_little_room_is_said_before_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.image.NEEDED_BYTES", {"cpu": 10**18})
    with pytest.raises(UserError, match=r"needs 1000000000 GB"):
        image.check_room(image.Request(flavour="cpu"), tmp_path)
    image.check_room(image.Request(flavour="cpu"), tmp_path / "seen-from-nowhere")


def test_cli_dry_run_prints_the_command() -> None:
    done = CliRunner().invoke(image_group, ["build", "cpu", "--dry-run"])
    assert done.exit_code == 0
    assert "docker buildx build" in done.stdout
    assert "scripts/image/finish.sh" in done.stdout


def test_rig_of_the_compose_file_is_planted() -> None:
    from kit.compose.render import service

    with pytest.raises(UserError, match="no planted pair"):
        service(all_scenarios()[0], load_rig("rtx-pro-6000-x8"))
