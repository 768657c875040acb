"""Contract suites for pytest: by deriving one class, anybody proves that their own adapter keeps every promise."""

from reflexr.contracts.adapters import Feature
from reflexr.contracts.commands import CommandResultsContract
from reflexr.contracts.contract import Contract, guarantee
from reflexr.contracts.storage import StorageContract
from reflexr.contracts.wakeups import WakeupsContract

__all__ = [
    # Contracts
    "StorageContract",
    "CommandResultsContract",
    "WakeupsContract",
    # What an adapter declares
    "Feature",
    # Contracts of your own
    "Contract",
    "guarantee",
]
