"""Every private torch name that Lockstep uses, each with the version it was read in and the reason.

An upgrade of torch is a review of this file. Nothing here is imported before it is needed, so that
`import lockstep` stays cheap.
"""

from __future__ import annotations

from typing import Any
