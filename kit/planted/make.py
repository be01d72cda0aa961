"""Write a planted pair to a folder: all of it or nothing, again only if it has to be."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import UserError
from kit.planted import configs, files, rotary
from kit.planted.plan import PLAN_FILE, Plan
from kit.planted.spec import FIRST_LOGIT, GAPS, TARGET_LOGIT, PairSpec, worst_noise
from kit.planted.weights import Weights, require_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Progress = Callable[[str], None]

_LEAST_MARGIN = 1.0
_WRITERS = 3


def make_pair(
    spec: PairSpec, out: Path, *, device: str = "cpu", progress: Progress | None = None
) -> Path:
    """Make the pair of a spec in a folder, or return the intact one that is there.

    The folder gets ``target/``, ``draft/``, ``plan.safetensors`` and ``pair.json``. It appears
    whole or not at all: the files are written beside it and renamed. The same spec gives the same
    bytes, on any device.

    Args:
        spec: What to make.
        out: The pair's folder. A pair that was made from another spec or is damaged is replaced; a
            folder that is not a planted pair is left alone.
        device: torch device that computes the weights. Memory: a few layers there and on the host.
        progress: Called with a line of text now and then.

    Returns:
        The folder.

    Raises:
        UserError: The spec cannot work, torch or the device is missing, the folder is something
            else or cannot be written, or the disk is too small.
    """
    out = Path(out).absolute()
    check_feasible(spec)
    with files.locked(out.parent):
        if out.exists() and not _is_replaceable(out):
            raise UserError(
                f"{out} exists and is not a planted pair, so it was left alone.",
                "Choose another folder or remove that one.",
            )
        if _is_made(out, spec):
            return out
        compute = _device(device)
        files.check_space(
            out.parent, int(spec.weight_bytes() * 1.01) + 100 * spec.vocab + (1 << 20)
        )
        with files.replacing(out) as folder:
            _write(spec, folder, compute, progress)
    return out


def check_feasible(spec: PairSpec) -> None:
    """Raise UserError if a pair of this size could not keep to its plan.

    Random rows of width ``hidden`` overlap; with too many of them in too little width an unplanned
    token would come near the draft's second choice.
    """
    rotary.choose(spec)
    room = FIRST_LOGIT - max(GAPS) - _LEAST_MARGIN
    if worst_noise(spec.hidden, spec.vocab) > room:
        hidden = spec.hidden
        while worst_noise(hidden, spec.vocab) > room:
            hidden += 16
        raise UserError(
            f"A hidden size of {spec.hidden} is too narrow for a vocabulary of {spec.vocab}.",
            f"Use a hidden size of at least {hidden}, or a smaller vocabulary.",
        )


def _is_made(out: Path, spec: PairSpec) -> bool:
    """Whether the folder holds this pair, intact; another spec shows without reading it all."""
    try:
        if files.read_manifest(out).get("spec") != spec.model_dump(mode="json"):
            return False
    except UserError:
        return False
    return files.damage(out) is None


def _is_replaceable(out: Path) -> bool:
    return out.is_dir() and ((out / files.MANIFEST).is_file() or not any(out.iterdir()))


def _device(name: str) -> torch.device:
    torch = require_torch()
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as err:
        reason = str(err).splitlines()[0]
        raise UserError(
            f"The device {name!r} cannot be used to make the pair ({reason}).",
            "Use `cpu`, or `cuda` on a host whose PyTorch sees its GPU.",
        ) from err
    return device  # type: ignore[no-any-return]


def _write(spec: PairSpec, folder: Path, device: torch.device, progress: Progress | None) -> None:
    from safetensors.torch import save_file

    report = progress or (lambda _line: None)
    plan = Plan.build(spec)
    plan.save(folder / PLAN_FILE)
    size = spec.weight_bytes()
    report(f"making a planted pair of {spec.layers} layers, {size / 1e6:,.0f} MB, on {device}")
    weights = Weights(plan, device)

    target, draft = folder / "target", folder / "draft"
    for model, config in (
        (target, configs.target_config(spec)),
        (draft, configs.draft_config(spec)),
    ):
        model.mkdir()
        files.write_json(model / "config.json", config)
        files.write_json(model / "tokenizer.json", configs.tokenizer(spec))
        files.write_json(model / "tokenizer_config.json", configs.tokenizer_config(spec))

    # Shards are written while the next one is computed; no more of them are held than there are
    # writers.
    where: dict[str, str] = {}
    pending: list[Future[None]] = []
    with ThreadPoolExecutor(max_workers=_WRITERS) as pool:
        try:
            for number, shard in enumerate(weights.target_shards()):
                name = f"model-{number + 1:05d}-of-{spec.layers + 1:05d}.safetensors"
                where.update(dict.fromkeys(shard, name))
                if len(pending) >= _WRITERS:
                    pending.pop(0).result()
                pending.append(pool.submit(save_file, shard, target / name, {"format": "pt"}))
                if number and (number % 8 == 0 or number == spec.layers):
                    report(f"layer {number} of {spec.layers} made")
            pending.append(
                pool.submit(
                    save_file, weights.draft(), draft / "model.safetensors", {"format": "pt"}
                )
            )
            for future in pending:
                future.result()
        except BaseException:
            for future in pending:
                future.cancel()
            raise
    report("draft made; computing checksums")
    total = sum(f.stat().st_size for f in target.glob("*.safetensors"))
    files.write_json(
        target / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": where},
    )
    attention = rotary.choose(spec)
    files.write_manifest(
        folder,
        spec,
        {
            "rates": {"p": plan.p, "q": plan.q},
            "logits": {"target": TARGET_LOGIT, "first": FIRST_LOGIT, "gaps": list(GAPS)},
            "self_attention": {"score": attention.score, "gap_share": attention.gap_share},
        },
    )
