"""Fuzz targets: a module for each kind of input, with a class Target and the number of inputs that the suite tries."""

import pkgutil
import random
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

NAMES = tuple(module.name for module in pkgutil.iter_modules(__path__))


class Target(Protocol):
    """A kind of input and the code that reads it. ``__init__`` gets a scratch directory for valid inputs."""

    def write(self, rng: random.Random, directory: Path) -> None:
        """Write an input into the empty ``directory``: the same one for an ``rng`` of the same seed."""

    def read(self, directory: Path) -> None:
        """Read the input like the product does; only TrtllmLiteError may be raised."""


def load_target(name: str) -> Any:
    """The module of a target."""
    return import_module(f"{__name__}.{name}")
