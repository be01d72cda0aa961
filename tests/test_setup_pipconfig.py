"""What uv is told of the user's pip configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.setup_env.pipconfig import names_index, no_index, parse_config_list, uv_environment

if TYPE_CHECKING:
    from pathlib import Path

HOME = {"HOME": "/nonexistent"}


def test_environment_overrides_command_section_overrides_files() -> None:
    text = (
        ":env:.find-links='/from/env'\n"
        "global.find-links='/from/file'\n"
        "global.cert='/global.pem'\n"
        "install.cert='/install.pem'\n"
        "download.cert='/other.pem'\n"
    )
    assert parse_config_list(text) == {"find-links": "/from/env", "cert": "/install.pem"}


def test_noise_between_the_settings_is_passed_over() -> None:
    text = "WARNING: something\nglobal.broken='unclosed\nglobal.empty=''\nglobal.timeout='60'\n"
    assert parse_config_list(text) == {"timeout": "60"}


@given(st.text(min_size=1).filter(lambda value: value.strip() != ""))
def test_any_value_that_pip_prints_is_read_back(value: str) -> None:
    assert parse_config_list(f"global.find-links={value!r}") == {"find-links": value.strip()}


def test_everything_that_pip_reaches_is_said_to_uv() -> None:
    pip = {
        "index-url": "https://main.example/simple",
        "extra-index-url": "https://a.example/simple\nfile:///srv/simple",
        "find-links": "/wheels /more",
        "cert": "/ca.pem",
        "client-cert": "/me.pem",
        "trusted-host": "a.example",
        "proxy": "http://proxy.example:3128",
        "timeout": "90",
    }
    assert uv_environment(pip, HOME) == {
        "UV_DEFAULT_INDEX": "https://main.example/simple",
        "UV_INDEX": "https://a.example/simple file:///srv/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/ca.pem",
        "SSL_CLIENT_CERT": "/me.pem",
        "UV_INSECURE_HOST": "a.example",
        "ALL_PROXY": "http://proxy.example:3128",
        "UV_HTTP_TIMEOUT": "90",
    }


@pytest.mark.parametrize(
    ("option", "variable"),
    [
        ("index-url", "UV_DEFAULT_INDEX"),
        ("index-url", "UV_INDEX_URL"),
        ("extra-index-url", "UV_INDEX"),
        ("extra-index-url", "UV_EXTRA_INDEX_URL"),
        ("find-links", "UV_FIND_LINKS"),
        ("cert", "SSL_CERT_FILE"),
        ("proxy", "HTTPS_PROXY"),
    ],
)
def test_what_uv_was_told_itself_wins(option: str, variable: str) -> None:
    added = uv_environment({option: "pip's"}, {**HOME, variable: "uv's"})
    assert set(added) == {"UV_INDEX_STRATEGY"}


def test_index_in_uvs_own_file_wins(tmp_path: Path) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv/uv.toml").write_text('[[index]]\nurl = "https://b.example/simple"\n')
    environ = {**HOME, "XDG_CONFIG_HOME": str(tmp_path)}
    assert names_index(environ)
    assert "UV_DEFAULT_INDEX" not in uv_environment({"index-url": "https://a.example"}, environ)


def test_other_settings_in_uvs_file_name_no_index(tmp_path: Path) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv/uv.toml").write_text('cache-dir = "/tmp/x"\n')
    assert not names_index({**HOME, "XDG_CONFIG_HOME": str(tmp_path)}, system=tmp_path / "none")


def test_locks_are_made_without_what_only_this_host_has() -> None:
    pip = {"extra-index-url": "file:///srv/simple", "find-links": "/wheels", "cert": "/ca.pem"}
    assert uv_environment(pip, HOME, resolving=True) == {"SSL_CERT_FILE": "/ca.pem"}


@pytest.mark.parametrize(("value", "told"), [("1", True), ("True", True), ("0", False)])
def test_no_index_is_understood(value: str, told: bool) -> None:
    assert no_index({"no-index": value}) is told
    assert not no_index({})
