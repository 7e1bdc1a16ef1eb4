"""Put off the import of a slow package until something of it is used.

`defer("torch")` registers a stand-in under the package's name. A plain ``import torch`` then costs nothing;
the first attribute that is missing on the stand-in (``torch.tensor``), or the first import of a submodule
(``import torch.nn.functional``), imports the real package and fills the stand-in with it, so that modules
which bound the stand-in keep working.

`importlib.util.LazyLoader` does not serve: the import statement itself reads ``__spec__`` of a module it
finds in `sys.modules`, and that read triggers its load.
"""

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


class Deferred(ModuleType):
    """A module that becomes the real one at the first attribute it does not have."""

    def __init__(self, name: str, spec: ModuleSpec) -> None:
        super().__init__(name, "Not imported yet.")
        # What importers and inspect.getmodule read without meaning to use the package.
        self.__spec__ = spec
        self.__loader__ = spec.loader
        self.__package__ = name
        self.__file__ = spec.origin
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)
        self.__dict__["_deferred_lock"] = threading.RLock()
        self.__dict__["_deferred_real"] = None

    def __getattr__(self, attribute: str) -> Any:
        return getattr(load(self), attribute)


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
        spec = ModuleSpec(fullname, Loaded(loaded), origin=loaded.__file__)
        spec.submodule_search_locations = getattr(loaded, "__path__", None)
        # The machinery prefers the spec of a module that is among the imported ones by now to the one that a
        # finder returns. By its usual spec the module would be executed a second time.
        loaded.__spec__ = spec
        return spec


class Loaded(Loader):
    """Hands the import machinery a module that has been executed already."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # The machinery has replaced it with the one that led here.


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
                    told = f"{name} is not installed: pip install {name}"
                    raise ModuleNotFoundError(told, name=name) from None
                raise
            standin.__dict__["_deferred_real"] = real
            standin.__dict__.update(real.__dict__)
    return real


def defer(name: str) -> None:
    """Defer a top-level package. Does nothing when it is imported already. One that is not installed has a
    stand-in too: that it is absent shows where something of it is used."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name) or ModuleSpec(name, None)
    standin = Deferred(name, spec)
    sys.modules[name] = standin
    sys.meta_path.insert(0, Submodules(standin))


def unused(module: ModuleType | None) -> TypeGuard[Deferred]:
    """Whether it is a stand-in whose package has not been imported."""
    return isinstance(module, Deferred) and module.__dict__["_deferred_real"] is None


@contextlib.contextmanager
def put_by(name: str) -> Iterator[None]:
    """Within it the stand-in of a package that nothing has used is not among the imported modules.

    SciPy asks whatever is called torch there for its class of tensors, to know whether a number is one; the
    stand-in would import torch to answer.
    """
    standin = sys.modules.get(name)
    if not unused(standin):
        yield
        return
    del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.setdefault(name, standin)


@contextlib.contextmanager
def deferred(name: str) -> Iterator[None]:
    """Within it an ``import`` of the package binds a stand-in; afterwards the package is as if nobody had
    asked for it."""
    before = sys.modules.get(name)
    defer(name)
    try:
        yield
    finally:
        if before is None and unused(sys.modules.get(name)):
            del sys.modules[name]
