"""Checks of the models: are they there, does the draft fit the target, can prompts be made."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.doctor.model import Check, Seen, blocker, ok, unavailable, warning
from kit.doctor.needs import file_bytes, pair_spec
from kit.doctor.probes import Host, Job
from kit.errors import UserError
from kit.scenarios import ModelPaths
from kit.units import GIB

# A header of safetensors is read into memory; the format allows no more.
HEADER_LIMIT = 100_000_000
# Target layers that EAGLE-3 hands to its draft.
CAPTURED = 3


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object of a file.

    Raises:
        UserError: missing, not readable, or not an object.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        text = str(error).split("\n")[0]
        raise UserError(f"{path.name} of {path.parent.name} cannot be read: {text}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path.name} of {path.parent.name} is no JSON object")
    return found


def shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor in a folder's safetensors files; only their headers are read."""
    found: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as raw:
            head = raw.read(8)
            size = struct.unpack("<Q", head)[0] if len(head) == 8 else HEADER_LIMIT + 1
            if size > HEADER_LIMIT:
                raise UserError(f"{file.name} of {folder.name} is no safetensors file")
            try:
                entries = json.loads(raw.read(size))
            except ValueError:
                raise UserError(f"the header of {file.name} of {folder.name} is damaged") from None
        end = max(
            (e["data_offsets"][1] for n, e in entries.items() if n != "__metadata__"), default=0
        )
        if file.stat().st_size < 8 + size + end:
            raise UserError(f"{file.name} of {folder.name} is cut short")
        found |= {n: e["shape"] for n, e in entries.items() if n != "__metadata__"}
    return found


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a model's config that describes its language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def misfits(
    target: Mapping[str, Any], draft: Mapping[str, Any], tensors: Mapping[str, list[int]]
) -> list[str]:
    """Return why a draft does not fit a target, a clause each; none if it fits. Pure.

    Args:
        target: The target's config.
        draft: The draft's config.
        tensors: Shapes of the draft's tensors, empty if they cannot be read.
    """
    target, draft = text_config(target), text_config(draft)
    hidden, vocab = target.get("hidden_size"), target.get("vocab_size")
    bad = []
    told = draft.get("target_hidden_size", draft.get("hidden_size"))
    fc = next((s for n, s in tensors.items() if n.split(".")[-2:] == ["fc", "weight"]), None)
    if fc is not None and hidden:
        # Three captured states side by side; a draft may name more or fewer layers of its own.
        eagle = draft.get("eagle_config") or {}
        layers = len(eagle.get("eagle_aux_hidden_state_layer_ids") or []) or CAPTURED
        if fc[1] != layers * hidden:
            bad.append(
                f"its input layer takes {fc[1]} values and the target gives {layers} × {hidden}"
            )
    elif told is not None and hidden is not None and told != hidden:
        bad.append(f"its hidden size is {told}, the target's {hidden}")
    if vocab is not None and draft.get("vocab_size") not in (None, vocab):
        bad.append(f"its vocabulary has {draft['vocab_size']} tokens, the target's {vocab}")
    t2d = next((s for n, s in tensors.items() if n.split(".")[-1] == "t2d"), None)
    if t2d is not None and vocab is not None and t2d[0] != vocab:
        bad.append(f"its map t2d covers {t2d[0]} tokens of the target's {vocab}")
    d2t = next((s for n, s in tensors.items() if n.split(".")[-1] == "d2t"), None)
    small = draft.get("draft_vocab_size")
    if d2t is not None and small is not None and d2t[0] != small:
        bad.append(f"its map d2t has {d2t[0]} entries and its draft vocabulary {small}")
    return bad


def _vocabulary(folder: Path) -> dict[str, int] | None:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    vocab = (read_json(path).get("model") or {}).get("vocab")
    return vocab if isinstance(vocab, dict) else None


def tokenizers_differ(target: Path, draft: Path) -> str | None:
    """Return how the tokenizers differ, None if they do not or the draft has none of its own."""
    one, two = _vocabulary(target), _vocabulary(draft)
    if one is None or two is None or one == two:
        return None
    other = sum(one.get(token) != number for token, number in two.items())
    return f"{other} of {len(two)} tokens of the draft's tokenizer have another id in the target's"


