"""The control plane: who builds, who waits, how bytes travel, how a failure reaches everyone."""

from lockstep.fleet.faults import Fault as Fault
from lockstep.fleet.fleet import Fleet as Fleet
from lockstep.fleet.hooks import install_hooks as install_hooks
from lockstep.fleet.obtain import Obtained as Obtained
from lockstep.fleet.store import ArtifactStore as ArtifactStore
from lockstep.fleet.timing import Timing as Timing
