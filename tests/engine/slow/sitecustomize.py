"""Slows every verify step of the CPU plug-in by ``KIT_TEST_SLOW_S`` seconds. Only for tests."""

import os

if os.environ.get("KIT_TEST_SLOW_S"):
    import time

    from kit.sglang_plugin import tree_kernels

    build = tree_kernels.build_tree_kernel_efficient

    def slowed(*args, **kwargs):  # type: ignore[no-untyped-def]
        time.sleep(float(os.environ["KIT_TEST_SLOW_S"]))
        return build(*args, **kwargs)

    tree_kernels.build_tree_kernel_efficient = slowed
