"""Configs: functions that return a `TrainConfig`, found by name."""

from lockstep.configs.find import find as find
