"""The user's pip configuration, said in uv's words.

uv reads neither pip's configuration files nor its ``PIP_*`` variables. A host that is set up for
pip (an index of its own, a folder of wheels, a certificate bundle) would then fail for no visible
reason, so what pip knows is handed to uv in environment variables. What uv was told itself always
wins. Nothing of this is printed: an index URL may hold a password.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Later sections override earlier ones, as in pip: files, the command's own section, environment.
SECTIONS = ("global", "install", ":env:")
TRUE = ("1", "true", "yes", "on", "y", "t")
# The start of a line in uv's own configuration that names an index.
NAMES_INDEX = re.compile(r"^\s*(\[\[(pip\.)?index\]\]|(extra-)?index(-url)?\s*=)", re.MULTILINE)


def parse_config_list(text: str) -> dict[str, str]:
    """Parse the output of ``pip config list`` into what ``pip install`` would go by.

    Args:
        text: Lines of the form ``section.option='value'``, the value as a Python literal.

    Returns:
        Values by option, e.g. ``{"find-links": "/wheels"}``; empty values left out.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in text.splitlines():
        match = re.match(r"(:env:|[\w-]+)\.([\w-]+)=(.*)", line)
        if match is None or match.group(1) not in found:
            continue
        section, option, literal = match.groups()
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            continue
        if isinstance(value, str) and value.strip():
            found[section][option.replace("_", "-")] = value.strip()
    merged: dict[str, str] = {}
    for section in SECTIONS:
        merged.update(found[section])
    return merged


def names_index(environ: Mapping[str, str], system: Path = Path("/etc")) -> bool:
    """Whether uv itself was told an index: by variable, or in the user's or the system's uv.toml.

    Args:
        environ: The present environment.
        system: Where the system's ``uv/uv.toml`` lies.
    """
    if any(environ.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_CONFIG_FILE")):
        return True
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/")) / ".config")
    for folder in (Path(home), system):
        try:
            text = (folder / "uv/uv.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if NAMES_INDEX.search(text):
            return True
    return False


def no_index(pip: Mapping[str, str]) -> bool:
    """Whether pip was told to use ``find-links`` only (for which uv has a flag, no variable)."""
    return pip.get("no-index", "").lower() in TRUE


def uv_environment(
    pip: Mapping[str, str], environ: Mapping[str, str], *, resolving: bool = False
) -> dict[str, str]:
    """Return the variables to add to uv's environment so that it reaches what pip reaches.

    Args:
        pip: pip's options, from :func:`parse_config_list`.
        environ: The present environment; a variable that is set there is never replaced.
        resolving: Locks are made: only the main index counts, not what else this host knows.
    """
    wanted: dict[str, str] = {}
    if "index-url" in pip and not names_index(environ):
        wanted["UV_DEFAULT_INDEX"] = pip["index-url"]
    if not resolving:
        if "extra-index-url" in pip and not environ.get("UV_EXTRA_INDEX_URL"):
            wanted["UV_INDEX"] = " ".join(pip["extra-index-url"].split())
        if "find-links" in pip:
            wanted["UV_FIND_LINKS"] = ",".join(pip["find-links"].split())
        # pip looks at every index, so uv must too. All hashes are fixed: no index can slip in
        # another file.
        wanted["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if "trusted-host" in pip:
        wanted["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    if "cert" in pip:
        wanted["SSL_CERT_FILE"] = pip["cert"]
    if "client-cert" in pip:
        wanted["SSL_CLIENT_CERT"] = pip["client-cert"]
    if "proxy" in pip and not any(environ.get(name) for name in ("HTTPS_PROXY", "https_proxy")):
        wanted["ALL_PROXY"] = pip["proxy"]
    timeout = pip.get("timeout") or pip.get("default-timeout")
    if timeout:
        wanted["UV_HTTP_TIMEOUT"] = timeout
    return {name: value for name, value in wanted.items() if not environ.get(name)}
