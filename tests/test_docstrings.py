"""Every example in a docstring of the package runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import ellp

MODULES = ["ellp", *(module.name for module in pkgutil.walk_packages(ellp.__path__, "ellp."))]


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str) -> None:
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("ellp"):
            raise
        pytest.skip(f"needs {missing.name}, an optional dependency")
    failed, _ = doctest.testmod(loaded, optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_there_are_examples() -> None:
    factoring = importlib.import_module("ellp.factoring")
    assert sum(len(found.examples) for found in doctest.DocTestFinder().find(factoring)) >= 4
