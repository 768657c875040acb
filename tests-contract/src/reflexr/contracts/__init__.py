"""Contract suites for pytest: by deriving one class, anybody proves that their own adapter keeps every promise."""

from reflexr.contracts.adapters import Feature
from reflexr.contracts.commands import CommandResultsContract
from reflexr.contracts.contract import Contract, guarantee
from reflexr.contracts.live_output import LiveOutputContract
from reflexr.contracts.reactor import ReactorContract
from reflexr.contracts.storage import StorageContract
from reflexr.contracts.surface import SurfaceContract
from reflexr.contracts.surface_trials import Connect, JsonObject, StreamClosed, Surface, SurfaceRejected, SurfaceStream
from reflexr.contracts.wakeups import WakeupsContract
from reflexr.contracts.works import ActionContract, Work

__all__ = [
    # Contracts
    "StorageContract",
    "ReactorContract",
    "CommandResultsContract",
    "WakeupsContract",
    "LiveOutputContract",
    "SurfaceContract",
    "ActionContract",
    # Surfaces
    "Surface",
    "SurfaceStream",
    "Connect",
    "JsonObject",
    "SurfaceRejected",
    "StreamClosed",
    # Actions
    "Work",
    # What an adapter declares
    "Feature",
    # Contracts of your own
    "Contract",
    "guarantee",
]
