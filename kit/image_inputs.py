"""What an image build takes over from this host: its CA bundle and its package index. Neither ends in the image.

Both are handed over as build secrets. An index's URL may hold a password, so it is in no argument and is not printed.
"""

from __future__ import annotations

import configparser
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Each names one bundle for one kind of program; a company sets whichever its tools ask for.
CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Debian and Ubuntu, Fedora and RHEL, openSUSE, Alpine.
CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def ca_bundle(environ: Mapping[str, str], files: Sequence[str] = CA_FILES) -> Path | None:
    """Return the CA bundle that programs of this host use, None if there is none.

    Args:
        environ: The environment; a variable that names no file is passed over.
        files: Where systems keep theirs.
    """
    for name in (*(environ.get(v, "") for v in CA_VARIABLES), *files):
        if name and Path(name).is_file():
            return Path(name)
    return None


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Return pip's configuration files, the last one winning (pip's documentation, "Configuration")."""
    home = Path(environ.get("HOME", "/"))
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    named = environ.get("PIP_CONFIG_FILE")
    return [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        own,
        *([Path(named)] if named else []),
    ]


def index_url(environ: Mapping[str, str], files: Sequence[Path] | None = None) -> str | None:
    """Return the URL of the package index that this host was set up for, None for the public one.

    Args:
        environ: The environment; uv's and pip's own variables win over pip's files.
        files: pip's files, by default :func:`pip_files`.
    """
    for name in INDEX_VARIABLES:
        if environ.get(name):
            return environ[name].strip()
    found = None
    for path in pip_files(environ) if files is None else files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                options = {key.replace("_", "-"): value for key, value in parser.items(section)}
                found = (options.get("index-url") or "").strip() or found
    return found


@contextlib.contextmanager
def secret_file(text: str | None) -> Iterator[Path | None]:
    """Yield a file that only this user may read and that holds ``text``; None for None. It is removed at the end."""
    if text is None:
        yield None
        return
    with tempfile.NamedTemporaryFile("w", prefix="kit-", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        yield Path(file.name)
