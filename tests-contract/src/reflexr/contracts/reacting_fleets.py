"""What a reactor promises where there are many: processes with other rules than each other, and quiet workspaces."""

import asyncio
from typing import Any, ClassVar

from reflexr.contracts.contract import guarantee
from reflexr.contracts.reacting_trials import (
    IMMEDIATELY,
    Alarm,
    ReactorGuarantees,
    ReactorTrial,
    Script,
    Stopped,
    reaction_rule,
)
from reflexr.contracts.samples import WORKSPACE, draft
from reflexr.contracts.trials import together
from reflexr.core import RuleFired, RuleProgress, on
from reflexr.workspace import WorkspaceRef


class FleetsContract(ReactorGuarantees):
    """Processes share the work, also those that know other rules, and idle workspaces cost them nothing.

    Attributes:
        quiet: How many workspaces there are with nothing to do.
    """

    quiet: ClassVar[int] = 10_000

    # --- Rolling deploys

    @guarantee()
    async def test_processes_with_other_rules_miss_nothing_and_fire_nothing_twice(self, trial: ReactorTrial) -> None:
        """While two processes with different rules share a log, every rule decides on every envelope, once."""
        shared = reaction_rule("contract:shared")
        leaving = reaction_rule("contract:leaving", start="beginning")
        coming = reaction_rule("contract:coming", start="beginning")
        watching = reaction_rule(
            "contract:watching", when=on(RuleFired).where(rule="contract:leaving"), start="beginning"
        )
        watching = watching.model_copy(update={"scope": shared.scope.model_copy(update={"fields": ()})})
        old = trial.process(leaving, shared, batch_size=3)
        new = trial.process(shared, watching, coming, batch_size=4)
        for _ in range(6):
            await trial.publish(Alarm(machine="press"), Stopped(), Alarm(machine="saw"))
            reactors = [old.reactor, new.reactor]
            await together([*(each.evaluate() for each in reactors), *(each.execute() for each in reactors)])
        for process in (old, new, old, new):
            await process.settle()
        decided = [name for name, _ in await trial.decided(shared, leaving, coming, watching)]
        assert {name: decided.count(name) for name in decided} == dict.fromkeys(
            ("contract:shared", "contract:leaving", "contract:coming", "contract:watching"), 12
        )
        await trial.recorded_once()

    @guarantee()
    async def test_a_rule_that_only_one_of_two_processes_knows_goes_on_from_where_it_began(
        self, trial: ReactorTrial
    ) -> None:
        """A rule that comes with a new process decides on every envelope from its beginning on, whoever is ahead."""
        shared, coming = reaction_rule("contract:shared"), reaction_rule("contract:coming")
        old, new = trial.process(shared), trial.process(shared, coming)
        await trial.publish(Alarm())
        await old.settle()
        async with old.serving():
            await trial.publish(Alarm())
            async with new.serving():
                for _ in range(5):
                    await trial.publish(Alarm())
                    await asyncio.sleep(0)
                await trial.until_ended(7)
                await new.settle()
        alarms = [envelope.seq for envelope in await trial.open().read(types=[Alarm])]
        fired = {
            name: [seq for fact in await trial.facts(RuleFired) if fact["rule"] == name for seq in fact["matched"]]
            for name in ("contract:shared", "contract:coming")
        }
        assert fired["contract:shared"] == alarms
        assert fired["contract:coming"] == alarms[len(alarms) - len(fired["contract:coming"]) :]

    @guarantee()
    async def test_processes_that_define_a_rule_differently_fire_it_once_for_an_envelope(
        self, trial: ReactorTrial
    ) -> None:
        """While two processes reset a rule of one name to their own, other rules miss nothing, and it fires once."""
        steady = reaction_rule("contract:steady")
        old = trial.process(steady, reaction_rule("contract:changing"))
        new = trial.process(steady, reaction_rule("contract:changing", when=on(Alarm, Stopped).where(machine="press")))
        async with old.serving():
            await trial.publish(Alarm(), Stopped())
            async with new.serving():
                for _ in range(6):
                    await trial.publish(Alarm(), Stopped())
                    await asyncio.sleep(0)
                await trial.until_ended(7)
        await new.settle()
        await trial.publish(Stopped())
        await new.settle()
        await trial.decided(steady)
        facts = await trial.facts(RuleFired)
        assert len([fact for fact in facts if fact["rule"] == "contract:steady"]) == 7
        matched = [seq for fact in facts if fact["rule"] == "contract:changing" for seq in fact["matched"]]
        assert len(matched) == len(set(matched))
        await trial.recorded_once()

    @guarantee()
    async def test_processes_with_other_actions_carry_out_their_own(self, trial: ReactorTrial) -> None:
        """Each process carries out the runs of the rules that it knows, however many wait that it does not."""
        one, other = reaction_rule("contract:one", retry=IMMEDIATELY), reaction_rule("contract:other")
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(30)))
        await trial.process(one, other).reactor.evaluate()
        acts = [Script(None), Script(None)]
        await trial.process(one, act=acts[0], concurrency=2).settle()
        assert [len(act.reactions) for act in acts] == [30, 0]
        await trial.process(other, act=acts[1], concurrency=2).settle()
        assert [len(act.reactions) for act in acts] == [30, 30]
        assert set(await trial.statuses()) == {"succeeded"}

    # --- Many workspaces

    @guarantee()
    async def test_quiet_workspaces_cost_nothing(self, trial: ReactorTrial) -> None:
        """Ten busy workspaces among many quiet ones take no more than twice the calls that the ten take alone."""
        rule = reaction_rule()
        busy = [WorkspaceRef(WORKSPACE.tenant_id, f"busy {number}") for number in range(10)]
        alone = await _calls(trial, busy)
        quiet = [WorkspaceRef(WORKSPACE.tenant_id, f"quiet {number}") for number in range(self.quiet)]
        for first in range(0, self.quiet, 100):
            await together(_quiet(trial, place, rule.definition()) for place in quiet[first : first + 100])
        among = await _calls(trial, busy)
        # How often a process looks depends on what ends together.
        assert len(among) <= 2 * len(alone)
        for place in busy:
            assert await trial.statuses(place) == ["succeeded", "succeeded"]

    @guarantee()
    async def test_a_process_with_nothing_to_do_opens_no_workspace(self, trial: ReactorTrial) -> None:
        """Where no rule is behind and no run is due, nothing but the looking is asked of the storage."""
        process = trial.process(reaction_rule())
        await trial.publish(Alarm())
        await process.settle()
        process.tap.calls.clear()
        await process.settle()
        assert set(process.tap.calls) <= {"behind", "due_runs", "next_due", "due_schedules", "now"}


async def _calls(trial: ReactorTrial, busy: list[WorkspaceRef]) -> list[str]:
    """Publishes in each of some workspaces, and returns the calls that a process makes until all is done."""
    for place in busy:
        await trial.publish(Alarm(), workspace=place)
    process = trial.process(reaction_rule())
    opened: set[Any] = set()

    async def note(name: str, *arguments: Any) -> None:
        if name == "transaction":
            opened.add(arguments[0])

    process.tap.before = note
    await process.settle()
    assert opened == set(busy)
    return process.tap.calls


async def _quiet(trial: ReactorTrial, workspace: WorkspaceRef, definition: str) -> None:
    """Makes a workspace where the rule is where it should be."""
    async with trial.transaction(workspace) as transaction:
        await transaction.append([draft("e1")])
        await transaction.save_progress([RuleProgress("contract:alarms", 1, 1, definition)])
