"""What a reactor promises of deciding: over any storage, rules fire exactly as core says they do, whoever evaluates."""

from typing import Any

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.reacting_trials import (
    ONCE,
    SOMEBODY,
    TTL,
    Alarm,
    ReactorGuarantees,
    ReactorTrial,
    Repaired,
    Script,
    Stopped,
    Verdict,
    reaction_rule,
    stored_rule,
)
from reflexr.contracts.samples import HOUR, SECOND, WORKSPACE, at
from reflexr.core import (
    Actor,
    AgentActor,
    ChainTarget,
    CommandRejected,
    CommandSucceeded,
    FiringTarget,
    Forbidden,
    InvalidState,
    Publish,
    RuleArchived,
    RuleErrored,
    RuleFired,
    RuleReset,
    RunSucceeded,
    RunTarget,
    SkipRun,
    Tick,
    UserActor,
    by,
    on,
    predicate,
    sequence,
)
from reflexr.workspace import Access, Reaction, Schedule, WorkspaceRef


class DecidingContract(ReactorGuarantees):
    """Rules decide on every envelope, once, and what they decide is in the log with the run that it starts."""

    @guarantee()
    async def test_what_is_published_fires_a_rule_whose_run_succeeds(self, trial: ReactorTrial) -> None:
        """An event that a rule watches fires it, and its action is carried out with that event and its scope."""
        act = Script({"paged": True})
        await trial.publish(Alarm(machine="press"), Stopped(machine="saw"))
        await trial.process(reaction_rule(), act=act).settle()
        assert await trial.types() == ["alarm", "stopped", "rule_fired", "run_started", "run_succeeded"]
        (reaction,) = act.reactions
        assert (reaction.events, reaction.scope) == ((Alarm(machine="press"),), {"machine": "press"})
        (ended,) = await trial.runs()
        assert (ended.status, ended.attempt, ended.output, ended.matched) == ("succeeded", 1, {"paged": True}, (1,))
        assert (await trial.log())[2].correlation_id == ended.correlation_id == (await trial.log())[0].id

    @guarantee()
    async def test_an_event_that_is_published_again_fires_nothing(self, trial: ReactorTrial) -> None:
        """An event that is published again under its id is there once, and fires a rule once."""
        process = trial.process(reaction_rule())
        for _ in range(2):
            await trial.open().publish(Alarm(), id="once")
            await process.settle()
        assert await trial.statuses() == ["succeeded"]

    @guarantee()
    async def test_the_log_holds_exactly_what_its_rules_decide(self, trial: ReactorTrial) -> None:
        """Whatever the batches, evaluating the log again gives exactly the firings and the errors that are in it."""
        rules = (
            reaction_rule("contract:loud", when=on(Alarm).where(level=3)),
            reaction_rule("contract:pairs", when=on(Alarm).count(at_least=2, within=HOUR)),
            reaction_rule("contract:hidden", when=on(Alarm, Stopped), scope=by("level")),
            reaction_rule("contract:chain", when=on(RuleFired).where(rule="contract:loud"), scope=by()),
            reaction_rule("contract:done", when=on(RunSucceeded), scope=by()),
            reaction_rule("contract:errors", when=on(RuleErrored), scope=by()),
        )
        for batch_size in (1, 2, 100):
            process = trial.process(*rules, batch_size=batch_size)
            await trial.publish(Alarm(level=3), Stopped(), Alarm(machine="saw"), Alarm(), Alarm(machine="saw", level=3))
            await process.settle()
        decided = [name for name, _ in await trial.decided(*rules)]
        assert set(decided) == {each.name for each in rules}
        await trial.recorded_once()

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_count_fires_inside_its_window(self, trial: ReactorTrial) -> None:
        """A rule that counts fires when so many are inside its window, whose end is outside, and counts afresh."""
        act = Script(None)
        process = trial.process(reaction_rule(when=on(Alarm).count(at_least=2, within=10 * SECOND)), act=act)
        for seconds in (0, 10, 11, 12, 21):
            trial.clock.set(at(seconds))
            await trial.publish(Alarm())
            await process.settle()
        assert [[envelope.ts for envelope in reaction.envelopes] for reaction in act.reactions] == [
            [at(10), at(11)],
            [at(12), at(21)],
        ]

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_sequence_fires_when_its_steps_follow_each_other(self, trial: ReactorTrial) -> None:
        """A rule over a sequence fires once its steps came in order in its window, in each scope by itself."""
        rule = reaction_rule(when=sequence(on(Alarm), on(Stopped), within=10 * SECOND))
        process = trial.process(rule)
        steps = [(0, Alarm()), (1, Stopped(machine="saw")), (2, Alarm(machine="saw")), (9, Stopped())]
        for seconds, event in [*steps, (12, Stopped(machine="saw")), (13, Stopped())]:
            trial.clock.set(at(seconds))
            await trial.publish(event)
            await process.settle()
        (fired,) = await trial.runs()
        assert (fired.scope, fired.fired_at) == ({"machine": "press"}, at(9))

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_absence_fires_once_when_time_has_passed(self, trial: ReactorTrial) -> None:
        """A rule over an absence fires once for each scope that falls silent, though nothing but ticks happens."""
        rule = reaction_rule(when=on(Alarm).absent(within=90 * SECOND))
        process = trial.process(rule, schedules=[Schedule(name="minute", every=60 * SECOND)])
        await trial.publish(Alarm(machine="press"), Alarm(machine="saw"))
        for minutes in range(1, 6):
            trial.clock.set(at(60 * minutes))
            if minutes == 1:
                await trial.publish(Alarm(machine="saw"))
            await process.settle()
        assert [(one.scope["machine"], one.fired_at) for one in await trial.runs()] == [
            ("press", at(120)),
            ("saw", at(180)),
        ]
        await trial.decided(rule)

    @guarantee()
    async def test_a_new_rule_begins_at_the_head_or_at_the_beginning(self, trial: ReactorTrial) -> None:
        """A rule that is added later begins at the head of the log, or at its beginning if it says so."""
        await trial.publish(Alarm())
        await trial.process(reaction_rule()).settle()
        late = (reaction_rule("contract:now"), reaction_rule("contract:all", start="beginning"))
        process = trial.process(reaction_rule(), *late)
        await process.settle()
        await trial.publish(Alarm())
        await process.settle()
        fired = [fact["rule"] for fact in await trial.facts(RuleFired)]
        assert {name: fired.count(name) for name in fired} == {
            "contract:alarms": 2,
            "contract:now": 1,
            "contract:all": 2,
        }

    @guarantee()
    async def test_a_rule_whose_definition_changes_starts_afresh(self, trial: ReactorTrial) -> None:
        """A rule with another condition begins at the head, with nothing counted; with another policy it goes on."""
        twice, thrice = (on(Alarm).count(at_least=number, within=HOUR) for number in (2, 3))
        await trial.publish(Alarm())
        await trial.process(reaction_rule(when=twice)).settle()
        await trial.process(reaction_rule(when=twice, retry=ONCE), act=Script(OSError())).settle()
        assert await trial.facts(RuleReset) == []
        process = trial.process(reaction_rule(when=thrice))
        await process.settle()
        for number in range(3):
            assert len(await trial.runs()) == 0, number
            await trial.publish(Alarm())
            await process.settle()
        assert [one.generation for one in await trial.runs()] == [2]
        assert [fact["reason"] for fact in await trial.facts(RuleReset)] == ["changed"]

    @guarantee()
    async def test_an_envelope_that_a_rule_cannot_decide_on_is_its_dead_letter(self, trial: ReactorTrial) -> None:
        """A predicate that raises costs its rule that one envelope, which is recorded, and no other rule anything."""

        def picky(envelope: Any) -> bool:
            if envelope.payload["level"] == 3:
                raise ValueError("three is too many")
            return True

        rules = (reaction_rule(), reaction_rule("contract:picky", when=on(Alarm).where(predicate("picky"))))
        await trial.publish(Alarm(level=3), Alarm(level=1))
        await trial.process(*rules, predicates={"picky": picky}).settle()
        (dead,) = await trial.open().dead_letters()
        assert (dead.rule, dead.seq) == ("contract:picky", 1)
        assert "three is too many" in dead.error
        assert [fact["seq"] for fact in await trial.facts(RuleErrored)] == [1]
        assert sorted(one.rule for one in await trial.runs()) == [
            "contract:alarms",
            "contract:alarms",
            "contract:picky",
        ]

    # --- Chains

    @guarantee()
    async def test_a_rule_reacts_to_the_runs_of_others_and_never_to_its_own(self, trial: ReactorTrial) -> None:
        """A rule may watch facts about others' runs, which join the chain; one about itself it never sees."""
        done = reaction_rule("contract:done", when=on(RunSucceeded), scope=by())
        await trial.publish(Alarm())
        await trial.process(reaction_rule(), done).settle()
        first, second = await trial.runs()
        assert (first.rule, second.rule) == ("contract:alarms", "contract:done")
        assert (first.depth, second.depth, first.correlation_id) == (1, 2, second.correlation_id)

    @guarantee()
    async def test_a_chain_of_firings_ends_at_its_depth(self, trial: ReactorTrial) -> None:
        """Rules that set each other off stop at the depth limit, which records the refusal."""
        rules = [
            reaction_rule(f"contract:{name}", when=on(RunSucceeded).where(rule=f"contract:{other}"), scope=by())
            for name, other in (("tick", "tock"), ("tock", "tick"))
        ]
        start = reaction_rule("contract:tick", when=on(RunSucceeded, Alarm), scope=by())
        await trial.publish(Alarm())
        await trial.process(start, rules[1], max_depth=4).settle()
        assert [one.depth for one in await trial.runs()] == [1, 2, 3, 4]
        assert len(await trial.facts(RuleErrored)) == 1

    @guarantee()
    async def test_a_chain_of_emitted_events_ends_at_its_depth(self, trial: ReactorTrial) -> None:
        """Actions that set themselves off by what they publish stop at the depth limit, which records the refusal."""

        async def again(reaction: Reaction[None]) -> None:
            await reaction.emit(Repaired())

        await trial.publish(Alarm())
        await trial.process(reaction_rule(when=on(Alarm, Repaired)), act=again, max_depth=3).settle()
        assert [one.depth for one in await trial.runs()] == [1, 2, 3]
        assert await trial.statuses() == ["succeeded"] * 3
        assert [fact["seq"] for fact in await trial.facts(RuleErrored)] == [
            envelope.seq for envelope in await trial.open().read(types=[Repaired])
        ][-1:]

    # --- Stored rules

    @guarantee()
    async def test_a_stored_rule_decides_from_its_installation_on(self, trial: ReactorTrial) -> None:
        """A stored rule decides on what comes after it was installed, in its own workspace and by its own version."""
        process = trial.process()
        other = WorkspaceRef(WORKSPACE.tenant_id, "another")
        await trial.publish(Alarm())
        await trial.publish(Alarm(), workspace=other)
        await trial.open().install_rule(stored_rule())
        for workspace in (WORKSPACE, other):
            await process.settle()
            await trial.publish(Alarm(), workspace=workspace)
        await process.settle()
        assert [one.matched for one in await trial.runs()] == [(3,)]
        assert await trial.runs(other) == []

    @guarantee()
    async def test_a_stored_rule_that_is_updated_is_reset_if_it_decides_by_something_else(
        self, trial: ReactorTrial
    ) -> None:
        """An update that changes the condition begins a generation at its fact; any other leaves the counting alone."""
        workspace, process = trial.open(), trial.process()
        twice = on(Alarm).count(at_least=2, within=HOUR).at_most(5, per=HOUR)
        await workspace.install_rule(stored_rule(when=twice))
        await trial.publish(Alarm())
        await process.settle()
        assert (await workspace.update_rule(stored_rule(when=twice, description="as before"))).version == 2
        await trial.publish(Alarm())
        await process.settle()
        assert [one.generation for one in await trial.runs()] == [1]
        await trial.publish(Alarm())
        await process.settle()
        await workspace.update_rule(stored_rule(when=on(Alarm).count(at_least=2, within=2 * HOUR).at_most(5, per=HOUR)))
        await trial.publish(Alarm())
        await process.settle()
        assert [one.generation for one in await trial.runs()] == [1]
        with pytest.raises(InvalidState):
            await workspace.update_rule(stored_rule(), expected_version=1)

    @guarantee()
    async def test_a_stored_rule_that_is_archived_ends_with_its_runs(self, trial: ReactorTrial) -> None:
        """An archived rule decides on nothing more, its unfinished runs are cancelled, and it can be installed anew."""
        workspace, process = trial.open(), trial.process()
        await workspace.install_rule(stored_rule())
        await trial.publish(Alarm(), Alarm())
        await process.reactor.evaluate()
        await workspace.archive_rule("contract_stored:alarms", reason="no more")
        await trial.publish(Alarm())
        await process.settle()
        assert await trial.statuses() == ["cancelled", "cancelled"]
        assert [fact["cancelled"] for fact in await trial.facts(RuleArchived)] == [2]
        await workspace.install_rule(stored_rule())
        await trial.publish(Alarm())
        await process.settle()
        assert await trial.statuses() == ["cancelled", "cancelled", "succeeded"]
        assert len(await workspace.rule_history("contract_stored:alarms")) == 3

    # --- Replay

    @guarantee()
    async def test_a_refire_fires_again_for_the_past(self, trial: ReactorTrial) -> None:
        """A replay that fires again gives new runs to what fired before, in firing order and a new generation."""
        process = trial.process(reaction_rule())
        await trial.publish(Alarm(), Alarm())
        await process.settle()
        await process.application.handle(WORKSPACE, actor=SOMEBODY).replay_rule(
            "contract:alarms", from_seq=2, mode="refire"
        )
        await process.settle()
        assert [(one.generation, one.matched) for one in await trial.runs()] == [(1, (1,)), (1, (2,)), (2, (2,))]
        assert await trial.statuses() == ["succeeded"] * 3

    @guarantee()
    async def test_a_rebuild_recomputes_and_fires_only_for_what_comes(self, trial: ReactorTrial) -> None:
        """A replay that rebuilds counts the past again without firing for it."""
        rule = reaction_rule(when=on(Alarm).count(at_least=2, within=HOUR))
        process = trial.process(rule)
        await trial.publish(Alarm(), Alarm(), Alarm())
        await process.settle()
        workspace = process.application.handle(WORKSPACE, actor=SOMEBODY)
        await workspace.replay_rule(rule.name, from_seq=2, mode="rebuild")
        await process.settle()
        assert len(await trial.runs()) == 1
        await trial.publish(Alarm(), Alarm())
        await process.settle()
        assert [one.matched for one in await trial.runs()][1:] == [(await _alarm_seqs(trial))[3:5]]

    # --- Tenants, permissions, commands, feedback

    @guarantee()
    async def test_workspaces_whose_names_look_alike_have_runs_of_their_own(self, trial: ReactorTrial) -> None:
        """The same events in workspaces of other tenants, however alike their names, fire and run by themselves."""
        places = [
            WorkspaceRef("a/b", "c"),
            WorkspaceRef("a", "b/c"),
            WorkspaceRef("A", "b/c"),
            WorkspaceRef("a ", "b/c"),
        ]
        act = Script(None)
        process = trial.process(reaction_rule(), act=act)
        for place in places:
            await trial.open(place).publish(Alarm(), id="e1")
        await process.reactor.evaluate()
        ids = [[one.id for one in await trial.runs(place)] for place in places]
        assert ids[0] == ids[1]
        await trial.open(places[0]).cancel_run(ids[0][0])
        await process.settle()
        assert [await trial.statuses(place) for place in places] == [["cancelled"], *[["succeeded"]] * 3]
        assert len({reaction.idempotency_key for reaction in act.reactions}) == 3
        assert {(one.workspace.tenant_id, one.workspace.workspace_id) for one in act.reactions} == {
            (place.tenant_id, place.workspace_id) for place in places[1:]
        }

    @guarantee()
    async def test_what_is_not_permitted_changes_nothing(self, trial: ReactorTrial) -> None:
        """Whoever may not do something is refused, and neither the log nor a run is changed by it."""

        def authorize(_tenant: str, _workspace: str | None, actor: Actor, access: Access) -> bool:
            return actor != SOMEBODY or access.action.startswith("reflexr:read")

        await trial.publish(Alarm())
        await trial.process(reaction_rule(), authorize=authorize).reactor.evaluate()
        before = await trial.log()
        (pending,) = await trial.runs()
        workspace = trial.open(authorize=authorize)
        for refused in (
            workspace.publish(Alarm()),
            workspace.cancel_run(pending.id),
            workspace.skip_run(pending.id),
            workspace.retry_run(pending.id),
            workspace.install_rule(stored_rule()),
            workspace.replay_rule("contract:alarms", from_seq=1, mode="refire"),
            workspace.give_feedback(Verdict(correct=True), on=RunTarget(run_id=pending.id)),
            workspace.save_cursor("mirror", 1),
        ):
            with pytest.raises(Forbidden):
                await refused
        assert await trial.log() == before
        assert await trial.statuses() == ["pending"]

    @guarantee()
    async def test_a_run_acts_with_the_permissions_of_its_own(self, trial: ReactorTrial) -> None:
        """What an action publishes is asked about in the name of its run, and is refused if that may not."""

        def authorize(_tenant: str, _workspace: str | None, actor: Actor, access: Access) -> bool:
            return not isinstance(actor, AgentActor) or access.action != "reflexr:publish"

        async def emit(reaction: Reaction[None]) -> None:
            with pytest.raises(Forbidden):
                await reaction.emit(Repaired())

        await trial.publish(Alarm())
        await trial.process(reaction_rule(), act=emit, authorize=authorize).settle()
        assert await trial.statuses() == ["succeeded"]
        assert "repaired" not in await trial.types()

    @guarantee()
    async def test_a_command_is_carried_out_once_per_id(self, trial: ReactorTrial) -> None:
        """A command that is repeated under its id is answered with its first result, and done no second time."""
        process = trial.process(reaction_rule())
        workspace = process.application.handle(WORKSPACE, actor=SOMEBODY)
        publish = Publish(event={"type": "contract_plant:alarm"})
        results = [await process.application.execute(workspace, publish, command_id="c1") for _ in range(2)]
        assert isinstance(results[0], CommandSucceeded)
        assert results[0] == results[1]
        assert await trial.types() == ["alarm"]
        await process.settle()
        (ended,) = await trial.runs()
        refused = [
            await process.application.execute(workspace, SkipRun(run_id=ended.id), command_id="c2") for _ in range(2)
        ]
        assert isinstance(refused[0], CommandRejected)
        assert refused[0] == refused[1]
        other = workspace.as_actor(UserActor(id="another"))
        assert isinstance(await process.application.execute(other, publish, command_id="c1"), CommandSucceeded)
        assert (await trial.types()).count("alarm") == 2

    @guarantee()
    async def test_feedback_joins_the_chain_of_what_it_is_about(self, trial: ReactorTrial) -> None:
        """Feedback on a run, on a firing and on a chain is in the chain, and rules can watch it."""
        watching = reaction_rule("contract:judged", when=on("reflexr:feedback_given"), scope=by())
        process = trial.process(reaction_rule(), watching)
        (alarm,) = await trial.publish(Alarm())
        await process.settle()
        (ended,) = await trial.runs()
        workspace = trial.open()
        for target in (
            RunTarget(run_id=ended.id),
            FiringTarget(firing_id=ended.id),
            ChainTarget(correlation_id=alarm.id),
        ):
            given = await workspace.give_feedback(Verdict(correct=False), on=target)
            assert given.correlation_id == alarm.id
        await process.settle()
        assert [one.rule for one in await trial.runs()] == ["contract:alarms", *["contract:judged"] * 3]

    # --- Schedules

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_schedule_ticks_once_whoever_publishes_it(self, trial: ReactorTrial) -> None:
        """Two processes with one schedule publish each of its ticks once, with the time that it was due."""
        schedule = Schedule(name="hourly", every=HOUR)
        processes = [trial.process(reaction_rule(), schedules=[schedule]) for _ in range(2)]
        await trial.publish(Alarm())
        async with processes[0].serving(), processes[1].serving():
            for hours in (1, 2, 3):
                trial.clock.set(at(3600 * hours + 2))
                await trial.publish(Alarm())
                await _until_ticked(trial, hours)
        for process in processes:
            await process.settle()
        assert [fact["at"] for fact in await trial.facts(Tick)] == [
            f"2026-01-01T0{hours}:00:00Z" for hours in (1, 2, 3)
        ]

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_ticks_that_were_missed_are_caught_up_with_as_the_schedule_says(self, trial: ReactorTrial) -> None:
        """After downtime a schedule ticks for the latest time alone, or for each that was missed, up to its limit."""
        schedules = [
            Schedule(name="latest", every=HOUR),
            Schedule(name="each", every=HOUR, catch_up="all", limit=3),
            Schedule(name="elsewhere", every=HOUR, targets=frozenset({WorkspaceRef("nobody", "nowhere")})),
        ]
        process = trial.process(schedules=schedules)
        await trial.publish(Alarm())
        trial.clock.set(at(3600))
        await process.settle()
        trial.clock.set(at(5 * 3600))
        await process.settle()
        ticks = [(fact["schedule"], fact["at"][11:13]) for fact in await trial.facts(Tick)]
        assert [hour for name, hour in ticks if name == "latest"] == ["01", "05"]
        assert [hour for name, hour in ticks if name == "each"] == ["01", "02", "03", "04", "05"]
        assert {name for name, _ in ticks} == {"latest", "each"}

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_a_process_that_dies_while_it_ticks_loses_no_tick(self, trial: ReactorTrial) -> None:
        """A tick of a process that was killed before its commit is published by another."""
        schedules = [Schedule(name="hourly", every=HOUR)]
        await trial.publish(Alarm())
        trial.clock.set(at(3600))
        dying = trial.process(schedules=schedules)

        async def die(name: str, *_: Any) -> None:
            dying.tap.killed = name == "commit"

        dying.tap.before = die
        async with dying.doing(dying.reactor.tick()) as ticking:
            await dying.ended(ticking)
        assert await trial.facts(Tick) == []
        trial.clock.advance(TTL)
        await trial.process(schedules=schedules).settle()
        assert [fact["at"] for fact in await trial.facts(Tick)] == ["2026-01-01T01:00:00Z"]


async def _alarm_seqs(trial: ReactorTrial) -> tuple[int, ...]:
    return tuple(envelope.seq for envelope in await trial.open().read(types=[Alarm]))


async def _until_ticked(trial: ReactorTrial, times: int) -> None:
    async def ticked() -> bool:
        return len(await trial.facts(Tick)) >= times

    await trial.until(ticked)
