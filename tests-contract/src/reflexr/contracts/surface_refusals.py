"""What a surface promises of refusals: each says what was refused and why, as it travels, and nothing has changed."""

from typing import Any, Final

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.surface_application import ORDERS, STORED, Ordered, Shipped, stored_rule
from reflexr.contracts.surface_commands import ORDER
from reflexr.contracts.surface_trials import JsonObject, SurfaceGuarantees, SurfaceTrial
from reflexr.core import (
    DepthExceeded,
    Forbidden,
    InvalidState,
    NotFound,
    Rejected,
    UnsupportedProtocol,
    ValidationFailed,
)

INSTALL: Final[JsonObject] = {"type": "install_rule", "rule": stored_rule()}

_KINDS: Final[tuple[Rejected, ...]] = (
    NotFound("there is none: caf\u00e9 \U0001f44d"),
    InvalidState("in no state for it"),
    ValidationFailed("none of this is right", ["one: '", 'two: "', "three: %"]),
    Forbidden("nobody may"),
    DepthExceeded(9, 8),
    UnsupportedProtocol("what is this?"),
)


class RefusingContract(SurfaceGuarantees):
    """Every rejection, of the command or the read that it is the answer to."""

    @guarantee()
    async def test_what_does_not_exist_is_not_found(self, trial: SurfaceTrial) -> None:
        """A command that names a type, a chain, a run or a rule that does not exist is `not_found`."""
        await trial.publish()
        refused = [
            publish(type="contract_shop:unheard_of"),
            publish_many(ORDER["event"], {"type": "contract_shop:unheard_of"}),
            {**ORDER, "correlation_id": "nobody's"},
            {"type": "retry_run", "run_id": "nobody's"},
            {"type": "skip_run", "run_id": "nobody's"},
            {"type": "cancel_run", "run_id": "nobody's"},
            {"type": "resume_run", "run_id": "nobody's", "answer": "yes"},
            judge({"kind": "run", "run_id": "nobody's"}),
            judge({"kind": "firing", "firing_id": "nobody's"}),
            judge({"kind": "chain", "correlation_id": "nobody's"}),
            judge({"kind": "run", "run_id": "nobody's"}, feedback_type="contract_unheard_of"),
            {"type": "replay_rule", "rule": "contract_shop:unheard_of", "from_seq": 1, "mode": "refire"},
            {"type": "update_rule", "rule": stored_rule()},
            {"type": "archive_rule", "rule": STORED},
        ]
        for command in refused:
            assert (await trial.refused(command))["type"] == "not_found", command

    @guarantee()
    async def test_what_is_in_no_state_for_it_is_invalid_state(self, trial: SurfaceTrial) -> None:
        """A command to a run or a rule that is in no state for it is `invalid_state`."""
        run_id = await trial.run_id("succeeded")
        paused = await trial.run_id("paused")
        pending = await trial.run_id()
        await trial.done(INSTALL)
        refused = [
            {"type": "retry_run", "run_id": run_id},
            {"type": "retry_run", "run_id": pending},
            {"type": "skip_run", "run_id": run_id},
            {"type": "retry_run", "run_id": paused},
            {"type": "cancel_run", "run_id": run_id},
            *({"type": "resume_run", "run_id": name, "answer": "yes"} for name in (run_id, pending)),
            {"type": "resume_run", "run_id": paused, "answer": "yes", "attempt": 2},
            {"type": "install_rule", "rule": stored_rule(description="another")},
            {"type": "update_rule", "rule": stored_rule(description="another"), "expected_version": 2},
            {"type": "archive_rule", "rule": STORED, "expected_version": 2},
        ]
        for command in refused:
            assert (await trial.refused(command))["type"] == "invalid_state", command
        await trial.done({"type": "archive_rule", "rule": STORED})
        assert (await trial.refused({"type": "update_rule", "rule": stored_rule()}))["type"] == "invalid_state"

    @guarantee()
    async def test_what_is_not_as_it_has_to_be_is_validation_failed(self, trial: SurfaceTrial) -> None:
        """A command whose event, feedback, place or rule is not as it has to be is `validation_failed`."""
        run_id = await trial.run_id("succeeded")
        later = (await trial.log())[-1]["id"]
        refused = [
            publish(amount="many"),
            publish(unknown=1),
            publish_many(ORDER["event"], {"type": Ordered.event_type, "amount": "many"}),
            {**ORDER, "correlation_id": later},
            judge({"kind": "run", "run_id": run_id}, value={"correct": "perhaps", "unknown": 1}),
            judge({"kind": "firing", "firing_id": run_id}, feedback_type="contract_review", value={"stars": 3}),
            judge({"kind": "chain", "correlation_id": later}),
            {"type": "replay_rule", "rule": ORDERS, "from_seq": 0, "mode": "refire"},
            {"type": "replay_rule", "rule": ORDERS, "from_seq": 99, "mode": "rebuild"},
            {"type": "install_rule", "rule": stored_rule("contract_shop:no_namespace_of_stored_rules")},
            {"type": "update_rule", "rule": stored_rule(scope={"fields": ["shop"]})},
            {**INSTALL, "provenance": {"large": "x" * 5_000}},
        ]
        for command in refused:
            assert (await trial.refused(command))["type"] == "validation_failed", command

    @guarantee()
    async def test_every_problem_is_told(self, trial: SurfaceTrial) -> None:
        """Of what is not as it has to be every problem is told, each with its place."""
        rejection = await trial.refused(publish(shop=[], amount="many"))
        assert len(rejection["errors"]) == 2
        assert all(place in error for place, error in zip(("shop", "amount"), rejection["errors"], strict=True))
        rejection = await trial.refused(publish_many(*({"type": Ordered.event_type, "amount": bad} for bad in "abc")))
        assert [f"events.{n}" in error for n, error in enumerate(rejection["errors"])] == [True] * 3
        rule = stored_rule(when={"filter": {"kind": "on", "types": ["contract_shop:unheard_of"]}}, then={"action": "x"})
        rejection = await trial.refused({"type": "install_rule", "rule": rule})
        places = ("contract_shop:unheard_of", "then.action", "when.throttle")
        assert all(any(place in error for error in rejection["errors"]) for place in places)

    @guarantee()
    async def test_what_nobody_may_is_forbidden(self, trial: SurfaceTrial) -> None:
        """What is reflexr's own, what only runs publish and a rule that is not allowed are `forbidden`."""
        rule = stored_rule("contract_stored:forbidden")
        refused: list[JsonObject] = [
            publish(type="reflexr:tick", schedule="hourly", at="2026-01-01T00:00:00Z"),
            publish(type=Shipped.event_type),
            publish_many(ORDER["event"], {"type": Shipped.event_type}),
            {"type": "install_rule", "rule": rule},
            {"type": "update_rule", "rule": rule},
            {"type": "archive_rule", "rule": rule["name"]},
        ]
        for command in refused:
            assert (await trial.refused(command))["type"] == "forbidden", command

    @guarantee()
    async def test_a_rejection_of_a_command_comes_as_it_is(self, trial: SurfaceTrial) -> None:
        """Whatever a command is refused with comes whole: its message, its errors, its depth and limit."""
        for kind in _KINDS:
            trial.permissions.raised["reflexr:publish"] = kind
            assert await trial.refused(ORDER) == kind.rejection.model_dump(mode="json")

    @guarantee(Feature.READS)
    async def test_a_rejection_of_a_read_comes_as_it_is(self, trial: SurfaceTrial) -> None:
        """Whatever a read is refused with comes whole: its message, its errors, its depth and limit."""
        for kind in _KINDS:
            trial.permissions.raised["reflexr:read_runs"] = kind
            assert await trial.no_read("runs") == kind.rejection.model_dump(mode="json")

    @guarantee()
    async def test_what_breaks_is_no_answer_for_ever(self, trial: SurfaceTrial) -> None:
        """A command that breaks on the way is `invalid_state`, tells nothing of why, and is tried again if repeated."""
        trial.permissions.raised["reflexr:publish"] = RuntimeError("password=hunter2")
        result = await trial.execute(trial.surface(), ORDER, "c1")
        assert (result["ok"], result["rejection"]["type"]) == (False, "invalid_state")
        assert "hunter2" not in result["rejection"]["message"]
        assert await trial.log() == []
        trial.permissions.raised.clear()
        await trial.done(ORDER, command_id="c1")
        assert len(await trial.log()) == 1


def publish(type: str = Ordered.event_type, **fields: Any) -> JsonObject:
    """Returns a command that publishes an event."""
    return {"type": "publish", "event": {"type": type, **fields}}


def publish_many(*events: JsonObject) -> JsonObject:
    """Returns a command that publishes events together."""
    return {"type": "publish_many", "events": [{"event": event} for event in events]}


def judge(
    target: JsonObject, *, feedback_type: str = "contract_judgement", value: JsonObject | None = None
) -> JsonObject:
    """Returns a command that gives feedback."""
    given = {"correct": True} if value is None else value
    return {"type": "give_feedback", "feedback_type": feedback_type, "target": target, "value": given}
