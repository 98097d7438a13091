"""The `lockstep` command."""

from lockstep.cli.app import main as main
