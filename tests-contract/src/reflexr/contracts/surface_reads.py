"""What a surface promises of reads: each answers what is there, as it travels, and no more than was asked for."""

from datetime import timedelta
from typing import Any, Final

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import HOUR, START
from reflexr.contracts.surface_application import (
    AUDITS,
    CHECKS,
    ORDERS,
    SOMEBODY,
    STORED,
    Ordered,
    Returned,
    stored_rule,
)
from reflexr.contracts.surface_commands import VALUES
from reflexr.contracts.surface_refusals import INSTALL
from reflexr.contracts.surface_trials import ASKED, JsonObject, SurfaceGuarantees, SurfaceTrial

_STATUSES: Final = ("succeeded", "dead_lettered", "pending")


class ReadingContract(SurfaceGuarantees):
    """Every read of a workspace, and of a tenant."""

    # --- Events

    @guarantee(Feature.READS)
    async def test_events_are_the_log(self, trial: SurfaceTrial) -> None:
        """`events` answers the log's envelopes whole and oldest first, what was published and reflexr's own."""
        await trial.run_id("succeeded")
        log = await trial.surface().read("events")
        assert log == await trial.log()
        assert [envelope["seq"] for envelope in log] == list(range(1, len(log) + 1))
        assert {key: log[0][key] for key in ("ts", "workspace_id", "actor", "causation", "event")} == {
            "ts": "2026-01-01T00:00:00Z",
            "workspace_id": "contract-workspace",
            "actor": {"kind": "user", "id": "somebody", "name": "Some Body"},
            "causation": None,
            "event": {"type": Ordered.event_type, "shop": "north", "amount": 1, "details": {}},
        }
        (emitted,) = (envelope for envelope in log if envelope["event"]["type"] == "contract_shop:shipped")
        assert (emitted["actor"]["kind"], emitted["causation"]["depth"]) == ("agent", 1)

    @guarantee(Feature.READS)
    async def test_events_are_read_as_they_are(self, trial: SurfaceTrial) -> None:
        """`events` changes no value: texts, numbers of any size, what is empty, and the order of keys."""
        await trial.publish(Ordered(details=VALUES))
        (envelope,) = await trial.surface().read("events")
        assert repr(envelope["event"]["details"]) == repr(VALUES)

    @guarantee(Feature.READS)
    async def test_events_are_those_between_two_places(self, trial: SurfaceTrial) -> None:
        """`events` with `after_seq` and `before_seq` answers what is between them, both of them excluded."""
        await _orders(trial, 6)
        assert await _seqs(trial, after_seq=2) == [3, 4, 5, 6]
        assert await _seqs(trial, before_seq=3) == [1, 2]
        assert await _seqs(trial, after_seq=2, before_seq=5) == [3, 4]
        assert await _seqs(trial, after_seq=0, before_seq=1) == []
        assert await _seqs(trial, after_seq=6) == []
        assert await _seqs(trial, after_seq=4, before_seq=2) == []

    @guarantee(Feature.READS)
    async def test_events_are_the_first_or_the_last_so_many(self, trial: SurfaceTrial) -> None:
        """`events` with `limit` answers the first so many, and with `last` the last so many, oldest first as well."""
        await _orders(trial, 6)
        assert await _seqs(trial, limit=2) == [1, 2]
        assert await _seqs(trial, last=2) == [5, 6]
        assert await _seqs(trial, after_seq=1, before_seq=5, limit=2) == [2, 3]
        assert await _seqs(trial, after_seq=1, before_seq=5, last=2) == [3, 4]
        assert await _seqs(trial, limit=9) == await _seqs(trial, last=9) == [1, 2, 3, 4, 5, 6]
        assert await _seqs(trial, limit=0) == await _seqs(trial, last=0) == []

    @guarantee(Feature.READS)
    async def test_events_are_of_the_types_that_are_named(self, trial: SurfaceTrial) -> None:
        """`events` with `types` answers those of one of them, and counts no other."""
        await _orders(trial, 2)
        await trial.publish_returned()
        await _orders(trial, 1)
        log = await trial.log()
        errors = [envelope["seq"] for envelope in log if envelope["event"]["type"] == "reflexr:rule_errored"]
        orders = [1, 2, len(log)]
        assert await _seqs(trial, types=[Ordered.event_type]) == orders
        assert await _seqs(trial, types=[Returned.event_type]) == [3]
        assert await _seqs(trial, types=[Returned.event_type, Ordered.event_type]) == [1, 2, 3, orders[2]]
        assert await _seqs(trial, types=[Ordered.event_type], last=2) == orders[1:]
        assert await _seqs(trial, types=[Ordered.event_type], limit=2, after_seq=1) == orders[1:]
        assert await _seqs(trial, types=["reflexr:rule_errored"], limit=1) == errors[:1]
        assert await _seqs(trial, types=["contract_shop:unheard_of"]) == []

    # --- Runs

    @guarantee(Feature.READS)
    async def test_runs_are_answered_newest_first(self, trial: SurfaceTrial) -> None:
        """`runs` answers every run whole, newest first, and with `limit` the newest so many."""
        for status in _STATUSES:
            await trial.run_id(status)
        runs = await trial.runs()
        assert [run["status"] for run in runs] == ["pending", "dead_lettered", "succeeded"]
        assert await trial.surface().read("runs") == runs
        assert await trial.surface().read("runs", limit=2) == runs[:2]
        assert await trial.surface().read("runs", limit=0) == []
        assert (runs[2]["output"], runs[2]["finished_at"]) == ({"parcels": 1}, "2026-01-01T00:00:00Z")
        assert runs[1]["error"] == "ValueError: out of stock"

    @guarantee(Feature.READS)
    async def test_runs_are_those_that_are_asked_for(self, trial: SurfaceTrial) -> None:
        """`runs` with a rule, a scope's key or a status answers those of it, and with several those of all of them."""
        await trial.done(INSTALL)
        for shop in ("north", "south"):
            await trial.publish(Ordered(shop=shop))
        await trial.settle()
        await trial.publish(Ordered(shop="south"))
        await trial.reactor.evaluate()
        runs = await trial.runs()
        assert len(runs) == 6
        for query in (
            {"rule": ORDERS},
            {"rule": STORED},
            {"scope_key": '["south"]'},
            {"status": "pending"},
            {"rule": ORDERS, "status": "succeeded"},
            {"rule": ORDERS, "scope_key": '["south"]', "status": "pending"},
            {"rule": CHECKS},
            {"scope_key": '["east"]'},
        ):
            found = [run for run in runs if query.items() <= run.items()]
            assert await trial.surface().read("runs", **query) == found
            assert await trial.surface().read("runs", **query, limit=1) == found[:1]

    @guarantee(Feature.READS)
    async def test_a_run_is_answered_as_it_is(self, trial: SurfaceTrial) -> None:
        """`run` answers one run as it now is, and one that does not exist is `not_found`."""
        run_id = await trial.run_id()
        assert await trial.surface().read("run", run_id=run_id) == await trial.run(run_id)
        await trial.settle()
        read = await trial.surface().read("run", run_id=run_id)
        assert read == await trial.run(run_id)
        assert read["status"] == "succeeded"
        for unknown in ("nobody's", "caf\u00e9 100% ?x=1#y", "x" * 255):
            assert (await trial.no_read("run", run_id=unknown))["type"] == "not_found"

    @guarantee(Feature.READS)
    async def test_a_paused_run_tells_what_it_asks(self, trial: SurfaceTrial) -> None:
        """A paused run is answered with what it asks, since when and until when, and then with its answer."""
        run_id = await trial.run_id("paused")
        await trial.run_id()
        expected = {
            "request": ASKED.request,
            "since": "2026-01-01T00:00:00Z",
            "until": "2026-01-01T01:00:00Z",
            "blocks": False,
        }
        (paused,) = await trial.surface().read("runs", status="paused")
        assert (paused["id"], paused["waiting"]) == (run_id, expected)
        waiting = [each["waiting"] for each in await trial.surface().read("runs")]
        assert sorted(waiting, key=bool) == [None, expected]
        assert (await trial.surface().read("run", run_id=run_id))["waiting"] == expected
        await trial.done({"type": "resume_run", "run_id": run_id, "answer": VALUES})
        told = await trial.surface().read("run", run_id=run_id)
        assert (told["status"], told["waiting"]) == ("pending", None)
        assert repr(told["answer"]["value"]) == repr(VALUES)

    # --- Rules

    @guarantee(Feature.READS)
    async def test_rule_statuses_tell_how_each_rule_stands(self, trial: SurfaceTrial) -> None:
        """`rule_statuses` answers the code rules and the active stored rules: where each is, and how far behind."""
        fresh = await trial.surface().read("rule_statuses")
        assert [status["rule"] for status in fresh] == [ORDERS, CHECKS, AUDITS]
        assert fresh[0] == _status(ORDERS, generation=None, cursor=None, lag=0)
        await trial.publish_returned()
        await trial.done(INSTALL)
        head = len(await trial.log())
        assert await trial.surface().read("rule_statuses") == [
            _status(ORDERS, cursor=head - 1, lag=1),
            _status(CHECKS, cursor=head - 1, lag=1, dead_letters=1),
            _status(AUDITS, cursor=head - 1, lag=1, dead_letters=1),
            _status(STORED, cursor=head, lag=0, origin="stored", version=1),
        ]
        await trial.done({"type": "archive_rule", "rule": STORED})
        assert [status["rule"] for status in await trial.surface().read("rule_statuses")] == [ORDERS, CHECKS, AUDITS]

    @guarantee(Feature.READS)
    async def test_a_rule_is_answered_with_its_origin(self, trial: SurfaceTrial) -> None:
        """`rule` answers a code rule or a stored one, also an archived one, with version, provenance and status."""
        code = await trial.surface().read("rule", rule=ORDERS)
        assert code == {
            "rule": _rule(trial, ORDERS),
            "origin": "code",
            "version": None,
            "status": "active",
            "provenance": {},
        }
        await trial.done({**INSTALL, "provenance": {"chat": 7}})
        stored = await trial.surface().read("rule", rule=STORED)
        assert (stored["rule"]["name"], stored["rule"]["when"]["throttle"]) == (STORED, {"at_most": 5, "per": "PT5M"})
        assert {**stored, "rule": None} == _described(version=1, status="active")
        await trial.done({"type": "archive_rule", "rule": STORED})
        archived = await trial.surface().read("rule", rule=STORED)
        assert archived == {**stored, "version": 2, "status": "archived"}

    @guarantee(Feature.READS)
    async def test_a_rule_that_does_not_exist_is_not_found(self, trial: SurfaceTrial) -> None:
        """`rule` of a rule that does not exist is `not_found`, whatever it is called."""
        for unknown in (STORED, "contract_shop:unheard_of", "no namespace", "caf\u00e9 100% ?x=1#y", "x" * 255):
            assert (await trial.no_read("rule", rule=unknown))["type"] == "not_found"

    @guarantee(Feature.READS)
    async def test_a_rule_history_is_its_versions(self, trial: SurfaceTrial) -> None:
        """`rule_history` answers the facts of a stored rule's versions, oldest first, also of an archived one."""
        other = "contract_stored:other"
        await trial.done(INSTALL)
        await trial.done({"type": "install_rule", "rule": stored_rule(other)})
        await trial.done({"type": "update_rule", "rule": stored_rule(description="another")})
        await trial.done({"type": "archive_rule", "rule": STORED})
        facts = ("reflexr:rule_installed", "reflexr:rule_archived")
        versions = [each for each in await trial.log() if each["event"]["type"] in facts]
        history = await trial.surface().read("rule_history", rule=STORED)
        assert history == [each for each in versions if each["event"]["rule"] == STORED]
        assert [envelope["event"]["version"] for envelope in history] == [1, 2, 3]
        for never_stored in (ORDERS, "contract_stored:unheard_of"):
            assert await trial.surface().read("rule_history", rule=never_stored) == []

    @guarantee(Feature.READS)
    async def test_dead_letters_are_what_rules_could_not_decide(self, trial: SurfaceTrial) -> None:
        """`dead_letters` answers the envelopes that rules could not decide on, oldest first, or those of one rule."""
        for _ in range(2):
            await trial.publish_returned()
        letters = await trial.surface().read("dead_letters")
        assert [letter["seq"] for letter in letters] == sorted(letter["seq"] for letter in letters)
        assert len(letters) == 4
        for rule in (CHECKS, AUDITS):
            assert await trial.surface().read("dead_letters", rule=rule) == [
                {
                    "rule": rule,
                    "generation": 1,
                    "seq": letter["seq"],
                    "scope_key": None,
                    "ts": "2026-01-01T00:00:00Z",
                    "kind": "predicate_failed",
                    "error": letter["error"],
                }
                for letter in letters
                if letter["rule"] == rule
            ]
        assert "nobody knows" in letters[0]["error"]
        assert await trial.surface().read("dead_letters", rule=ORDERS) == []

    # --- Schedules

    @guarantee(Feature.READS)
    async def test_schedule_statuses_tell_how_each_schedule_stands(self, trial: SurfaceTrial) -> None:
        """`schedule_statuses` answers the schedules that target the workspace: their last tick and their next."""
        assert await trial.surface().read("schedule_statuses") == [
            {"schedule": "hourly", "last_tick": None, "next_tick": "2026-01-01T01:00:00Z"},
            {"schedule": "mornings", "last_tick": None, "next_tick": "2026-01-01T08:00:00Z"},
            {"schedule": "shared", "last_tick": None, "next_tick": "2026-01-08T00:00:00Z"},
        ]
        await trial.publish()
        trial.clock.set(START + HOUR + timedelta(minutes=1))
        await trial.settle()
        hourly, mornings, _ = await trial.surface().read("schedule_statuses")
        assert (hourly["last_tick"], hourly["next_tick"]) == ("2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z")
        assert (mornings["last_tick"], mornings["next_tick"]) == (None, "2026-01-01T08:00:00Z")

    # --- What is not there yet

    @guarantee(Feature.READS)
    async def test_a_workspace_that_is_new_can_be_read(self, trial: SurfaceTrial) -> None:
        """A workspace without a log is answered as one with nothing in it, and is not there afterwards either."""
        for name in ("events", "runs", "dead_letters"):
            assert await trial.surface().read(name) == []
        assert await trial.surface().read("rule_history", rule=STORED) == []
        await trial.surface().read("rule_statuses")
        await trial.surface().read("schedule_statuses")
        assert await trial.storage.workspaces() == []

    # --- The tenant

    @guarantee(Feature.TENANT_READS)
    async def test_rules_are_the_code_rules(self, trial: SurfaceTrial) -> None:
        """`rules` answers the application's code rules whole, and no stored rule."""
        await trial.done(INSTALL)
        assert await trial.surface().read("rules") == [_rule(trial, name) for name in (ORDERS, CHECKS, AUDITS)]

    @guarantee(Feature.TENANT_READS)
    async def test_schedules_are_those_that_tick_in_the_tenant(self, trial: SurfaceTrial) -> None:
        """`schedules` answers the schedules that tick in one of the tenant's workspaces, and their timetables."""
        schedules = await trial.surface(SOMEBODY).read("schedules")
        assert [(one["name"], one["every"], one["cron"], one["timezone"]) for one in schedules] == [
            ("hourly", "PT1H", None, "UTC"),
            ("mornings", None, "0 9 * * mon-fri", "Europe/Oslo"),
            ("shared", "P7D", None, "UTC"),
        ]


async def _orders(trial: SurfaceTrial, number: int) -> None:
    await trial.publish(*(Ordered(amount=amount) for amount in range(number)))


async def _seqs(trial: SurfaceTrial, **window: Any) -> list[int]:
    return [envelope["seq"] for envelope in await trial.surface().read("events", **window)]


def _rule(trial: SurfaceTrial, name: str) -> JsonObject:
    return trial.application.rules[name].model_dump(mode="json")


def _status(rule: str, **changes: Any) -> JsonObject:
    return {
        "rule": rule,
        "origin": "code",
        "version": None,
        "enabled": True,
        "generation": 1,
        "dead_letters": 0,
        **changes,
    }


def _described(**changes: Any) -> JsonObject:
    return {"rule": None, "origin": "stored", "provenance": {"chat": 7}, **changes}
