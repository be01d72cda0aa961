"""Bad input of any kind is one sentence and exit 2, or a verdict; never a traceback, a hang or a write elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httptools
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import known_issues
from kit import verdict as judging
from kit.cli import cli
from kit.errors import KitError, UserError
from kit.golden import read_golden
from kit.load.connection import Connection
from kit.load.flight import Flight
from kit.load.model import Endpoint, Request, RequestResult
from kit.load.replies import reply_for
from kit.records import RunData
from kit.runfolder import SAMPLES, RunFolder, read_run
from kit.scenarios import Rig, Scenario, load_rig, load_scenario
from kit.yamlio import MAX_BYTES, read_mapping, read_model
from tests.factory import launch_record, level_record, manifest, request_record
from tests.faults.bench import ROOT

# KIT_FUZZ_EXAMPLES=20000 looks for longer.
EXAMPLES = int(os.environ.get("KIT_FUZZ_EXAMPLES", "60"))
quick = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)

# -- YAML

scalars: Any = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["../../x", "/etc/passwd", "a\nb", "$HOME", "__import__('os')", "(" * 50])
)
values: Any = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
SOURCES = [
    ROOT / "scenarios" / "baseline.yaml",
    ROOT / "scenarios" / "spec-v2.yaml",
    ROOT / "scenarios" / "rigs" / "cpu.yaml",
    ROOT / "golden" / "cpu.yaml",
    ROOT / "kit" / "known_issues" / "issues.yaml",
]


def places(data: Any, so_far: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in nested data."""
    found = [so_far] if so_far else []
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        found += places(value, (*so_far, key))
    return found


def changed(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(data, default=str))
    keys = [str(k) if not isinstance(k, int) else k for k in place]
    inner = copy
    for key in keys[:-1]:
        inner = inner[key] if isinstance(inner, list) else inner[str(key)]
    inner[keys[-1] if isinstance(inner, list) else str(keys[-1])] = value
    return copy


def reader(source: Path) -> Callable[[Path], Any]:
    if source.parent.name == "golden":
        return read_golden
    if source.parent.name == "known_issues":
        return lambda path: read_model(known_issues._File, path, "file")
    model: Any = Rig if source.parent.name == "rigs" else Scenario
    return lambda path: read_model(model, path, "file")


def refused_or_read(read: Callable[[Path], Any], path: Path) -> None:
    refused: KitError | None = None
    try:
        read(path)
    except KitError as error:
        refused = error
    if refused is not None:
        assert refused.sentence
        assert "\n" not in refused.sentence
        assert refused.exit_code == 2


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
@quick
@given(data=st.data())
def test_a_changed_value_is_read_or_refused(
    tmp_path: Path, source: Path, data: st.DataObject
) -> None:
    original = yaml.safe_load(source.read_text(encoding="utf-8"))
    place = data.draw(st.sampled_from(places(original)))
    path = tmp_path / source.name
    path.write_text(yaml.safe_dump(changed(original, place, data.draw(values))), encoding="utf-8")
    refused_or_read(reader(source), path)


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
@quick
@given(data=st.data())
def test_damaged_bytes_are_read_or_refused(
    tmp_path: Path, source: Path, data: st.DataObject
) -> None:
    raw = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=6))
    path = tmp_path / source.name
    path.write_bytes(raw)
    refused_or_read(reader(source), path)


@given(st.binary(max_size=300))
@quick
def test_any_bytes_are_a_mapping_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(raw)
    refused_or_read(lambda p: read_mapping(p, "file"), path)


