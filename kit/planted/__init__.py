"""The planted pair: a target and a draft whose behaviour is known exactly before they run.

The target is a Llama with random dense weights whose greedy continuation is one fixed cycle over
the vocabulary; the draft is an EAGLE-3 layer whose first choice is right for a share ``p`` of the
tokens and whose second choice is right for a share ``q`` of the others. So every output token and
every count of verify steps of a server can be checked against a plan.

:class:`Plan`, :class:`PairSpec` and :func:`expected_accept_length` need numpy and safetensors
only; :func:`make_pair` needs torch and :func:`check_pair` torch and transformers, which they
import when called.
"""

from __future__ import annotations

from kit.planted.check import PairCheck, check_pair
from kit.planted.make import make_pair
from kit.planted.plan import Plan
from kit.planted.spec import PairSpec
from kit.planted.theory import expected_accept_length

__all__ = [
    "PairCheck",
    "PairSpec",
    "Plan",
    "check_pair",
    "expected_accept_length",
    "make_pair",
]
