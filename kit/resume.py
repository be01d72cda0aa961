"""Take a run up again: what of it is measured already, and whether machine and input are still the same.

A run goes on at the pass it was in. Passes on another machine, image, patch set, model pair or scenario would be
numbers of something else under the same name, so a change of any of them is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from kit.attempts import Pass, finished, planned_passes
from kit.errors import UserError
from kit.fingerprint import Fingerprint
from kit.fingerprint import differences as fingerprint_differences
from kit.records import Manifest, PlanConfig
from kit.runfolder import read_run
from kit.scenarios import ModelPaths
from kit.schedule import Clock

# The header of a safetensors file names every tensor with type, shape and place; it lies in these bytes.
HEAD_BYTES = 1 << 16
NEW_RUN = "Start a new run with `kit reproduce`; this one can still be judged with `kit check`."


@dataclass(frozen=True)
class Resumed:
    """A run that is taken up again.

    Attributes:
        path: Its folder.
        manifest: Its manifest.
        done: Passes that need not be measured again.
        launches: Launches that were begun.
        start: How often it was taken up again, this time included.
        planned: Passes that the planned launches measure.
        patches_live: What each scenario's servers said of their patches.
    """

    path: Path
    manifest: Manifest
    done: frozenset[Pass]
    launches: int
    start: int
    planned: int
    patches_live: dict[str, list[str]]

    def text(self) -> str:
        """Return what is there, as a sentence."""
        return f"goes on with {self.manifest.run_id}: {len(self.done)} of {self.planned} planned passes are measured"

    def left(self, plan: PlanConfig, scenario: str, launch: int) -> list[tuple[int, int]]:
        """Return sweep and level of each pass of one server that is still to be measured, in order."""
        return [p for p in passes_of(plan) if (scenario, launch, *p) not in self.done]

    def tell(self, clock: Clock) -> None:
        """Take what is measured already out of a clock's estimate."""
        plan = self.manifest.plan
        for launch in range(plan.launches):
            for scenario in plan.scenarios:
                clock.skip_measured(scenario, launch, self.left(plan, scenario, launch))

    def check_patches(self, scenario: str, live: list[str]) -> None:
        """Refuse a server whose engine has other patches than its earlier ones had.

        Raises:
            UserError: they differ.
        """
        before = self.patches_live.get(scenario, live)
        if before != live:
            names = [", ".join(p) or "none" for p in (before, live)]
            raise UserError(
                f"The run {self.manifest.run_id} cannot go on: the patches of {scenario} changed "
                f"({names[0]} → {names[1]}).",
                NEW_RUN,
            )

    @property
    def port(self) -> int | None:
        """Return the port that its servers listened on, None where the command does not say."""
        for scenario in self.manifest.scenarios.values():
            argv = scenario.get("argv") or []
            for flag, value in itertools.pairwise(argv):
                if flag == "--port" and re.fullmatch(r"[1-9]\d{0,4}", str(value)):
                    return min(int(value), 65535)
        return None


def load(path: Path) -> Resumed:
    """Read a run that shall go on.

    Raises:
        UserError: no run folder, complete already, or being written by another process.
    """
    run = read_run(path)
    manifest = run.manifest
    if run.being_written:
        raise UserError(
            f"Another kit is writing the run folder {path}.", "Wait until it is done, or stop it."
        )
    if manifest.status == "complete":
        raise UserError(
            f"The run {manifest.run_id} is complete: there is nothing to go on with.",
            f"Judge it with `kit check {path}`.",
        )
    return Resumed(
        path=path,
        manifest=manifest,
        done=finished(run.levels),
        launches=1 + max((r.launch for r in run.launches), default=-1),
        start=run.resumes + 1,
        planned=planned_passes(manifest.plan),
        patches_live={r.scenario: r.proof.patches_live for r in run.launches},
    )


def passes_of(plan: PlanConfig) -> list[tuple[int, int]]:
    """Return sweep and level of each pass of one server, in the order they are measured."""
    return [(sweep, level) for sweep in range(plan.sweeps) for level in plan.levels]


def digest_of_models(models: ModelPaths) -> str:
    """Return 16 hex digits over names, sizes and the first 64 KiB of every file of the pair.

    A model that was retrained, truncated or replaced changes it; gigabytes of weights are not read for it.

    Raises:
        UserError: a file of the pair cannot be read.
    """
    try:
        return _digest_of_models(models)
    except OSError as error:
        raise UserError(
            f"The model file {error.filename} cannot be read: {error.strerror}.",
            "Is the model folder complete, and may you read it?",
        ) from None


def _digest_of_models(models: ModelPaths) -> str:
    total = hashlib.sha256()
    for role, folder in (("target", models.target), ("draft", models.draft)):
        root = Path(folder)
        for file in sorted(root.rglob("*")):
            # A download cache keeps state of its own beside the model.
            if not file.is_file() or ".cache" in file.parts:
                continue
            with file.open("rb") as opened:
                head = opened.read(HEAD_BYTES)
            name = file.relative_to(root).as_posix()
            total.update(orjson.dumps([role, name, file.stat().st_size]))
            total.update(hashlib.sha256(head).digest())
    return total.hexdigest()[:16]


def _fingerprint_change(old: Manifest, new: Manifest) -> str | None:
    if old.fingerprint_hash == new.fingerprint_hash:
        return None
    try:
        lines = fingerprint_differences(
            Fingerprint.model_validate(old.fingerprint), Fingerprint.model_validate(new.fingerprint)
        )
    except ValueError:
        lines = []
    first = lines[0].split("  (")[0] if lines else "it cannot be compared"
    return f"the fingerprint changed ({first})"


def _changed_key(old: dict[str, Any], new: dict[str, Any]) -> str:
    names = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    return names[0] if names else "?"


def change(old: Manifest, new: Manifest) -> str | None:
    """Return what changed between two manifests that must be of the same thing, as a clause; None if nothing did.

    Pure. A field that an older kit did not write yet is not compared.
    """
    changed = _fingerprint_change(old, new)
    if changed:
        return changed
    if old.backend != new.backend:
        return f"the backend changed ({old.backend} → {new.backend})"
    if old.image_digest != new.image_digest:
        return f"the image changed ({old.image_digest} → {new.image_digest})"
    if old.patches != new.patches:
        return "the patches changed"
    if old.pair != new.pair:
        return f"the model pair changed ({_changed_key(old.pair, new.pair)})"
    if old.pair_digest and old.pair_digest != new.pair_digest:
        return "the files of the model pair changed"
    if old.rig != new.rig:
        return f"the rig file changed ({_changed_key(old.rig, new.rig)})"
    for name in old.plan.scenarios:
        before, after = old.scenarios.get(name, {}), new.scenarios.get(name, {})
        if before != after:
            return f"the scenario {name} changed ({_changed_key(before, after)})"
    return None


def check_plan(old: Manifest, now: PlanConfig) -> None:
    """Refuse a plan that the rig file does not give any more.

    Raises:
        UserError: it differs.
    """
    if old.plan != now:
        key = _changed_key(old.plan.model_dump(), now.model_dump())
        raise UserError(f"The run {old.run_id} cannot go on: its plan changed ({key}).", NEW_RUN)


def check_same(old: Manifest, new: Manifest) -> None:
    """Refuse to go on under other conditions.

    Args:
        old: The run's manifest.
        new: The manifest that the same run would get now.

    Raises:
        UserError: something changed; the sentence says what.
    """
    changed = change(old, new)
    if changed:
        raise UserError(f"The run {old.run_id} cannot go on: {changed}.", NEW_RUN)
