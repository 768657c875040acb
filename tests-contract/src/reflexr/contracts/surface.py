"""`SurfaceContract`: everything that a surface promises."""

from reflexr.contracts.surface_commands import CommandingContract
from reflexr.contracts.surface_input import InputContract
from reflexr.contracts.surface_permissions import PermittingContract
from reflexr.contracts.surface_reads import ReadingContract
from reflexr.contracts.surface_refusals import RefusingContract
from reflexr.contracts.surface_repeats import RepeatingContract
from reflexr.contracts.surface_streams import StreamingContract
from reflexr.contracts.surface_tenants import SeparatingContract


class SurfaceContract(
    CommandingContract,
    RefusingContract,
    InputContract,
    RepeatingContract,
    ReadingContract,
    StreamingContract,
    PermittingContract,
    SeparatingContract,
):
    """Everything that a surface promises of an application behind it: commands in, results out. One guarantee a test.

    Derive a class named `Test…` and override `surface`. What is asked of every surface is that it carries out commands;
    a surface that reads, or streams, declares it with a `Feature` and is asked that too.
    """
