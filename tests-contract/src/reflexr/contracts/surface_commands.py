"""What a surface promises of commands: each is carried out in the name of who sent it, and its outcome is told."""

from typing import Final

from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import WORKSPACE
from reflexr.contracts.surface_application import (
    ANOTHER,
    ORDERS,
    STORED,
    Judgement,
    Ordered,
    stored_rule,
)
from reflexr.contracts.surface_trials import JsonObject, SurfaceGuarantees, SurfaceTrial
from reflexr.contracts.trials import together
from reflexr.core import Actor, EvaluatorActor, ExternalAgentActor, RuleVersion, SourceActor, UserActor

ORDER: Final[JsonObject] = {"type": "publish", "event": {"type": Ordered.event_type}}

VALUES: Final[JsonObject] = {
    "z": [1, 1.0, 1.5e300, -0.0, 2**64, True, None],
    "a": {"empty": {}, "none": [], "": ""},
    "text": 'caf\u00e9 \U0001f44d \u0000 \u2028 " \\ </script> %00 +&=#?',
}


class CommandingContract(SurfaceGuarantees):
    """Every command, and what comes of it."""

    @guarantee()
    async def test_publish_appends_an_event(self, trial: SurfaceTrial) -> None:
        """`publish` appends the event under its id, and tells its place and that it is new."""
        for seq in (1, 2):
            event = {"type": Ordered.event_type, "shop": "south", "amount": seq}
            outcome = await trial.done({"type": "publish", "event": event, "id": f"e{seq}"})
            assert outcome == {"type": "published", "seq": seq, "id": f"e{seq}", "duplicate": False}
            envelope = (await trial.log())[-1]
            assert (envelope["seq"], envelope["id"], envelope["correlation_id"]) == (seq, f"e{seq}", f"e{seq}")
            assert envelope["event"] == {**event, "details": {}}

    @guarantee()
    async def test_publish_gives_an_event_an_id(self, trial: SurfaceTrial) -> None:
        """An event that is published without an id gets one of its own, which is told."""
        outcomes = [await trial.done(ORDER) for _ in range(2)]
        assert [outcome["id"] for outcome in outcomes] == [envelope["id"] for envelope in await trial.log()]
        assert outcomes[0]["id"] != outcomes[1]["id"]

    @guarantee()
    async def test_publish_of_an_id_that_is_there_is_a_duplicate(self, trial: SurfaceTrial) -> None:
        """An event that is published again under its id appends nothing: it is told as a duplicate, with its place."""
        published = [await trial.done({**ORDER, "id": "once"}) for _ in range(2)]
        assert published[0]["duplicate"] is False
        assert published[1] == {**published[0], "duplicate": True}
        assert len(await trial.log()) == 1

    @guarantee()
    async def test_publish_joins_the_chain_that_it_names(self, trial: SurfaceTrial) -> None:
        """An event with a `correlation_id` joins the causal chain that this event began."""
        await trial.done({**ORDER, "id": "first"})
        await trial.done({**ORDER, "id": "second", "correlation_id": "first"})
        assert [envelope["correlation_id"] for envelope in await trial.log()] == ["first", "first"]

    @guarantee()
    async def test_publish_changes_no_value(self, trial: SurfaceTrial) -> None:
        """An event is in the log as it was sent: texts, numbers of any size, what is empty, and the order of keys."""
        await trial.done({"type": "publish", "event": {"type": Ordered.event_type, "details": VALUES}})
        (envelope,) = await trial.log()
        assert repr(envelope["event"]["details"]) == repr(VALUES)

    @guarantee()
    async def test_publish_many_appends_events_together(self, trial: SurfaceTrial) -> None:
        """`publish_many` appends events in order, and tells of each its place, its id and whether it is new."""
        await trial.done({**ORDER, "id": "e1"})
        event = ORDER["event"]
        events = [{"event": {**event, "amount": 2}, "id": "e2"}, {"event": event, "id": "e1"}, {"event": event}]
        outcome = await trial.done({"type": "publish_many", "events": events, "correlation_id": "e1"})
        log = await trial.log()
        assert [(envelope["id"], envelope["event"]["amount"]) for envelope in log[:2]] == [("e1", 1), ("e2", 2)]
        assert [envelope["correlation_id"] for envelope in log] == ["e1"] * 3
        assert outcome == {
            "type": "published_many",
            "published": [
                {"type": "published", "seq": 2, "id": "e2", "duplicate": False},
                {"type": "published", "seq": 1, "id": "e1", "duplicate": True},
                {"type": "published", "seq": 3, "id": log[2]["id"], "duplicate": False},
            ],
        }
        assert await trial.done({"type": "publish_many", "events": []}) == {"type": "published_many", "published": []}

    @guarantee()
    async def test_a_command_is_attributed_to_who_sent_it(self, trial: SurfaceTrial) -> None:
        """Whoever sends a command, of whatever kind, is the actor of what comes of it."""
        actors: list[Actor] = [
            UserActor(id="u1", name="Ada"),
            UserActor(id="caf\u00e9 / 100% \U0001f44d"),
            ExternalAgentActor(client_id="c1", name="assistant", on_behalf_of="u1"),
            SourceActor(name="till"),
            EvaluatorActor(name="judge", version="2"),
        ]
        for actor in actors:
            await trial.done(ORDER, trial.surface(actor))
        written = [actor.model_dump(mode="json") for actor in actors]
        assert [envelope["actor"] for envelope in await trial.log()] == written
        await trial.done({"type": "install_rule", "rule": stored_rule()}, trial.surface(ANOTHER))
        assert (await trial.log())[-1]["actor"] == ANOTHER.model_dump(mode="json")

    @guarantee()
    async def test_give_feedback_records_it(self, trial: SurfaceTrial) -> None:
        """`give_feedback` records a judgement of a run, a firing or a chain, in that chain, and tells its fact."""
        run_id = await trial.run_id("succeeded")
        chain = (await trial.run(run_id))["correlation_id"]
        targets = (
            {"kind": "run", "run_id": run_id},
            {"kind": "firing", "firing_id": run_id},
            {"kind": "chain", "correlation_id": chain},
        )
        for target in targets:
            value = {"correct": False, "note": "too late"}
            command = {"type": "give_feedback", "feedback_type": "contract_judgement", "target": target, "value": value}
            outcome = await trial.done(command)
            fact = (await trial.log())[-1]
            assert outcome == {"type": "recorded", "seq": fact["seq"], "id": fact["id"]}
            assert fact["event"] == {
                "type": "reflexr:feedback_given",
                "feedback_type": Judgement.feedback_type,
                "target": target,
                "value": value,
            }
            assert fact["correlation_id"] == chain

    @guarantee()
    async def test_retry_run_queues_a_run_again(self, trial: SurfaceTrial) -> None:
        """`retry_run` queues a run again that was dead-lettered, and tells it as it is then."""
        run_id = await trial.run_id("dead_lettered")
        outcome = await trial.done({"type": "retry_run", "run_id": run_id})
        assert outcome == {"type": "run", "run": await trial.run(run_id)}
        assert (outcome["run"]["status"], outcome["run"]["requeues"]) == ("pending", 1)
        await trial.settle()
        assert (await trial.run(run_id))["status"] == "succeeded"

    @guarantee()
    async def test_skip_run_gives_a_run_up(self, trial: SurfaceTrial) -> None:
        """`skip_run` gives up a run, for the reason if one is given, and tells it as it is then."""
        for reason in ({}, {"reason": "not worth it"}):
            run_id = await trial.run_id("dead_lettered")
            outcome = await trial.done({"type": "skip_run", "run_id": run_id, **reason})
            assert outcome == {"type": "run", "run": await trial.run(run_id)}
            assert outcome["run"]["status"] == "skipped"
            assert (await trial.log())[-1]["event"].get("reason") == reason.get("reason")

    @guarantee()
    async def test_cancel_run_ends_a_run(self, trial: SurfaceTrial) -> None:
        """`cancel_run` ends a run that has not ended, for the reason if one is given, and tells it as it is then."""
        for reason in ({}, {"reason": "called off"}):
            run_id = await trial.run_id()
            outcome = await trial.done({"type": "cancel_run", "run_id": run_id, **reason})
            assert outcome == {"type": "run", "run": await trial.run(run_id)}
            assert outcome["run"]["status"] == "cancelled"
            assert (await trial.log())[-1]["event"].get("reason") == reason.get("reason")

    @guarantee()
    async def test_resume_run_answers_a_paused_run(self, trial: SurfaceTrial) -> None:
        """`resume_run` answers a paused run with any JSON, of whichever attempt, and tells it as it is then."""
        answers = [{"answer": VALUES}, {"answer": [None, "no"], "attempt": 1}, {"answer": None}, {}, {"answer": "yes"}]
        for given in answers:
            run_id = await trial.run_id("paused")
            outcome = await trial.done({"type": "resume_run", "run_id": run_id, **given}, trial.surface(ANOTHER))
            assert outcome == {"type": "run", "run": await trial.run(run_id)}
            resumed, answer = outcome["run"], given.get("answer")
            assert (resumed["status"], resumed["waiting"]) == ("pending", None)
            assert repr(resumed["answer"]["value"]) == repr(answer)
            assert resumed["answer"]["actor"] == ANOTHER.model_dump(mode="json")
            fact = (await trial.log())[-1]
            assert (fact["event"]["type"], fact["actor"]) == ("reflexr:run_resumed", resumed["answer"]["actor"])
            assert repr(fact["event"]["answer"]) == repr(answer)
            await trial.settle()
            ended = await trial.run(run_id)
            assert (ended["status"], repr(ended["output"])) == ("succeeded", repr({"told": answer}))

    @guarantee()
    async def test_replay_rule_has_a_rule_evaluate_the_log_again(self, trial: SurfaceTrial) -> None:
        """`replay_rule` has a rule evaluate the log again, firing again in `refire` alone, and tells its progress."""
        await trial.run_id("succeeded")
        for mode, runs in (("rebuild", 1), ("refire", 2)):
            command = {"type": "replay_rule", "rule": ORDERS, "from_seq": 1, "mode": mode}
            outcome = await trial.done(command)
            progress = (await trial.storage.progress(WORKSPACE))[ORDERS]
            assert outcome == {
                "type": "rule",
                "rule": ORDERS,
                "progress": {
                    "rule": ORDERS,
                    "generation": progress.generation,
                    "cursor": 0,
                    "definition": progress.definition,
                    "silent_through": progress.silent_through,
                },
            }
            await trial.settle()
            assert len(await trial.runs()) == runs

    @guarantee()
    async def test_install_rule_stores_a_rule(self, trial: SurfaceTrial) -> None:
        """`install_rule` stores a rule with its provenance, and tells its version and the place of its fact."""
        provenance = {"chat": "caf\u00e9", "turn": 3}
        await trial.publish()
        outcome = await trial.done({"type": "install_rule", "rule": stored_rule(), "provenance": provenance})
        assert outcome == {"type": "rule_version", "rule": STORED, "version": 1, "seq": 2, "duplicate": False}
        fact = (await trial.log())[-1]
        assert (fact["event"]["rule"], fact["event"]["provenance"]) == (STORED, provenance)
        await trial.publish()
        await trial.settle()
        assert STORED in {run["rule"] for run in await trial.runs()}

    @guarantee()
    async def test_install_rule_of_what_is_installed_is_a_duplicate(self, trial: SurfaceTrial) -> None:
        """Installing a rule that is installed just so changes nothing: it is told as a duplicate, with its version."""
        installed = [await trial.done({"type": "install_rule", "rule": stored_rule()}) for _ in range(2)]
        assert installed[1] == {**installed[0], "duplicate": True}
        assert len(await trial.log()) == 1

    @guarantee()
    async def test_update_rule_stores_the_next_version(self, trial: SurfaceTrial) -> None:
        """`update_rule` stores a rule's next version, also after the version that it expects, and tells it."""
        await trial.done({"type": "install_rule", "rule": stored_rule()})
        changes: list[tuple[int, JsonObject]] = [(2, {}), (3, {"expected_version": 2})]
        for version, expected in changes:
            rule = stored_rule(description=f"version {version}")
            outcome = await trial.done({"type": "update_rule", "rule": rule, "provenance": {"v": version}, **expected})
            assert (outcome["type"], outcome["rule"]) == ("rule_version", STORED)
            assert (outcome["version"], outcome["duplicate"]) == (version, False)
            seq: int = outcome["seq"]
            fact = (await trial.log())[seq - 1]["event"]
            assert (fact["version"], fact["spec"]["description"]) == (version, f"version {version}")
            assert fact["provenance"] == {"v": version}

    @guarantee()
    async def test_archive_rule_ends_a_rule(self, trial: SurfaceTrial) -> None:
        """`archive_rule` ends a stored rule, for the reason if one is given; archiving it again is a duplicate."""
        install: JsonObject = {"type": "install_rule", "rule": stored_rule()}
        archive: JsonObject = {"type": "archive_rule", "rule": STORED}
        changes: list[tuple[int, JsonObject]] = [(2, {}), (4, {"expected_version": 3, "reason": "too loud"})]
        for version, more in changes:
            await trial.done(install)
            outcome = await trial.done({**archive, **more})
            assert RuleVersion.model_validate(outcome) == RuleVersion(
                rule=STORED, version=version, seq=outcome["seq"], duplicate=False
            )
            seq: int = outcome["seq"]
            fact = (await trial.log())[seq - 1]["event"]
            assert (fact["type"], fact["version"]) == ("reflexr:rule_archived", version)
            assert fact.get("reason") == more.get("reason")
            assert await trial.done(archive) == {**outcome, "duplicate": True}

    @guarantee()
    async def test_what_commands_do_is_there_when_they_are_answered(self, trial: SurfaceTrial) -> None:
        """Commands of many at once are each carried out, once, and what they did is there when they are answered."""
        surfaces = [trial.surface(UserActor(id=f"u{number}")) for number in range(20)]
        outcomes = await together(trial.done({**ORDER, "id": f"e{n}"}, surface) for n, surface in enumerate(surfaces))
        log = await trial.log()
        assert sorted(outcome["seq"] for outcome in outcomes) == list(range(1, 21))
        assert [log[outcome["seq"] - 1]["id"] for outcome in outcomes] == [outcome["id"] for outcome in outcomes]
