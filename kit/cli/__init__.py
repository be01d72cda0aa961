"""The ``kit`` command: parse, call, print, exit code. No logic lives here.

Exit codes: 0 reproduced, 1 slower or faster, 2 usage or bad input, 3 invalid, 4 inconclusive,
5 not comparable, 130 interrupted (143 by SIGTERM).
"""

from __future__ import annotations

import sys

import click

from kit import __version__, interrupts
from kit.cli.bench import bench
from kit.cli.clean import clean
from kit.cli.containers import compose_group, image_group
from kit.cli.doctor import doctor
from kit.cli.lossless import lossless
from kit.cli.machine import fingerprint_group
from kit.cli.models import pair
from kit.cli.patches import patches_group
from kit.cli.report import report
from kit.cli.results import check, compare, golden_group
from kit.cli.run import reproduce, serve
from kit.cli.show import scenarios, show
from kit.errors import EngineError, KitError

SECTIONS: list[tuple[str, list[str]]] = [
    ("Run", ["reproduce", "bench", "serve"]),
    ("Judge", ["check", "report", "compare", "lossless", "golden"]),
    ("Look", ["doctor", "scenarios", "show", "fingerprint"]),
    ("Prepare", ["pair", "patches", "compose", "image", "clean"]),
]


class _Grouped(click.Group):
    """A group whose help shows its commands under headings."""

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the commands, section by section."""
        for title, names in SECTIONS:
            rows = [
                (name, self.commands[name].get_short_help_str(70))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order of the sections."""
        return [name for _, names in SECTIONS for name in names if name in self.commands]


@click.group(cls=_Grouped, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kit")
def cli() -> None:
    """Reproduce a published SGLang EAGLE-3 serving result and get a verdict.

    \b
    kit reproduce                 everything, with a verdict
    kit show spec-v2 --rig cpu    the exact command of a server
    kit check runs/RUN            judge a run again

    Exit codes: 0 reproduced, 1 slower or faster, 2 usage or bad input, 3 invalid, 4 inconclusive,
    5 not comparable, 130 interrupted.
    """


for command in (
    reproduce,
    bench,
    serve,
    check,
    report,
    compare,
    lossless,
    golden_group,
    scenarios,
    show,
    doctor,
    fingerprint_group,
    pair,
    patches_group,
    compose_group,
    image_group,
    clean,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line; a kit error becomes one sentence and its exit code."""
    interrupts.heed_termination()
    try:
        status = cli.main(standalone_mode=False, prog_name="kit")
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(interrupts.exit_code())
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KitError as error:
        if isinstance(error, EngineError) and error.log_tail:
            click.echo(error.log_tail, err=True)
        click.echo(f"kit: {error.sentence}", err=True)
        if error.remedy:
            click.echo(f"     {error.remedy}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (`kit ... | head`): not an error of ours.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)
