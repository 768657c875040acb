"""`StorageContract`: everything that `Storage` promises."""

from reflexr.contracts.appends import AppendContract
from reflexr.contracts.discovery import DiscoveryContract
from reflexr.contracts.due import DueRunsContract
from reflexr.contracts.isolation import IsolationContract
from reflexr.contracts.leases import LeasesContract
from reflexr.contracts.log import LogContract
from reflexr.contracts.machine import ModelContract
from reflexr.contracts.pauses import PausedRunsContract
from reflexr.contracts.records import RecordsContract
from reflexr.contracts.runs import RunsContract
from reflexr.contracts.states import StatesContract
from reflexr.contracts.subscriptions import SubscriptionContract
from reflexr.contracts.transactions import TransactionContract
from reflexr.contracts.values import ValuesContract


class StorageContract(
    LogContract,
    AppendContract,
    ValuesContract,
    TransactionContract,
    StatesContract,
    RunsContract,
    DueRunsContract,
    PausedRunsContract,
    LeasesContract,
    RecordsContract,
    DiscoveryContract,
    IsolationContract,
    SubscriptionContract,
    ModelContract,
):
    """Everything that `Storage` promises, one guarantee a test.

    Derive a class named `Test…` and override `storage`. Every guarantee is asked of every adapter, but for those that
    need a `Feature`, which are asked of whoever declares it.
    """
