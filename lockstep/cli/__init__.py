"""The `lockstep` command."""

from lockstep.cli.plain import main as main
