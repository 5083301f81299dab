"""Lets a folder and a public function share one name: ``quantfarm.load(path)`` and ``quantfarm.load.model``.

Importing a submodule binds its package as an attribute of ``quantfarm`` and would hide a function of that name,
so the package itself is made callable and forwards to the function, which is imported on the first call.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package module that forwards a call to its main function."""

    _home: str
    _function: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the package's main function."""
        return getattr(importlib.import_module(self._home), self._function)(*args, **kwargs)


def make_callable(package: str, home: str, function: str) -> None:
    """Turn the module ``package`` into a callable that forwards to ``home.function``."""
    module = sys.modules[package]
    module.__class__ = CallablePackage
    module.__dict__.update(_home=home, _function=function)
