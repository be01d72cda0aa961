"""``kit lossless`` against real servers: the noise floor, speculation, and kernels broken on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.lossless import Answer, Report, generate, measure_baseline, measure_speculation
from tests.engine.conftest import serving

PROMPTS, TOKENS, CROWD = 8, 32, 4
# In this loud float32 network another shape of batch moves logits by some thousandths (test_cpu_engine.py).
TIE = 0.03


def test_speculation_is_lossless_where_attention_decides_and_a_broken_kernel_is_not(
    sensitive_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("baseline", sensitive_pair, tmp_path / "baseline.log") as engine:
        prompts = [engine.plan.prompt(30_000 + i, 24) for i in range(PROMPTS)]
        url = engine.server.base_url
        baseline = measure_baseline(url, prompts, TOKENS, CROWD, TIE)
        plan = engine.plan
    print("\n", *(f"\n{c.text()}" for c in baseline.floor))
    alone, crowded = baseline.floor
    # One server, one request at a time: what was cached before can still turn a tie round, and nothing else.
    assert all(d.tie for d in alone.divergences)
    assert not crowded.bugs
    # The gaps are the target's own: positive, and small somewhere, or the pair would decide nothing.
    gaps = [gap for answer in baseline.reference for gap in answer.gaps]
    assert len(gaps) == PROMPTS * TOKENS
    assert min(gaps) >= 0
    assert sum(g < 1 for g in gaps) > PROMPTS
    off = [
        plan.first_mismatch(p, a.ids) is not None
        for p, a in zip(prompts, baseline.reference, strict=True)
    ]
    assert sum(off) > PROMPTS // 2, "the pair is not sensitive: attention decides nothing"

    def served(name: str, log: str, **env: str) -> tuple[Report, list[Answer]]:
        with serving(name, sensitive_pair, tmp_path / log, env=env) as engine:
            url = engine.server.base_url
            report = measure_speculation(url, log, baseline, prompts, TOKENS, CROWD, TIE)
            told = generate(url, prompts[:3], TOKENS, gaps=True)
        print("", *report.lines(), sep="\n")
        return report, told

    for name in ("spec-v2", "spec-v1"):
        report, told = served(name, name)
        assert report.status == "LOSSLESS", report.lines()
        assert len(report.found[0].divergences) <= PROMPTS // 2, "more than ties"
        # A speculating server's log-probabilities are the baseline's, as far as the outputs are the same.
        for mine, theirs in zip(baseline.reference, told, strict=False):
            same = next(
                (i for i, (a, b) in enumerate(zip(mine.ids, theirs.ids, strict=True)) if a != b),
                TOKENS,
            )
            assert theirs.gaps[:same] == pytest.approx(mine.gaps[:same], abs=TIE)

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "broken"))
    broken, _ = served("spec-v1", "accept-all", KIT_TEST_BREAK="accept-all")
    assert broken.status == "NOT LOSSLESS"
    assert len(broken.found[0].bugs) > PROMPTS // 2
