"""The programs by package; a package is imported where one of its programs is asked for."""

from __future__ import annotations

from importlib import import_module

from clients.program import Program

# Modules of programs: a rank imports the packages of its own program alone.
HOMES = ("decoders", "encoders", "megatron", "torchtitan_", "collectives", "recommender",
         "wrapped", "vision", "tuned")  # fmt: skip


def every() -> list[tuple[str, Program]]:
    """All programs in the order of the table, each with its module's name."""
    modules = [(name, import_module(f"clients.programs.{name}")) for name in HOMES]
    return [(name, program) for name, module in modules for program in module.PROGRAMS]


def named(home: str, name: str) -> Program:
    """The program of a name, of one module."""
    programs: list[Program] = import_module(f"clients.programs.{home}").PROGRAMS
    return next(program for program in programs if program.name == name)
