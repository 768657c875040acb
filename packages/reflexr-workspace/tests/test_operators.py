from typing import Any

import pytest

from reflexr.core import Causation, Envelope, UserActor, ValidationFailed
from reflexr.workspace import Workspace, WorkspaceRef, Workspaces

from .plant import ADA, REF, Alarm, cause, opened, workspaces


class Operator(UserActor):
    """A user as an application may know one."""

    shift: str = "night"


async def by_open(host: Workspaces, actor: Any) -> Workspace:
    return await host.open("acme", "prod", actor=actor)


async def by_handle(host: Workspaces, actor: Any) -> Workspace:
    return host.handle(REF, actor=actor)


async def by_another(host: Workspaces, actor: Any) -> Workspace:
    return host.handle(REF, actor=ADA).as_actor(actor)


@pytest.mark.parametrize("handle", [by_open, by_handle, by_another])
@pytest.mark.parametrize(
    ("actor", "problem"),
    [
        ("ada", "actor: 'ada' is no actor: write UserActor(id='ada')"),
        (None, "actor: None is no actor"),
        ({"kind": "user", "id": "ada"}, "is no actor: write UserActor(id='ada'), or another of the actors"),
        (UserActor, "is no actor"),
        (REF, "is no actor"),
        (Alarm(machine="press"), "actor: Unable to extract tag"),
        (UserActor.model_construct(), "actor: user.id: Field required"),
        (UserActor.model_construct(id=""), "actor: user.id: An id is 1 to 255 characters"),
        (ADA.model_copy(update={"id": 7}), "actor: user.id: An id is 1 to 255 characters"),
        (ADA.model_copy(update={"name": "\ud800"}), "actor: user.name: An id is 1 to 255 characters"),
        (ADA.model_copy(update={"kind": "system", "name": "ada"}), "is no actor"),
    ],
)
async def test_a_handle_is_given_only_an_actor_that_can_be_read_back(handle: Any, actor: Any, problem: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await handle(workspaces(), actor)

    assert problem in str(refused.value)


@pytest.mark.parametrize("handle", [by_open, by_handle, by_another])
async def test_an_actor_of_the_applications_own_stays_what_it_is_and_is_read_back(handle: Any) -> None:
    workspace = await handle(workspaces(), Operator(id="ada"))
    envelope = (await workspace.publish(Alarm(machine="press"))).envelope

    assert workspace.actor == Operator(id="ada")
    assert Envelope.model_validate_json(envelope.to_json()).actor == ADA


@pytest.mark.parametrize(
    "causation", ["fir_1", None, {"firing_id": "f", "run_id": "r", "depth": 1}, Causation.model_construct(depth=0)]
)
async def test_a_run_is_named_as_a_cause_that_can_be_read_back(causation: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"is no causation: give a run's, as run\.causation"):
        (await opened()).caused_by(causation, correlation_id="first")


@pytest.mark.parametrize("chain", ["", "a\0b", 7, None])
async def test_so_is_its_chain(chain: Any) -> None:
    with pytest.raises(ValidationFailed, match="correlation_id: an id is 1 to 255 characters"):
        (await opened()).caused_by(cause(), correlation_id=chain)


@pytest.mark.parametrize("ref", [WorkspaceRef("", "prod"), WorkspaceRef("acme", "a\0b")])
def test_a_handle_is_of_a_workspace_that_ids_name(ref: WorkspaceRef) -> None:
    with pytest.raises(ValidationFailed, match="_id: an id is 1 to 255 characters, with no NUL"):
        workspaces().handle(ref, actor=ADA)
