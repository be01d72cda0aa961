"""Slows or paces the verify steps of the CPU plug-in. Only for tests.

``KIT_TEST_SLOW_S`` makes each that many seconds longer. With ``KIT_TEST_PACE_S`` each begins no sooner than that many
seconds after the one before it: a step that computes for less takes exactly that long, however busy the machine is.
"""

import os

slow = float(os.environ.get("KIT_TEST_SLOW_S") or 0)
pace = float(os.environ.get("KIT_TEST_PACE_S") or 0)

if slow or pace:
    import time

    from kit.sglang_plugin import tree_kernels

    build = tree_kernels.build_tree_kernel_efficient
    due = 0.0

    def slowed(*args, **kwargs):  # type: ignore[no-untyped-def]
        global due
        now = time.monotonic()
        due = max(now, due + pace)
        time.sleep(due - now + slow)
        return build(*args, **kwargs)

    tree_kernels.build_tree_kernel_efficient = slowed
