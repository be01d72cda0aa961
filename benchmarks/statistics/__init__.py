"""Simulations behind the kit's statistical defaults: ``python -m benchmarks.statistics``."""
