"""``kit compose`` and ``kit image``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kit import compose as rendering
from kit import image as building
from kit import image_inputs as inputs


@click.group("compose")
def compose_group() -> None:
    """Render the project's compose files."""


@compose_group.command("render")
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if a file is out of step.")
@click.pass_context
def compose_render(ctx: click.Context, check: bool) -> None:
    """Render compose.yaml and its overrides from scenarios, rigs, locks and patches.

    \b
    Examples:
      kit compose render
      kit compose render --check
    """
    names = rendering.stale() if check else rendering.write_all()
    if not names:
        click.echo(f"in step: {', '.join(rendering.FILES)}")
        return
    click.echo(f"{'out of step' if check else 'written'}: {', '.join(names)}")
    if check:
        click.echo("Run `kit compose render` and commit the result.", err=True)
        ctx.exit(1)


@click.group("image")
def image_group() -> None:
    """Build the images that the compose scenarios run."""


@image_group.command("build")
@click.argument("flavour", type=click.Choice(building.FLAVOURS), default="cuda13")
@click.option("--base-image", default=None, help="Base, best with its digest: name@sha256:…")
@click.option("--tag", default=None, help="Name of the image. Default: what compose.yaml uses.")
@click.option(
    "--ca",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    default=None,
    help="CA bundle for hosts behind a TLS proxy. Default: this host's. Not kept in the image.",
)
@click.option(
    "--wheelhouse",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=None,
    help="Folder of wheels to use beside the package index.",
)
@click.option(
    "--index-url-file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    default=None,
    help="File with the URL of a package index; it may hold a password and is not kept. Default: pip's or uv's.",
)
@click.option("--offline", is_flag=True, help="No package index: everything from the wheelhouse.")
@click.option("--network", default=None, help="Network of the build, such as host.")
@click.option("--dry-run", is_flag=True, help="Print the command and the context's files.")
def image_build(
    flavour: str,
    base_image: str | None,
    tag: str | None,
    ca: Path | None,
    wheelhouse: Path | None,
    index_url_file: Path | None,
    offline: bool,
    network: str | None,
    dry_run: bool,
) -> None:
    """Build an image: cuda13 (the default) or cpu.

    \b
    Examples:
      kit image build
      kit image build cpu --base-image kit-debian:12 --network host
      kit image build --ca company-ca.pem --wheelhouse wheels --offline
    """
    url = None if index_url_file or offline else inputs.index_url(os.environ)
    with inputs.secret_file(url) as own_index:
        request = building.Request(
            flavour=flavour,
            base_image=base_image,
            tag=tag,
            ca=ca or inputs.ca_bundle(os.environ),
            wheelhouse=wheelhouse,
            index_url_file=index_url_file or own_index,
            offline=offline,
            network=network,
        )
        if dry_run:
            for line in building.describe(request):
                click.echo(line)
            return
        built = building.build(request)
    click.echo(f"{built.name}  {built.id}")
    click.echo(f"{built.size / 1e9:.2f} GB, built in {built.seconds:.0f} s")
    for key, value in sorted(built.labels.items()):
        click.echo(f"  {key}={value}")
