from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kit.errors import UserError
from kit.patches import available
from kit.scenarios import (
    LoadConfig,
    ModelPaths,
    Override,
    Rig,
    Scenario,
    Speculative,
    all_rigs,
    all_scenarios,
    load_rig,
    load_scenario,
    model_paths,
    pick_rig,
    plain_above,
    server_command,
)
from kit.yamlio import read_mapping

MODELS = ModelPaths(target="/m/target", draft="/m/draft")
CHAIN = {"num_steps": 3, "topk": 1, "num_draft_tokens": 4}


def scenario(**changes: Any) -> Scenario:
    data = {"schema": 1, "name": "x", "title": "X", "worker": "v2", "speculative": CHAIN}
    return Scenario.model_validate({**data, **changes})


def edit(path: Path, change: Any) -> None:
    data = yaml.safe_load(path.read_text())
    change(data)
    path.write_text(yaml.safe_dump(data))


@pytest.mark.parametrize("rig", [r.name for r in all_rigs()])
@pytest.mark.parametrize("name", [s.name for s in all_scenarios()])
def test_every_scenario_on_every_rig_sets_the_running_limit(name: str, rig: str) -> None:
    command = server_command(load_scenario(name), load_rig(rig), MODELS)
    limit = command.argv[command.argv.index("--max-running-requests") + 1]
    assert int(limit) == load_rig(rig).max_running_requests
    assert "--disable-radix-cache" in command.argv


def test_spec_v1_command() -> None:
    command = server_command(load_scenario("spec-v1"), load_rig("h200"), MODELS, port=31000)
    text = " ".join(command.argv)
    assert text.startswith(
        "-m sglang.launch_server --model-path /m/target --host 127.0.0.1 --port 31000"
    )
    assert "--speculative-algorithm EAGLE3 --speculative-draft-model-path /m/draft" in text
    assert (
        "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
        in text
    )
    assert command.env["SGLANG_ENABLE_SPEC_V2"] == "False"


def test_spec_v2_command_switches_v2_on() -> None:
    command = server_command(load_scenario("spec-v2"), load_rig("h200"), MODELS)
    assert command.env["SGLANG_ENABLE_SPEC_V2"] == "True"


def test_baseline_command_has_no_speculation() -> None:
    command = server_command(load_scenario("baseline"), load_rig("cpu"), MODELS)
    assert not [a for a in command.argv if a.startswith("--speculative")]
    assert "SGLANG_ENABLE_SPEC_V2" not in command.env


@pytest.mark.parametrize(
    ("port", "grpc"), [(30000, None), (55535, None), (55536, "45536"), (65535, "55535")]
)
def test_high_ports_get_a_grpc_port_that_exists(port: int, grpc: str | None) -> None:
    command = server_command(load_scenario("baseline"), load_rig("cpu"), MODELS, port=port)
    assert command.env.get("SGLANG_GRPC_PORT") == grpc


def test_rig_overrides_win() -> None:
    data = load_rig("cpu").model_dump(by_alias=True)
    data["overrides"] = {
        "baseline": {"args": {"random-seed": 7, "log-requests": False}, "env": {"A": "b"}}
    }
    command = server_command(load_scenario("baseline"), Rig.model_validate(data), MODELS)
    assert command.argv[command.argv.index("--random-seed") + 1] == "7"
    assert "--log-requests" not in command.argv
    assert command.env["A"] == "b"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"speculative": {**CHAIN, "topk": 4, "num_draft_tokens": 8}},
            "v2 worker takes topk 1 only",
        ),
        ({"speculative": {**CHAIN, "num_draft_tokens": 5}}, "must be num_steps \\+ 1 = 4"),
        ({"worker": "plain"}, "worker: plain goes without"),
        ({"speculative": None}, "v1 and v2 need one"),
        ({"args": {"port": 1}}, "--port is set by the kit"),
        ({"env": {"SGLANG_ENABLE_SPEC_V2": "True"}}, "follows from `worker`"),
        ({"colour": "red"}, "Extra inputs"),
        ({"worker": "v3"}, "Input should be"),
        (
            {"worker": "v1", "speculative": {"num_steps": 1, "topk": 2, "num_draft_tokens": 9}},
            "at most 3 tokens",
        ),
    ],
)
def test_impossible_scenarios_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        scenario(**changes)


@given(st.integers(1, 16), st.integers(1, 16), st.integers(2, 64))
def test_speculative_accepts_exactly_what_can_be(topk: int, steps: int, tokens: int) -> None:
    possible = tokens == steps + 1 if topk == 1 else tokens <= 1 + topk + (steps - 1) * topk**2
    try:
        Speculative(num_steps=steps, topk=topk, num_draft_tokens=tokens)
    except ValidationError:
        assert not possible
    else:
        assert possible


def test_unknown_key_is_one_sentence(project: Path) -> None:
    edit(project / "scenarios" / "baseline.yaml", lambda d: d.update(sppeculative=1))
    with pytest.raises(UserError, match="unknown key 'sppeculative'"):
        load_scenario("baseline")


