"""All right programs, in the order of the table."""

from tests.silent import llamas, moe

PROGRAMS = [*llamas.PROGRAMS, *moe.PROGRAMS]