def bomb(levels: int = 9) -> str:
    """A billion laughs: each list holds nine times the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for n in range(1, levels):
        inner = ", ".join([f"*a{n - 1}"] * 9)
        lines.append(f"a{n}: &a{n} [{inner}]")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        bomb(),
        "a: " + "[" * 5000,
        "a: " + "{x: " * 5000,
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
        "? [1, 2]\n: x\n",
        "? {1: 2}\n: x\n",
        "a: !!python/object:os.system x\n",
        "a: !!binary x===\n",
        "a: 2001-99-99\n",
        "a: 1:99:99999999999999999999\n",
        "a: " + "9" * 5000 + "\n",
        "a: 0x" + "f" * 100000 + "\n",
        "<<: [1]\n",
        "<<: 5\na: 1\n",
        "a: 1\na: 2\n",
        "\ufeff\ufeffa: 1\n",
        "%YAML 9.9\n---\na: 1\n",
        "--- 1\n--- 2\n",
        "a: *nothing\n",
        "",
        "null",
    ],
)
def test_poisonous_yaml_is_refused_or_harmless(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    refused_or_read(lambda p: read_mapping(p, "file"), path)
    refused_or_read(lambda p: read_model(Rig, p, "file"), path)


def test_aliases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(bomb(3))
    with pytest.raises(UserError, match="alias"):
        read_mapping(path, "file")


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: " + "x" * MAX_BYTES)
    with pytest.raises(UserError, match="larger than"):
        read_mapping(path, "file")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "none"):
        with pytest.raises(UserError):
            read_mapping(path, "file")


@given(st.text(max_size=60) | st.sampled_from(["../x", "/etc/passwd", "x\x00y", "..", "a/../b"]))
@quick
def test_no_name_leads_out_of_its_folder(name: str) -> None:
    for load in (load_rig, load_scenario):
        try:
            found: Any = load(name)
        except UserError:
            continue
        assert found.name == name


@pytest.mark.parametrize("which", ["scenarios/spec-v2.yaml", "scenarios/rigs/cpu.yaml"])
@quick
@given(data=st.data())
def test_the_command_of_a_changed_file_is_shown_or_refused(
    project: Path, which: str, data: st.DataObject
) -> None:
    """Past reading: argv and environment of a server are made of it, and nothing is written."""
    original = yaml.safe_load((ROOT / which).read_text(encoding="utf-8"))
    place = data.draw(st.sampled_from(places(original)))
    text = yaml.safe_dump(changed(original, place, data.draw(values)))
    (project / which).write_text(text, encoding="utf-8")
    before = set(project.parent.rglob("*"))
    result = CliRunner().invoke(cli, ["show", "spec-v2", "--rig", "cpu", "--json"])
    error = result.exception
    assert error is None or isinstance(error, SystemExit | KitError), repr(error)
    if error is None:
        assert json.loads(result.output)["argv"]
    assert set(project.parent.rglob("*")) == before


# -- run folders


def a_run(parent: Path) -> Path:
    with RunFolder.create(parent, "cpu") as folder:
        folder.write_manifest(manifest())
        for scenario in ("baseline", "spec-v2"):
            folder.append(launch_record(scenario=scenario))
            for level in (1, 4):
                for sweep in range(2):
                    for index in range(3):
                        folder.append(
                            request_record(scenario=scenario, sweep=sweep, level=level, index=index)
                        )
                    folder.append(level_record(scenario=scenario, sweep=sweep, level=level))
    return folder.path


def judged_or_refused(path: Path) -> RunData | None:
    try:
        run = read_run(path)
    except UserError:
        return None
    verdict = judging.judge(run, None)
    assert verdict.exit_code in range(6)
    return run


@pytest.mark.parametrize("name", ["run.json", SAMPLES])
@quick
@given(data=st.data())
def test_a_damaged_run_folder_is_judged_or_refused(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    path = a_run(tmp_path / "runs")
    raw = bytearray((path / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        raw[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=20))
    (path / name).write_bytes(raw)
    judged_or_refused(path)


@quick
@given(data=st.data())
def test_a_run_with_any_values_is_judged_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Values of the right shape and no sense: 0, infinity, negative, huge."""
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    path = a_run(tmp_path / "runs")
    lines = [json.loads(line) for line in (path / SAMPLES).read_bytes().splitlines()]
    for _ in range(data.draw(st.integers(1, 5))):
        record = data.draw(st.sampled_from(lines))
        place = data.draw(st.sampled_from(places(record)))
        number = data.draw(
            st.sampled_from([0, -1, 1e308, -1e308, 5e-324, 10**18, None, "", [], {}, True])
        )
        record.update(changed(record, place, number))
    (path / SAMPLES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged_or_refused(path)


@quick
@given(data=st.data())
def test_kit_check_of_a_run_with_a_strange_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    path = a_run(tmp_path / "runs")
    before = {p for p in tmp_path.rglob("*") if not p.is_relative_to(path)}
    original = json.loads((path / "run.json").read_text())
    place = data.draw(st.sampled_from([p for p in places(original) if len(p) < 3]))
    (path / "run.json").write_text(json.dumps(changed(original, place, data.draw(values))))
    monkeypatch.setattr("kit.report.finish.write_reports", lambda *_: None)
    result = CliRunner().invoke(cli, ["check", str(path), "--json"])
    fine = result.exception is None or isinstance(result.exception, SystemExit | KitError)
    # The patched-out report has no attributes; everything before it must have gone well.
    assert fine or "problem" in str(result.exception), result.exception
    assert {p for p in tmp_path.rglob("*") if not p.is_relative_to(path)} == before


# -- server replies

REPLY_KEYS = (
    *("meta_info", "completion_tokens", "output_ids", "text", "error", "usage", "choices"),
    *("finish_reason", "type", "message", "cached_tokens", "object", "delta"),
)
reply_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 40) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(REPLY_KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, _: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def receive(api: Any, stream: bool, pieces: list[bytes]) -> RequestResult:
    """Feed bytes to the load client as if a server had sent them; returns the result."""
    endpoint = Endpoint("http://x", api=api, stream=stream)
    result = RequestResult(index=0, send_ns=0)
    landed: list[bool] = []
    reply = reply_for(endpoint, Request(0, 16, prompt_ids=[1]), result, 0)
    flight = Flight(reply, stream, 0, lambda *_: landed.append(True))
    connection = Connection()
    connection.connection_made(Transport())
    connection.send(b"", flight)
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    assert landed == [True]
    flight.complete()
    return result


def http(body: bytes, stream: bool) -> bytes:
    kind = b"text/event-stream" if stream else b"application/json"
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        kind,
        len(body),
        body,
    )


