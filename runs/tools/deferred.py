"""Put off the import of a slow package until it is used."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeGuard

from grpobench.runs.tools.installed import remedy


class Deferred(ModuleType):
    """A module that becomes the real one at the first attribute it lacks."""

    def __init__(self, name: str, spec: ModuleSpec) -> None:
        super().__init__(name, "Not imported yet.")
        # Importers and inspect.getmodule read these without meaning to use the package.
        self.__spec__ = spec
        self.__loader__ = spec.loader
        self.__package__ = name
        self.__file__ = spec.origin
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)
        self.__dict__["_deferred_lock"] = threading.RLock()
        self.__dict__["_deferred_real"] = None

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "Tensor" and self.__dict__["_deferred_real"] is None and is_asked_by(PEEKERS):
            return NoTensor
        return getattr(load(self), attribute)


PEEKERS = ("scipy", "matplotlib")
"""Packages that look for torch among the imported modules to see whether a value is a tensor."""


class NoTensor:
    """The class of tensors for `PEEKERS`, as long as the package is not imported: no value is one yet."""


def is_asked_by(packages: Sequence[str]) -> bool:
    """Whether the function that asked a stand-in for an attribute belongs to one of these packages."""
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.partition(".")[0] in packages


class Submodules(MetaPathFinder):
    """Loads the deferred package before one of its submodules, which must not be executed twice."""

    def __init__(self, standin: Deferred) -> None:
        self.standin = standin

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = self.standin.__name__
        if not fullname.startswith(name + ".") or sys.modules.get(name) is not self.standin:
            return None
        load(self.standin)
        loaded = sys.modules.get(fullname)
        if loaded is None:
            return None
        spec = ModuleSpec(fullname, LoadedModule(loaded), origin=loaded.__file__)
        spec.submodule_search_locations = getattr(loaded, "__path__", None)
        # The import machinery prefers the spec of a module in sys.modules to the one that a finder returns.
        # With the module's usual spec it would execute the module a second time.
        loaded.__spec__ = spec
        return spec


class LoadedModule(Loader):
    """Hands the import machinery a module that has already been executed."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # The machinery has replaced the spec by the one of this loader.


def load(standin: Deferred) -> ModuleType:
    """Import the real package behind a stand-in, once."""
    with standin.__dict__["_deferred_lock"]:
        real: ModuleType | None = standin.__dict__["_deferred_real"]
        if real is None:
            name = standin.__name__
            if sys.modules.get(name) is standin:
                del sys.modules[name]
            try:
                real = importlib.import_module(name)
            except BaseException as error:
                sys.modules[name] = standin
                if isinstance(error, ModuleNotFoundError) and error.name == name:
                    raise ModuleNotFoundError(remedy(name), name=name) from None
                raise
            standin.__dict__["_deferred_real"] = real
            standin.__dict__.update(real.__dict__)
    return real


def defer(name: str) -> None:
    """Defer a top-level package, unless it is already imported. A package that is not installed also gets a
    stand-in; the error comes when it is used.

    A plain ``import torch`` then costs nothing. The first attribute that the stand-in lacks
    (``torch.tensor``), or the first import of a submodule (``import torch.nn.functional``), imports the real
    package and copies its content to the stand-in, so that modules that hold the stand-in keep working.

    `importlib.util.LazyLoader` cannot do this: the import statement itself reads ``__spec__`` of a module it
    finds in `sys.modules`, and that triggers the loading."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name) or ModuleSpec(name, None)
    standin = Deferred(name, spec)
    sys.modules[name] = standin
    sys.meta_path.insert(0, Submodules(standin))


def unused(module: ModuleType | None) -> TypeGuard[Deferred]:
    """Whether a module is a stand-in whose package has not been imported."""
    return isinstance(module, Deferred) and module.__dict__["_deferred_real"] is None


@contextlib.contextmanager
def deferred(name: str) -> Iterator[None]:
    """Bind a stand-in for every ``import`` of the package inside this context; afterwards the package is as
    if nobody had imported it."""
    before = sys.modules.get(name)
    defer(name)
    try:
        yield
    finally:
        if before is None and unused(sys.modules.get(name)):
            del sys.modules[name]