def test_yaml_typo_names_the_line(project: Path) -> None:
    (project / "scenarios" / "baseline.yaml").write_text("schema: 1\nname: [baseline\n")
    with pytest.raises(UserError, match="not valid YAML line"):
        load_scenario("baseline")


def test_key_given_twice_is_refused(project: Path) -> None:
    path = project / "scenarios" / "baseline.yaml"
    path.write_text(path.read_text() + "worker: v1\n")
    with pytest.raises(UserError, match="'worker' stands twice"):
        load_scenario("baseline")


@pytest.mark.parametrize("name", ["nope", "../rigs/cpu", "", "a/b", "x" * 99])
def test_unknown_scenario_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UserError, match=r"Known: .*baseline"):
        load_scenario(name)


def test_name_and_file_must_agree(project: Path) -> None:
    (project / "scenarios" / "baseline.yaml").rename(project / "scenarios" / "plain.yaml")
    with pytest.raises(UserError, match="says name: baseline"):
        load_scenario("plain")


def test_level_above_the_running_limit_is_refused(project: Path) -> None:
    edit(project / "scenarios" / "rigs" / "cpu.yaml", lambda d: d.update(max_running_requests=4))
    with pytest.raises(UserError, match="cap the concurrency"):
        load_rig("cpu")


@pytest.mark.parametrize(
    ("gpus", "rig"),
    [
        ([], "cpu"),
        (["NVIDIA H200"], "h200"),
        (["NVIDIA RTX PRO 6000 Blackwell Server Edition"] * 8, "rtx-pro-6000-x8"),
        (["NVIDIA RTX PRO 6000 Blackwell Server Edition"] * 4, "cuda"),
        (["NVIDIA A100-SXM4-80GB"], "cuda"),
    ],
)
def test_rig_is_picked_from_what_the_host_has(gpus: list[str], rig: str) -> None:
    assert pick_rig(gpus).name == rig


def test_more_than_one_fitting_rig_is_refused() -> None:
    rigs = all_rigs()
    twin = next(r for r in rigs if r.name == "h200").model_copy(update={"name": "h200-b"})
    with pytest.raises(UserError, match=r"More than one rig fits this host: h200, h200-b"):
        pick_rig(["NVIDIA H200"], [*rigs, twin])


def test_no_fitting_rig_is_said() -> None:
    with pytest.raises(UserError, match=r"No rig fits this host"):
        pick_rig([], [load_rig("h200")])


def test_real_pair_asks_for_what_is_missing(tmp_path: Path) -> None:
    rig = load_rig("rtx-pro-6000-x8")
    with pytest.raises(UserError, match="MODEL_PATH is not set"):
        model_paths(rig, tmp_path, {})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="DRAFT_MODEL_PATH is not set"):
        model_paths(rig, tmp_path, {"MODEL_PATH": str(tmp_path)})
    with pytest.raises(UserError, match=r"no config\.json"):
        model_paths(
            rig, tmp_path, {"MODEL_PATH": str(tmp_path / "gone"), "DRAFT_MODEL_PATH": str(tmp_path)}
        )
    found = model_paths(
        rig, tmp_path, {"MODEL_PATH": str(tmp_path), "DRAFT_MODEL_PATH": str(tmp_path)}
    )
    assert found.plan_dir is None


@pytest.mark.parametrize(
    ("level", "protocol", "count"),
    [(1, "published", 30), (250, "published", 30), (1, "steady", 30), (250, "steady", 1000)],
)
def test_request_counts(level: int, protocol: str, count: int) -> None:
    assert LoadConfig(levels=[1, 250]).requests_at(level, protocol) == count


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
        ),
    )
)
def test_any_yaml_value_is_a_scenario_or_a_validation_error(value: Any) -> None:
    with contextlib.suppress(ValidationError):
        Scenario.model_validate(value)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_mapping_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.yaml"
    path.write_bytes(raw)
    try:
        assert isinstance(read_mapping(path, "file"), dict)
    except UserError as error:
        assert str(error)  # noqa: PT017 - either outcome is right


def test_the_threshold_of_a_rig_wins_over_the_scenarios() -> None:
    threshold = load_scenario("spec-v2-threshold")
    flag = "speculative-disable-batch-threshold"
    rig = load_rig("cpu").model_copy(update={"overrides": {}})
    assert plain_above(threshold, rig) == threshold.args[flag]
    override = {"spec-v2-threshold": Override(args={flag: 4})}
    assert plain_above(threshold, rig.model_copy(update={"overrides": override})) == 4
    off = {"spec-v2-threshold": Override(args={flag: 0})}
    assert plain_above(threshold, rig.model_copy(update={"overrides": off})) is None
    assert plain_above(load_scenario("spec-v2"), rig) is None


def test_the_published_rig_proves_its_patches_by_lines_that_the_patches_write() -> None:
    rig = load_rig("rtx-pro-6000-x8")
    assert rig.server.patches == ["0003", "0004"]
    by_id = {p.id: "".join(h for d in p.files for k in d.hunks for h in k.new) for p in available()}
    for text in rig.server.log_must_show:
        # What the patch logs, up to the capability, which it may fill in.
        assert text.partition("SM120")[0] in by_id[text.split()[1].rstrip(":")]
