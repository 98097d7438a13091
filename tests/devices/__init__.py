"""Accelerators that are not there: what of a device can be shown without one."""