def _made_later(job: Job, host: Host) -> Seen | None:
    """Return what to say of a planted pair that is not there yet."""
    spec = pair_spec(job)
    if spec is None:
        return None
    try:
        target = Path(job.models(host.environ).target)
    except UserError:
        return None
    if (target / "config.json").is_file():
        return None
    return ok(f"the planted pair is made when it is needed ({spec.weight_bytes() / GIB:.1f} GiB)")


def _skipped(host: Host, job: Job) -> Seen | None:
    if job.rig is None:
        return unavailable("no rig was named, so no models are known")
    if job.elsewhere:
        return unavailable("the server runs elsewhere")
    return _made_later(job, host)


def _both(models: ModelPaths) -> list[tuple[str, Path]]:
    return [("target", Path(models.target)), ("draft", Path(models.draft))]


def _paths(host: Host, job: Job) -> Seen:
    skipped = _skipped(host, job)
    if skipped is not None:
        return skipped
    try:
        models = job.models(host.environ)
    except UserError as error:
        return blocker(error.sentence.rstrip("."), error.remedy)
    words = []
    for what, folder in _both(models):
        size = file_bytes(folder)
        if not size and not list(folder.glob("*.bin")):
            return blocker(
                f"the {what}'s folder holds no weights",
                f"Fetch it again; it must hold {what}'s *.safetensors.",
            )
        words.append(f"{what} {size / GIB:.2f} GiB" if size else f"{what} in an older format")
    return ok(", ".join(words))


def _config(host: Host, job: Job) -> Seen:
    skipped = _skipped(host, job)
    if skipped is not None:
        return skipped
    try:
        models = job.models(host.environ)
        words = []
        for what, folder in _both(models):
            config = read_json(folder / "config.json")
            shapes(folder)
            architecture = (config.get("architectures") or ["no architecture"])[0]
            words.append(f"{what} {architecture}")
    except UserError as error:
        return blocker(error.sentence.rstrip("."), error.remedy or "Fetch the model again.")
    return ok(", ".join(words))


def _draft(host: Host, job: Job) -> Seen:
    skipped = _skipped(host, job)
    if skipped is not None:
        return skipped
    try:
        models = job.models(host.environ)
        target, draft = Path(models.target), Path(models.draft)
        configs = [read_json(folder / "config.json") for folder in (target, draft)]
        bad = misfits(configs[0], configs[1], shapes(draft))
        other = tokenizers_differ(target, draft)
    except UserError as error:
        return blocker(error.sentence.rstrip("."), error.remedy or "Fetch the model again.")
    if bad:
        return blocker(
            f"the draft does not fit: {'; '.join(bad)}",
            "Use the draft that was trained for this target, in this revision.",
        )
    if other:
        return blocker(other, "Use the draft that was trained for this target, in this revision.")
    text = text_config(configs[0])
    return ok(
        f"the draft fits: hidden size {text.get('hidden_size')}, vocabulary {text.get('vocab_size')}"
    )


def _template(host: Host, job: Job) -> Seen:
    if pair_spec(job) is not None:
        return unavailable("a planted pair is asked with token ids, without a template")
    skipped = _skipped(host, job)
    if skipped is not None:
        return skipped
    try:
        target = Path(job.models(host.environ).target)
        settings = read_json(target / "tokenizer_config.json")
    except UserError as error:
        return blocker(error.sentence.rstrip("."), error.remedy or "Fetch the model again.")
    files = [f.name for f in target.glob("chat_template*")]
    if not settings.get("chat_template") and not files:
        return blocker(
            "the target has no chat template",
            "Use the instruction-tuned model: drafts are trained on chat-formatted text.",
        )
    if not (target / "tokenizer.json").is_file() and not (target / "tokenizer.model").is_file():
        return warning("no tokenizer.json or tokenizer.model beside it", "Is the folder complete?")
    return ok("chat template " + (files[0] if files else "in tokenizer_config.json"))


CHECKS = (
    Check("models.paths", "A server that finds no weights fails after it has started.", _paths),
    Check(
        "models.config", "A damaged or shortened file fails only after minutes of loading.", _config
    ),
    Check(
        "models.draft",
        "A draft for another target runs and predicts nothing: the accept length falls to 1.",
        _draft,
        "https://github.com/sgl-project/sglang/issues/11948",
    ),
    Check(
        "models.template",
        "Prompts without the chat template that the draft was trained on collapse acceptance.",
        _template,
        "https://github.com/vllm-project/vllm/issues/52536",
    ),
)
