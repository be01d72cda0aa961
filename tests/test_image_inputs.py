"""What an image build takes over from this host."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit import image
from kit.cli.containers import image_group
from kit.image_inputs import ca_bundle, index_url, pip_files, secret_file

URL = "https://user:hunter2@index.example/simple"
ROOT = Path(__file__).resolve().parent.parent


def test_bundle_of_the_first_variable_that_names_a_file(tmp_path: Path) -> None:
    company, system = tmp_path / "company.pem", tmp_path / "system.pem"
    company.write_text("c")
    system.write_text("s")
    gone = str(tmp_path / "gone.pem")
    given = {"SSL_CERT_FILE": gone, "REQUESTS_CA_BUNDLE": str(company)}
    assert ca_bundle(given, [str(system)]) == company
    assert ca_bundle({}, [gone, str(system)]) == system
    assert ca_bundle({}, [gone]) is None


def test_index_of_variables_wins_over_pips_files(tmp_path: Path) -> None:
    site, own = tmp_path / "pip.conf", tmp_path / "own.conf"
    site.write_text("[global]\nindex-url = https://site.example/simple\n")
    own.write_text(f"[global]\ntimeout = 3\n[install]\nindex_url = {URL}\n")
    assert index_url({}, [site]) == "https://site.example/simple"
    assert index_url({}, [site, own]) == URL
    assert index_url({}, [own, site]) == "https://site.example/simple"
    assert index_url({"PIP_INDEX_URL": "https://env.example"}, [own]) == "https://env.example"
    assert index_url({}, [tmp_path / "none"]) is None


def test_a_file_that_pip_cannot_read_either_is_passed_over(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken.conf", tmp_path / "binary.conf"
    broken.write_text("index-url = https://x.example\n")
    binary.write_bytes(b"\xff\xfe\x00")
    assert index_url({}, [broken, binary]) is None


def test_pips_files_are_those_of_the_user_and_the_one_named(tmp_path: Path) -> None:
    files = pip_files({"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/named/pip.conf"})
    assert files[-1] == Path("/named/pip.conf")
    assert tmp_path / ".config" / "pip" / "pip.conf" in files


def test_secret_file_is_private_and_goes() -> None:
    with secret_file(URL) as path:
        assert path is not None
        assert path.read_text() == URL + "\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    with secret_file(None) as nothing:
        assert nothing is None


def test_build_takes_over_index_ca_and_proxies_without_showing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    monkeypatch.setenv("PIP_INDEX_URL", URL)
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hunter2@proxy.example:3128")
    done = CliRunner().invoke(image_group, ["build", "cpu", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "hunter2" not in done.output
    assert f"id=ca,src={ca}" in done.output
    assert "id=index,src=" in done.output
    assert "--build-arg HTTPS_PROXY" in done.output
    monkeypatch.delenv("HTTPS_PROXY")
    assert "HTTPS_PROXY" not in image.command(image.Request(flavour="cpu"), ROOT)
