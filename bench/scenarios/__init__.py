"""The scenarios of `bench/all.py`: a module each, which is a `Scenario`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from peers import NOBODY, Company
from results import Section

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """How a scenario is run: in earnest, or `fast`, with sizes that only show that it works."""

    fast: bool = False
    peers: Company = NOBODY

    def size(self, full: T, fast: T) -> T:
        return fast if self.fast else full


class Scenario(Protocol):
    TITLE: str
    ABOUT: str

    def run(self, options: Options) -> Section: ...


class Skipped(Exception):
    """The scenario cannot be run here; says why."""