apis = st.sampled_from(["generate", "completions", "chat"])


@quick
@given(apis, st.booleans(), st.lists(st.binary(max_size=80), max_size=6))
def test_any_bytes_are_an_error_and_never_an_exception(
    api: str, stream: bool, pieces: list[bytes]
) -> None:
    assert receive(api, stream, pieces).error is not None


@quick
@given(apis, st.booleans(), st.lists(reply_json, min_size=1, max_size=4), st.booleans())
def test_any_json_is_read_or_an_error(
    api: str, stream: bool, events: list[Any], done: bool
) -> None:
    texts = [json.dumps(e).encode() for e in events]
    chunks = [b"data: %b\n\n" % t for t in texts]
    body = b"".join(chunks) + b"data: [DONE]\n\n" * done if stream else texts[0]
    result = receive(api, stream, [http(body, stream)])
    if result.error is None:
        assert isinstance(result.completion_tokens, int)
        assert 0 <= result.completion_tokens <= 16


@quick
@given(st.data())
def test_a_good_answer_with_damage_is_read_or_an_error(data: st.DataObject) -> None:
    good = {"output_ids": [1] * 16, "text": "", "meta_info": {"completion_tokens": 16}}
    raw = bytearray(http(json.dumps(good).encode(), False))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=5))
    cut = data.draw(st.integers(0, len(raw)))
    result = receive("generate", False, [bytes(raw[:cut]), bytes(raw[cut:])])
    assert result.error is not None or result.completion_tokens is not None


def test_the_parser_is_the_real_one() -> None:
    assert Connection.data_received.__globals__["httptools"] is httptools
