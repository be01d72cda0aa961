"""Modules that can be imported, looked into and subclassed, and that raise as soon as something in them is called.

A CPU run of SGLang imports a few large packages for the sake of code that only GPUs reach. Where such a package
is not installed, a folder with a stand-in of its name is put on the server's ``PYTHONPATH``. This file imports the
standard library only, because it is loaded in every server process.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class StandInCalled(RuntimeError):
    """Something was called that is not installed."""

    def __init__(self, name: str) -> None:
        package = name.split(".")[0]
        super().__init__(
            f"{name} was called, and {package} is only a stand-in in the kit's CPU environment; "
            f"install {package}, or report this as a bug of the kit"
        )


class _Meta(type):
    """Attributes of a placeholder are placeholders too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = placeholder(f"{cls.__kit_name__}.{name}")
        setattr(cls, name, value)
        return value


def placeholder(name: str) -> type:
    """Return a class that can be named, subscripted and subclassed; making an instance raises."""

    def refuse(*_: Any, **__: Any) -> None:
        raise StandInCalled(name)

    return _Meta(
        name.rpartition(".")[2],
        (),
        {
            "__kit_name__": name,
            "__init__": refuse,
            "__class_getitem__": classmethod(lambda cls, _: cls),
        },
    )


class StandIn(types.ModuleType):
    """A module whose missing names are placeholders."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = placeholder(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of a stand-in package."""

    def __init__(self, package: str) -> None:
        self.prefix = f"{package}."

    def find_spec(
        self, fullname: str, _path: Any = None, _target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Claim the package's submodules that have no file of their own."""
        if not fullname.startswith(self.prefix):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return an empty stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def fill(package: str) -> None:
    """Make the module ``package`` answer for every name and every submodule.

    Args:
        package: Name of a loaded module; what it defines itself stays.
    """
    sys.modules[package].__class__ = StandIn
    # Last, so that submodules with a file of their own are found first.
    sys.meta_path.append(_Submodules(package))
