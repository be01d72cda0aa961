from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import UserError
from kit.golden import Golden, Provenance, Reference, golden_for, read_golden, to_yaml, write_golden

PUBLISHED = {
    ("spec-v2", 1): 86.8,
    ("spec-v2", 2): 145.5,
    ("spec-v2", 5): 279.0,
    ("spec-v2", 10): 428.0,
    ("spec-v2", 30): 759.3,
    ("spec-v2", 70): 768.6,
    ("spec-v2", 100): 775.0,
    ("spec-v2", 250): 754.4,
    ("baseline", 1): 92.7,
    ("baseline", 30): 689.0,
    ("spec-v1", 30): 313.0,
}


def test_published_file_holds_the_published_figures_and_no_others() -> None:
    golden = golden_for("rtx-pro-6000-x8")
    assert golden is not None
    found = {(s, c): r.value for s, levels in golden.throughput.items() for c, r in levels.items()}
    assert found == PUBLISHED
    assert golden.source == "published"
    assert golden.replicates_from == 30
    assert golden.factors == {}


def test_no_golden_file_is_none(project: Path) -> None:
    (project / "golden" / "cpu.yaml").unlink(missing_ok=True)
    assert golden_for("cpu") is None


def test_file_for_another_rig_is_refused(project: Path) -> None:
    source = project / "golden" / "rtx-pro-6000-x8.yaml"
    source.rename(project / "golden" / "h200.yaml")
    with pytest.raises(UserError, match="for the rig 'rtx-pro-6000-x8'"):
        golden_for("h200")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema: 1", "schema: 7", "schema 7"),
        ("schema: 1", "schema: one", "schema 'one'"),
        ("{value: 313}", "{value: -313}", "greater than 0"),
        ("{value: 313}", "{value: .nan}", "throughput.spec-v1.30.value"),
        ("{value: 313}", "{valeu: 313}", "value"),
        ("at_least: 2.4", "", "a claim needs at_least"),
        ("id: spec-v2-over-baseline-at-30", "id: spec-v2-over-spec-v1-at-30", "same id"),
    ],
)
def test_broken_files_are_one_sentence(project: Path, old: str, new: str, said: str) -> None:
    path = project / "golden" / "rtx-pro-6000-x8.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=said):
        read_golden(path)


positive = st.floats(1e-6, 1e9)
cv = st.none() | st.floats(0, 0.99)
references = st.builds(
    Reference,
    value=positive,
    n=st.integers(1, 99),
    launches=st.integers(1, 9),
    launch_cv=cv,
    sweep_cv=cv,
)


@given(
    st.dictionaries(
        st.sampled_from(["baseline", "spec-v1"]),
        st.dictionaries(st.integers(1, 4096), references, max_size=4),
    )
)
def test_written_and_read_it_is_the_same(throughput: dict[str, dict[int, Reference]]) -> None:
    golden = Golden(
        rig="cpu",
        source="measured",
        provenance=Provenance(text="é – “x”: y"),
        protocol="steady",
        throughput=throughput,
    )
    assert Golden.model_validate(yaml.safe_load(to_yaml(golden))) == golden


def test_write_is_atomic_and_readable(tmp_path: Path) -> None:
    golden = golden_for("rtx-pro-6000-x8")
    assert golden is not None
    write_golden(golden, tmp_path / "x.yaml")
    assert read_golden(tmp_path / "x.yaml") == golden
    assert [p.name for p in tmp_path.iterdir()] == ["x.yaml"]
