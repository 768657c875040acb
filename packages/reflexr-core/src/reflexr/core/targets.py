"""What feedback is about: a run, a firing, or a whole causal chain."""

from typing import Annotated, Literal

from pydantic import Field

from reflexr.core.messages import Request
from reflexr.core.names import Id

type TargetKind = Literal["run", "firing", "chain"]
"""The kinds of thing that feedback can be given on."""


class RunTarget(Request):
    """The run with this id: one execution of a workflow."""

    kind: Literal["run"] = "run"
    run_id: Id


class FiringTarget(Request):
    """The firing with this id: whether the rule should have fired."""

    kind: Literal["firing"] = "firing"
    firing_id: Id


class ChainTarget(Request):
    """The causal chain that started with the event of this id: everything it led to."""

    kind: Literal["chain"] = "chain"
    correlation_id: Id


type Target = Annotated[RunTarget | FiringTarget | ChainTarget, Field(discriminator="kind")]
"""Any target, discriminated by `kind`."""
