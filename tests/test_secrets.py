from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import secrets
from kit.secrets import MASK, scrub, scrub_file, values

CANARY = "hf_canary0123456789"


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", CANARY, True),
        ("hf_token", CANARY, True),
        ("MY_API_KEY", CANARY, True),
        ("DB_PASSWORD", CANARY, True),
        ("AWS_SECRET_ACCESS_KEY", CANARY, True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("HF_TOKEN_PATH", "/home/x/token-file", False),
        ("HOME", "/home/somebody", False),
        ("HF_TOKEN", "", False),
    ],
)
def test_what_is_a_secret(name: str, value: str, secret: bool) -> None:
    assert values({name: value}) == ([value] if secret else [])


def test_a_secret_within_another_is_masked_whole() -> None:
    environ = {"A_TOKEN": "12345678", "B_TOKEN": "1234567890"}
    assert scrub("x1234567890x12345678", environ) == f"x{MASK}x{MASK}"


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, secrets.BLOCK - 30))
def test_a_file_is_scrubbed_wherever_the_secret_lies(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str, padding: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "server.log"
    data = b"y" * padding + b"\n" + f"{before}{CANARY}{after}\n".encode("utf-8", "surrogatepass")
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", CANARY)
        assert scrub_file(path)
    assert path.read_bytes() == data.replace(CANARY.encode(), MASK.encode())
    assert [p.name for p in path.parent.iterdir()] == ["server.log"]


def test_a_file_without_a_secret_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    path = tmp_path / "log"
    path.write_text("hf_canar")
    inode = path.stat().st_ino
    assert not scrub_file(path)
    assert not scrub_file(tmp_path / "none")
    assert path.stat().st_ino == inode
