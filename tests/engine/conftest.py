"""Real SGLang servers on the CPU, started when a test first asks for them and shared by the session."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit import reproduce as pipeline
from kit.backends.base import http_json
from kit.backends.process import ProcessBackend, ProcessServer
from kit.measure import server_info
from kit.planted import PairSpec, Plan, make_pair
from kit.proof import prove
from kit.records import ServerProof
from kit.scenarios import ModelPaths, Scenario, load_rig, load_scenario

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)


class Engine:
    """A running server with the plan of its pair."""

    def __init__(self, server: ProcessServer, plan: Plan, scenario: Scenario) -> None:
        self.server = server
        self.plan = plan
        self.scenario = scenario
        self.rig = load_rig("cpu")

    @property
    def spec(self) -> tuple[int, int, int] | None:
        """topk, steps, draft tokens."""
        s = self.scenario.speculative
        return (s.topk, s.num_steps, s.num_draft_tokens) if s else None

    def proof(self) -> ServerProof:
        log = self.server._log.read_text("utf-8", "replace").splitlines()
        return prove(self.scenario, self.rig, server_info(self.server), log)

    def log(self) -> str:
        return self.server._log.read_text("utf-8", "replace")

    def generate(self, prompt: list[int] | str, tokens: int, **sampling: Any) -> dict[str, Any]:
        given = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
        params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **sampling}
        body = {**given, "sampling_params": params}
        reply: dict[str, Any] = http_json(f"{self.server.base_url}/generate", body, 120)
        return reply

    def together(self, prompts: list[list[int]], tokens: int, at_once: int) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda p: self.generate(p, tokens), prompts))

    def wrong(self, prompts: list[list[int]], replies: list[dict[str, Any]], tokens: int) -> int:
        """Return how many outputs are not exactly the planted ones."""
        return sum(
            len(r["output_ids"]) != tokens
            or self.plan.first_mismatch(p, r["output_ids"]) is not None
            for p, r in zip(prompts, replies, strict=True)
        )


def _port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def serving(
    name: str, pair: Path, log: Path, *extra: str, env: dict[str, str] | None = None
) -> Iterator[Engine]:
    """Serve a scenario on the CPU rig with further flags."""
    rig = load_rig("cpu")
    models = ModelPaths(target=str(pair / "target"), draft=str(pair / "draft"), plan_dir=str(pair))
    port = _port()
    command = pipeline.command_for(load_scenario(name), rig, models, port)
    command = command.model_copy(
        update={"argv": [*command.argv, *extra], "env": {**command.env, **(env or {})}}
    )
    with ProcessBackend(port=port).serve(command, log, 180) as server:
        yield Engine(server, Plan.load(pair), load_scenario(name))


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CPU rig's pair."""
    if importlib.util.find_spec("sglang") is None:
        pytest.fail(
            "SGLang is not installed: run `make setup` and use .venv/bin/pytest", pytrace=False
        )
    folder = tmp_path_factory.mktemp("pair") / "cpu"
    spec = pipeline.pair_spec(load_rig("cpu"))
    assert isinstance(spec, PairSpec)
    return make_pair(spec, folder)


@pytest.fixture(scope="session")
def sensitive_pair(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair in float32 with attention and MLP writing 140 times as much.

    The planted pair's output hardly depends on attention, so a wrong mask goes unnoticed there. Here the output is
    the planted one only in part, what attention sees decides the rest, and the baseline's output is the reference.
    """
    from safetensors.torch import load_file, save_file

    out = tmp_path_factory.mktemp("sensitive")
    for model in ("target", "draft"):
        (out / model).mkdir()
        for path in sorted((pair / model).iterdir()):
            if path.suffix == ".safetensors":
                tensors = load_file(path)
                for name, tensor in tensors.items():
                    wide = tensor.float() if tensor.is_floating_point() else tensor
                    loud = model == "target" and name.endswith(
                        ("o_proj.weight", "down_proj.weight")
                    )
                    tensors[name] = (wide * 140 if loud else wide).contiguous()
                save_file(tensors, out / model / path.name, metadata={"format": "pt"})
            else:
                text = path.read_text().replace('"bfloat16"', '"float32"')
                (out / model / path.name).write_text(text)
    shutil.copy(pair / "plan.safetensors", out)
    return out


@pytest.fixture(scope="session")
def engine(
    pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Engine]]:
    """Return a function from a scenario's name to its running server; one server runs at a time.

    Prefix cache on and a small prefill chunk, unlike the rig: what must hold there must hold here too.
    """
    logs = tmp_path_factory.mktemp("engine-logs")
    stack = contextlib.ExitStack()
    running: dict[str, Engine] = {}

    def get(name: str) -> Engine:
        if name not in running:
            stack.close()
            running.clear()
            extra = ["--chunked-prefill-size", "256"]
            running[name] = stack.enter_context(
                _with_cache(name, pair, logs / f"{name}.log", extra)
            )
        return running[name]

    yield get
    stack.close()


@contextlib.contextmanager
def _with_cache(name: str, pair: Path, log: Path, extra: list[str]) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        rig = load_rig("cpu")
        server = rig.server.model_copy(
            update={
                "args": {k: v for k, v in rig.server.args.items() if k != "disable-radix-cache"}
            }
        )
        patch.setattr(__name__ + ".load_rig", lambda _: rig.model_copy(update={"server": server}))
        with serving(name, pair, log, *extra) as engine:
            yield engine


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
