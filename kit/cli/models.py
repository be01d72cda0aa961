"""``kit pair``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kit import reproduce as pipeline
from kit.cli.options import resolve_rig, rig_option
from kit.errors import UserError
from kit.planted import PairSpec, check_pair, expected_accept_length, make_pair


@click.group()
def pair() -> None:
    """Make and check planted model pairs."""


def _spec_options(command: Any) -> Any:
    for name, kind, text in reversed(
        [
            ("hidden", int, "hidden size"),
            ("layers", int, "layers of the target"),
            ("intermediate", int, "MLP width"),
            ("heads", int, "attention heads"),
            ("kv-heads", int, "key-value heads"),
            ("vocab", int, "vocabulary size"),
            ("p", float, "share of tokens that the draft gets right at once"),
            ("q", float, "share of the rest where its second candidate is right"),
            ("seed", int, "random seed"),
        ]
    ):
        command = click.option(f"--{name}", type=kind, default=None, help=f"Override: {text}.")(
            command
        )
    return command


@pair.command("make")
@rig_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of the pair. Default: pairs/RIG of the project.",
)
@click.option("--device", default="cpu", show_default=True, help="Where the weights are computed.")
@_spec_options
def pair_make(
    rig: str | None, out: Path | None, device: str, **overrides: int | float | None
) -> None:
    """Make the planted pair of a rig, or one of your own size.

    \b
    Examples:
      kit pair make --rig cpu
      kit pair make --rig cpu --p 0.9 --out /tmp/easy-pair
    """
    chosen = resolve_rig(rig)
    spec = pipeline.pair_spec(chosen)
    if spec is None:
        raise UserError(
            f"The rig {chosen.name} serves real weights, it has no planted pair.",
            "Choose another with --rig.",
        )
    changed = {key: value for key, value in overrides.items() if value is not None}
    if changed:
        if out is None:
            raise UserError(
                "A pair of another size must not take the place of the rig's.",
                "Name a folder with --out.",
            )
        spec = PairSpec(**{**spec.model_dump(), **changed})
    folder = make_pair(
        spec,
        out or pipeline.planted_dir(chosen),
        device=device,
        progress=lambda text: click.echo(text, err=True),
    )
    click.echo(folder)
    for topk, tokens in ((1, 4), (4, 8)):
        length = expected_accept_length(topk, 3, tokens, spec.p, spec.q)
        click.echo(
            f"expected accept length, topk {topk}, 3 steps, {tokens} draft tokens: {length:.3f}"
        )


@pair.command("check")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@rig_option
@click.pass_context
def pair_check(ctx: click.Context, folder: Path | None, rig: str | None) -> None:
    """Run a pair through transformers and plain torch: every step must be as planned.

    Example: kit pair check --rig cpu
    """
    report = check_pair(folder or pipeline.planted_dir(resolve_rig(rig)))
    for line in report.lines():
        click.echo(line)
    ctx.exit(0 if report.ok else 3)
