"""``KIT_TEST_NO_GRAPHS=1``: the plain decode graphs are captured on the CPU too, and that fails. Only for tests."""

import importlib.abc
import importlib.util
import os
import sys

NAME = "sglang.srt.speculative.plain_decode"


def fail(*args, **kwargs):  # type: ignore[no-untyped-def]
    raise RuntimeError("capture fails in this test")


def patch(module):  # type: ignore[no-untyped-def]
    capture = module.PlainDecode._capture

    def try_and_fail(self):  # type: ignore[no-untyped-def]
        from sglang.srt.model_executor import cuda_graph_runner

        args, real = self.worker.server_args, cuda_graph_runner.CudaGraphRunner
        before = (args.disable_cuda_graph, args.cuda_graph_bs, self.target.graph_runner)
        args.disable_cuda_graph, args.cuda_graph_bs = False, [1, 2, 4, 8, 16, 32]
        self.target.graph_runner = object()
        cuda_graph_runner.CudaGraphRunner = fail
        try:
            capture(self)
        finally:
            cuda_graph_runner.CudaGraphRunner = real
            args.disable_cuda_graph, args.cuda_graph_bs, self.target.graph_runner = before

    module.PlainDecode._capture = try_and_fail


class Finder(importlib.abc.MetaPathFinder):
    """Patches the module once it is loaded; importing it here would come before the CPU plug-in."""

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        if fullname != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("KIT_TEST_NO_GRAPHS"):
    sys.meta_path.insert(0, Finder())
