"""`ReactorContract`: everything that a reactor promises over a storage."""

from reflexr.contracts.reacting_actions import MisbehavingActionsContract
from reflexr.contracts.reacting_answers import AnsweringContract
from reflexr.contracts.reacting_cancelling import CancellingContract
from reflexr.contracts.reacting_fleets import FleetsContract
from reflexr.contracts.reacting_leases import TakingOverContract
from reflexr.contracts.reacting_pauses import PausingContract
from reflexr.contracts.reacting_rules import DecidingContract
from reflexr.contracts.reacting_runs import RunningContract


class ReactorContract(
    DecidingContract,
    RunningContract,
    TakingOverContract,
    CancellingContract,
    PausingContract,
    AnsweringContract,
    MisbehavingActionsContract,
    FleetsContract,
):
    """What workspaces and reactors promise, over a storage of yours: one guarantee a test.

    Derive a class named `Test…` and override `storage`, as for `StorageContract`, which is to hold first: it says which
    call of a storage is wrong, and this what becomes of rules and runs. Most guarantees move the clock by hand, so they
    are asked of whoever declares `Feature.MOVABLE_CLOCK`; those of two hosts with a clock each need
    `Feature.SHARED_DATA` besides. A storage by the system's clock, without that feature, is asked the rest.
    """
