"""Lets the kernel's process import the compiled modules.

mypyc's library has a capsule `init_...` for each of its modules, which makes the module. Compiled
modules import each other directly, without this finder.
"""

import ctypes
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from symphony_kernel.compiled.library import GROUP, compiled_modules, library_path
from symphony_kernel.platform.build_cache import LibraryUnavailable

_LIBRARY = f"{GROUP}__mypyc"


def prefer_compiled() -> str:
    """Prefer compiled modules for all later imports; return in words what will run."""
    try:
        path, there = library_path()
        if not there:
            return "interpreted: not compiled yet (run `python -m symphony_kernel.compiled`)"
        use_library(path)
    except (LibraryUnavailable, ImportError) as error:
        return f"interpreted: {error}"
    return f"compiled: {path}"


def use_library(path: Path) -> None:
    """Import modules from this library from now on. ImportError: nothing has changed."""
    sys.meta_path.insert(0, CompiledModules(path))


class CompiledModules(MetaPathFinder, Loader):
    """Finder and loader of the modules in a library."""

    def __init__(self, path: Path) -> None:
        loader = ExtensionFileLoader(_LIBRARY, str(path))
        library = loader.create_module(ModuleSpec(_LIBRARY, loader, origin=str(path)))
        loader.exec_module(library)
        library.__file__ = str(path)
        sys.modules[_LIBRARY] = library  # where mypyc's code looks for it
        self._path, self._library, self._modules = path, library, compiled_modules()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        return ModuleSpec(fullname, self, origin=str(self._path))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module and run its body; ImportError."""
        # mypyc's C name of a module
        name = "init_" + spec.name.replace("___", "___3_").replace(".", "___")
        address = _pointer(getattr(self._library, name), f"{_LIBRARY}.{name}")
        made: ModuleType = ctypes.PYFUNCTYPE(ctypes.py_object)(address)()
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `create_module` has run the body."""


def _pointer(capsule: Any, name: str) -> int:
    api = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = api(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, name.encode())
    assert isinstance(address, int)
    return address
