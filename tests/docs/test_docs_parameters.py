"""Parameters of public names have a word in a docstring, so that a reader of the reference need not guess."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import holdfast as hf

MADE_BY_HOLDFAST = (hf.KeyedStream, hf.Query, hf.Rescale, hf.StandbyQuery, hf.Stream)
"""Classes whose objects users get and never make."""
SAID_ELSEWHERE = {"args", "cls", "context", "ctx", "kwargs", "name", "self"}
"""Parameters whose meaning is that of their type: `name` is explained at `Source` and `Sink`."""


def test_each_parameter_of_a_public_name_has_a_word_in_a_docstring() -> None:
    silent = [
        f"{where}({parameter})"
        for where, call, text in _calls()
        for parameter in inspect.signature(call).parameters
        if parameter not in SAID_ELSEWHERE and not re.search(rf"\b{parameter}\b", text)
    ]
    assert not silent


def _calls() -> Iterator[tuple[str, Any, str]]:
    """The public functions, constructors and methods, each with all text that explains its parameters."""
    for name in hf.__all__:
        found = getattr(hf, name)
        if not inspect.isclass(found):
            if inspect.isfunction(found):
                yield name, found, found.__doc__ or ""
            continue
        if not issubclass(found, (*MADE_BY_HOLDFAST, BaseException)):
            yield name, found, _text_of(found)
        for method, call in vars(found).items():
            if not method.startswith("_") and inspect.isfunction(call):
                yield f"{name}.{method}", call, _text_of_method(found, method)


def _text_of(found: type) -> str:
    """The docstrings of a class and its public bases, and the names of fields that a docstring follows."""
    texts = [found.__doc__ or ""]
    for each in found.__mro__:
        if each.__module__.startswith("holdfast") and dataclasses.is_dataclass(each):
            texts += [each.__doc__ or "", *re.findall(r'^\s+(\w+): .*\n\s+"""', inspect.getsource(each), re.M)]
    return "\n".join(texts)


def _text_of_method(found: type, method: str) -> str:
    """The docstrings of a method in a class and its bases, and in another public class of the same interface."""
    interfaces = [*found.__mro__, *(hf.Source, hf.Sink)]
    return "\n".join(getattr(each, method).__doc__ or "" for each in interfaces if hasattr(each, method))
