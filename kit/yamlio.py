"""Read a YAML file into a pydantic model, with errors that a person can act on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from kit.errors import UserError

Model = TypeVar("Model", bound=BaseModel)
MAX_BYTES = 1 << 20
# What PyYAML raises at text that is not its own: numbers beyond limits, dates that are none, keys without a hash.
UNREADABLE = (
    yaml.YAMLError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    AttributeError,
)


class StrictModel(BaseModel):
    """Base of everything read from a file: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe loading that refuses a key given twice, which plain YAML loaders silently overwrite.

    Aliases are refused too: a few lines of them stand for gigabytes of data, and no file of the kit needs one.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node."""
        if self.check_event(yaml.events.AliasEvent):  # type: ignore[no-untyped-call]
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias is not allowed here", mark)
        return super().compose_node(parent, index)


def _mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, (list, dict)):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a plain value", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands twice", key_node.start_mark
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping.

    Args:
        path: The file.
        what: What it is ("rig file"), for the error.

    Raises:
        UserError: missing, unreadable, too large, not UTF-8, not YAML, or not a mapping.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise UserError(
                f"The {what} {path} is larger than {MAX_BYTES} bytes.", "Is it the right file?"
            )
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"There is no {what} {path}.", "Check the name.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The {what} {path} cannot be read: {error}.") from None
    try:
        # The loader is a SafeLoader: no object of the file's choosing is ever built.
        data = yaml.load(text, Loader=_UniqueKeyLoader)
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise UserError(
            f"The {what} {path} is not valid YAML{where}: {problem}.", "Correct that line."
        ) from None
    if not isinstance(data, dict):
        raise UserError(f"The {what} {path} must hold a mapping of keys to values.")
    return data


def explain(error: ValidationError) -> str:
    """Return the first problem of a validation error as one clause: ``speculative.topk: ...``."""
    first = error.errors(include_url=False)[0]
    where = " ".join(".".join(str(part) for part in first["loc"]).split())
    kind = first["type"]
    if kind == "extra_forbidden":
        return f"unknown key {where!r}"
    if kind == "missing":
        return f"the key {where!r} is missing"
    text = " ".join(str(first["msg"]).removeprefix("Value error, ").split())
    return f"{where}: {text}" if where else text


def read_model(model: type[Model], path: Path, what: str) -> Model:
    """Read a YAML file into ``model``.

    Raises:
        UserError: the file cannot be read (see :func:`read_mapping`) or breaks a rule of the model.
    """
    data = read_mapping(path, what)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UserError(
            f"The {what} {path} is not right: {explain(error).rstrip('.')}.", "Correct that key."
        ) from None
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        # A rule of the model that fell over a value of no sense.
        text = str(error).split("\n")[0]
        raise UserError(f"The {what} {path} is not right: {text}.", "Correct it.") from None
