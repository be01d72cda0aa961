"""Set-up of the virtual environment: from a bare Python 3.11 or 3.12 to an installed kit.

Runs before anything is installed, so every module here imports the standard library and
``kit.errors`` only: ``python3 -m kit.setup_env`` from the checkout (``make setup``), ``python3 -m
kit.setup_env lock`` (``make lock``). docs/setup.md describes it from the outside and gives the
measured times and sizes.
"""
